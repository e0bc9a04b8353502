"""exportable: what it changes is put back, and where nothing is needed it changes nothing."""

from __future__ import annotations

import copy
import pickle
import threading
from typing import Any

import pytest
import torch
from transformers import masking_utils

import cachetree
from cachetree import _select
from cachetree._models import tiny_model

GATES = {gate.name.rpartition(".")[2] for gate in cachetree.environment().gates}


def snapshot(model: Any) -> list[Any]:
    """Give what `exportable` could have touched."""
    registry = masking_utils.ALL_MASK_ATTENTION_FUNCTIONS
    modules = [(name, type(module), dict(vars(module))) for name, module in model.named_modules()]
    return [modules, dict(registry._local_mapping), dict(registry._global_mapping), model.config.to_dict()]


def test_everything_is_as_it_was_after_exit() -> None:
    model = tiny_model("llama")
    before = snapshot(model)
    with cachetree.exportable(model) as given:
        assert given is model
        changed = snapshot(model) != before
    assert snapshot(model) == before
    assert changed == bool(GATES & {"traceable_modules", "traceable_masks"})


def test_everything_is_as_it_was_after_an_exception() -> None:
    model = tiny_model("llama")
    before = snapshot(model)
    with pytest.raises(KeyError), cachetree.exportable(model):
        raise KeyError
    assert snapshot(model) == before


def test_contexts_may_be_nested_and_overlap() -> None:
    one, other = tiny_model("llama"), tiny_model("gpt2")
    before = [snapshot(one), snapshot(other)]
    outer, inner = cachetree.exportable(one), cachetree.exportable(other)
    with cachetree.exportable(one):
        outer.__enter__()
        inner.__enter__()
        outer.__exit__(None, None, None)
        inner.__exit__(None, None, None)
    assert [snapshot(one), snapshot(other)] == before


def test_contexts_in_threads() -> None:
    models = [tiny_model("llama") for _ in range(4)]
    before = [snapshot(model) for model in models]

    def enter(model: Any) -> None:
        for _ in range(50):
            with cachetree.exportable(model):
                pass

    threads = [threading.Thread(target=enter, args=(model,)) for model in models]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [snapshot(model) for model in models] == before


def test_a_model_computes_the_same_inside() -> None:
    model = tiny_model("llama")
    ids = torch.arange(12).reshape(2, 6)
    mask = torch.tensor([[0, 0, 1, 1, 1, 1], [1, 1, 1, 1, 1, 1]])
    with torch.no_grad():
        expected = model(input_ids=ids, attention_mask=mask).logits
        with cachetree.exportable(model):
            assert torch.equal(model(input_ids=ids, attention_mask=mask).logits, expected)


def test_slices_of_module_lists_hold_the_same_modules() -> None:
    class Own(torch.nn.ModuleList):
        def __getitem__(self, index: Any) -> Any:
            return "own"

    model = torch.nn.Module()
    model.layers = torch.nn.ModuleList(torch.nn.Linear(1, 1) for _ in range(3))
    model.own = Own([torch.nn.Linear(1, 1)])
    layers = list(model.layers)
    with cachetree.exportable(model):
        assert list(model.layers[:2]) == layers[:2]
        assert list(model.layers[::-1]) == layers[::-1]
        assert model.layers[-1] is layers[-1]
        assert model.own[:1] == "own"
        assert isinstance(model.layers, torch.nn.ModuleList)
    assert type(model.layers) is torch.nn.ModuleList


MASKS: dict[str, Any] = {
    "causal": masking_utils.causal_mask_function,
    "sliding": masking_utils.sliding_window_causal_mask_function(3),
    "or": masking_utils.or_masks(masking_utils.causal_mask_function, lambda b, h, q, kv: kv == 6),
}
if not torch.__version__.startswith("2.5."):  # there transformers itself cannot use a mask that reads the batch index
    MASKS["only batch"] = lambda b, h, q, kv: b == 1


@pytest.mark.skipif("masks_without_vmap" not in GATES, reason="this pair builds its masks without vmap, or traces it")
@pytest.mark.parametrize("name", MASKS)
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_masks_are_equal_with_and_without_vmap(name: str, attention: str, *, padded: bool) -> None:
    padding = torch.tensor([[0, 0, 1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 1, 1, 1, 1]], dtype=torch.bool) if padded else None
    arguments: dict[str, Any] = {
        "batch_size": 2,
        "cache_position": torch.arange(4, 8),
        "kv_length": 8,
        "mask_function": MASKS[name],
        "attention_mask": padding,
        "allow_is_causal_skip": False,
        "dtype": torch.float32,
    }
    registry = masking_utils.ALL_MASK_ATTENTION_FUNCTIONS
    expected = registry[attention](**arguments)
    with cachetree.exportable(torch.nn.Linear(1, 1)):
        found = registry[attention](**arguments)
    assert found.dtype == expected.dtype
    assert torch.equal(found, expected)


@pytest.mark.skipif("traceable_modules" not in GATES, reason="this torch slices module lists itself")
def test_overlapping_contexts_on_one_model_do_not_end_each_other() -> None:
    model = torch.nn.Module()
    model.layers = torch.nn.ModuleList(torch.nn.Linear(1, 1) for _ in range(3))
    one, other = cachetree.exportable(model), cachetree.exportable(model)
    one.__enter__()
    other.__enter__()
    one.__exit__(None, None, None)
    assert isinstance(model.layers[:2], list)
    for copied in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert type(copied.layers) is torch.nn.ModuleList
        assert len(copied.layers) == 3
    other.__exit__(None, None, None)
    assert type(model.layers) is torch.nn.ModuleList


def test_somebody_elses_mask_function_stays() -> None:
    registry: Any = masking_utils.ALL_MASK_ATTENTION_FUNCTIONS
    theirs = lambda **_: None  # noqa: E731
    registry["sdpa"] = theirs
    try:
        with cachetree.exportable(torch.nn.Linear(1, 1)):
            assert registry["sdpa"] is theirs
        assert registry["sdpa"] is theirs
    finally:
        del registry["sdpa"]


@pytest.mark.parametrize("wrong", [torch.nn.Linear, None, lambda x: x])
def test_what_is_no_model_is_refused(wrong: Any) -> None:
    with (
        pytest.raises(cachetree.InvalidArgumentError, match=r"expected the torch\.nn\.Module to export"),
        cachetree.exportable(wrong),
    ):
        pass
    assert _select.adapters()
