"""Export, and all that follows it, of models that take and return a DynamicCache."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch.utils._pytree as pytree
from transformers import DynamicCache, StaticCache

import cachetree
from cachetree import _check
from cachetree._decode import Saved, decode, difference, rebuilt, saved
from cachetree._models import CASES, tiny_model
from tests.support import CONFIG, filled, run_python

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.usefixtures("registered")

# Where a model itself makes a constant, tracing it warns on some releases of torch.
a_constant_of_the_model = pytest.mark.filterwarnings("ignore:(?s).*get_attr:UserWarning")

AUTO = torch.export.Dim.AUTO  # type: ignore[attr-defined]  # torch 2.7 types Dim as a function


class Appends(torch.nn.Module):
    """Appends one token to the layers that hold some, and returns a number and the cache."""

    def forward(self, x: torch.Tensor, cache: Any) -> tuple[torch.Tensor, Any]:
        """Add *x*, (batch, heads, 1, head size)."""
        total = x.sum()
        for index, layer in enumerate(cache.layers):
            if layer.keys is not None:
                keys, values = cache.update(x * (index + 1), x, index)
                total = total + (index + 1) * keys.sum() - values.sum()
        return total, cache


@a_constant_of_the_model
@pytest.mark.parametrize("name", [case.name for case in CASES if case.exists and case.kind != "full"])
def test_decode_step_lowers(name: str) -> None:
    """What `check` does not do: the program goes on to a backend."""
    case = next(case for case in CASES if case.name == name)
    model = tiny_model(name)
    program = _check.export_decode_step(case, model)
    _, _, expected, found = _check.run(case, model, program, 3, 8)
    assert difference(expected, found) <= _check.TOLERANCE
    counted_in_place = "cumulative_length" in vars(StaticCache(config=CONFIG, max_cache_len=8).layers[0])
    if case.cache == "static" and counted_in_place and torch.__version__.startswith(("2.6.", "2.7.")):
        # These two cannot functionalize the counter that a static layer of transformers 5.4 and later adds to in place.
        with pytest.raises(RuntimeError, match="cannot mutate tensors with frozen storage"):
            program.run_decompositions()
        return
    _, _, expected, found = _check.run(case, model, program.run_decompositions(), 4, 9)
    assert difference(expected, found) <= _check.TOLERANCE


@pytest.mark.parametrize("layers", [(0, 1, 2), (1, 2), (0, 2)])
def test_layers_keep_their_places_through_export(layers: tuple[int, ...], tmp_path: Path) -> None:
    example = filled(*layers)
    x = torch.ones(2, 2, 1, 8)
    shapes = {"x": {0: AUTO}, "cache": cachetree.dynamic_shapes(example, batch=AUTO, length=AUTO)}
    program = torch.export.export(Appends(), (x, example), dynamic_shapes=shapes, strict=False)
    cachetree.save(program, tmp_path / "appends.pt2")
    loaded = cachetree.load(tmp_path / "appends.pt2")
    unflattened = torch.export.unflatten(program)
    for call in (program.module(), program.run_decompositions().module(), loaded.module(), unflattened):
        cache = filled(*layers, batch=5, length=7)
        expected = filled(*layers, batch=5, length=7)
        for _ in range(3):
            x = torch.rand(5, 2, 1, 8)
            found, cache = call(x, cache)
            wanted, expected = Appends()(x, expected)
            torch.testing.assert_close(found, wanted)
            assert pytree.tree_structure(cache) == pytree.tree_structure(expected)
            for mine, theirs in zip(pytree.tree_leaves(cache), pytree.tree_leaves(expected), strict=True):
                assert torch.equal(mine, theirs)


def test_exported_graph_holds_no_operation_of_taking_apart_and_rebuilding() -> None:
    class Passes(torch.nn.Module):
        def forward(self, cache: Any) -> Any:
            return cache

    program = torch.export.export(Passes(), (filled(0, 1),), strict=False)
    assert [node.op for node in program.graph.nodes] == ["placeholder"] * 4 + ["output"]
    names = [node.name for node in program.graph.nodes if node.op == "placeholder"]
    assert names == ["cache_key_cache_0", "cache_key_cache_1", "cache_value_cache_0", "cache_value_cache_1"]


def test_program_refuses_a_cache_of_another_structure() -> None:
    program = torch.export.export(Appends(), (torch.ones(2, 2, 1, 8), filled(0, 1)), strict=False)
    for other in (filled(0, 1, 2), filled(0), filled(1)):
        with pytest.raises(ValueError, match="tree spec"):
            program.module()(torch.ones(2, 2, 1, 8), other)


def test_several_tokens_at_once_and_one_at_a_time() -> None:
    """The number of new tokens is dynamic too: a prompt in chunks."""
    model = tiny_model("llama")
    argument = cachetree.cache_argument(model)
    cache = cachetree.cache_of(model(input_ids=torch.ones(2, 4, dtype=torch.long), use_cache=True))
    cache = rebuilt(saved(cache))
    shapes = {"input_ids": {0: AUTO, 1: AUTO}, argument: cachetree.dynamic_shapes(cache, batch=AUTO, length=AUTO)}
    example = {"input_ids": torch.ones(2, 3, dtype=torch.long), argument: cache}
    with torch.no_grad(), cachetree.exportable(model):
        program = torch.export.export(model, (), example, dynamic_shapes=shapes, strict=False)
    steps = [{"input_ids": torch.randint(64, (3, count)), argument: None} for count in (5, 2, 3)]
    start = random_cache(3, 6)
    expected = decode(model, argument, rebuilt(start), steps)
    for call in (program.module(), program.run_decompositions().module()):
        assert difference(expected, decode(call, argument, rebuilt(start), steps)) <= _check.TOLERANCE


@a_constant_of_the_model
def test_prefill_takes_an_empty_cache_and_returns_a_filled_one() -> None:
    model = tiny_model("llama")
    argument = cachetree.cache_argument(model)
    example = {"input_ids": torch.ones(2, 4, dtype=torch.long), argument: DynamicCache()}
    shapes = {"input_ids": {0: AUTO, 1: AUTO}, argument: cachetree.dynamic_shapes(DynamicCache())}
    with torch.no_grad(), cachetree.exportable(model):
        program = torch.export.export(model, (), example, dynamic_shapes=shapes, strict=False)
    steps = [{"input_ids": torch.randint(64, (3, 6)), argument: None}]
    expected = decode(model, argument, DynamicCache(), steps)
    found = decode(program.module(), argument, DynamicCache(), steps)
    assert difference(expected, found) <= _check.TOLERANCE
    assert len(found.leaves) == 6


@a_constant_of_the_model
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_padded_batch_with_a_mask(attention: str) -> None:
    model = tiny_model("llama", attn_implementation=attention)
    argument = cachetree.cache_argument(model)
    batch, past = 2, 5
    cache = rebuilt(random_cache(batch, past))
    example = {
        "input_ids": torch.ones(batch, 3, dtype=torch.long),
        "attention_mask": mask(batch, past + 3),
        argument: cache,
    }
    shapes = {
        "input_ids": {0: AUTO, 1: AUTO},
        "attention_mask": {0: AUTO, 1: AUTO},
        argument: cachetree.dynamic_shapes(cache, batch=AUTO, length=AUTO),
    }
    with torch.no_grad(), cachetree.exportable(model):
        program = torch.export.export(model, (), example, dynamic_shapes=shapes, strict=False)
    batch, past = 4, 9
    start = random_cache(batch, past)
    ids, attended = torch.randint(64, (batch, 2)), mask(batch, past + 2)
    with torch.no_grad():
        found = program.module()(**{"input_ids": ids, "attention_mask": attended, argument: rebuilt(start)})
        wanted = model(**{"input_ids": ids, "attention_mask": attended, argument: rebuilt(start)})
        unmasked = model(**{"input_ids": ids, argument: rebuilt(start)})
    torch.testing.assert_close(found.logits, wanted.logits, atol=_check.TOLERANCE, rtol=0)
    assert (found.logits - unmasked.logits).abs().max() > 100 * _check.TOLERANCE


def random_cache(batch: int, length: int) -> Saved:
    """Make up keys and values for the three layers of the tiny models."""
    _, spec = saved(filled(0, 1, 2))
    return Saved([torch.rand(batch, 2, length, 8) for _ in range(6)], spec)


def mask(batch: int, length: int) -> torch.Tensor:
    """Pad each sequence on the left, one more token each."""
    return (torch.arange(length)[None, :] >= torch.arange(batch)[:, None]).long()


def test_file_holds_no_pickled_cache(tmp_path: Path) -> None:
    program = torch.export.export(Appends(), (torch.ones(2, 2, 1, 8), filled(0, 1)), strict=False)
    cachetree.save(program, str(tmp_path / "appends.pt2"))
    assert b"DynamicLayer" not in (tmp_path / "appends.pt2").read_bytes()
    assert type(program.example_inputs[0][1]) is DynamicCache
    with (tmp_path / "appends.pt2").open("rb") as file:
        assert cachetree.load(file).module()(torch.ones(2, 2, 1, 8), filled(0, 1))


def test_torch_save_and_torch_load_go_on_working(tmp_path: Path) -> None:
    program = torch.export.export(Appends(), (torch.ones(2, 2, 1, 8), filled(0, 1)), strict=False)
    torch.export.save(program, tmp_path / "appends.pt2")
    result = run_python(
        """
        import json, sys, warnings
        warnings.simplefilter("ignore")
        import torch, cachetree
        from tests.support import filled
        cachetree.register()
        total, cache = torch.export.load(sys.argv[1]).module()(torch.ones(2, 2, 1, 8), filled(0, 1))
        print(json.dumps([total.item(), cache.get_seq_length()]))
        """,
        str(tmp_path / "appends.pt2"),
    )
    total, cache = Appends()(torch.ones(2, 2, 1, 8), filled(0, 1))
    assert result == [total.item(), cache.get_seq_length()]


def test_program_exported_under_transformers_own_registration_runs(tmp_path: Path) -> None:
    result = run_python(
        """
        import json, sys, warnings
        warnings.simplefilter("ignore")
        import torch
        from transformers.integrations.executorch import register_dynamic_cache_export_support
        from tests.support import filled
        from tests.test_export import Appends, AUTO
        register_dynamic_cache_export_support()
        x, example = torch.ones(2, 2, 1, 8), filled(0, 1)
        shapes = {"x": {0: AUTO}, "cache": [[{0: AUTO, 2: AUTO}] * 2] * 2}
        program = torch.export.export(Appends(), (x, example), dynamic_shapes=shapes, strict=False)
        torch.export.save(program, sys.argv[1])
        import cachetree
        total, cache = cachetree.load(sys.argv[1]).module()(torch.ones(3, 2, 1, 8), filled(0, 1, batch=3, length=6))
        print(json.dumps([total.item(), cache.get_seq_length()]))
        """,
        str(tmp_path / "theirs.pt2"),
    )
    total, cache = Appends()(torch.ones(3, 2, 1, 8), filled(0, 1, batch=3, length=6))
    assert result == [total.item(), cache.get_seq_length()]
