"""dynamic_shapes, cache_argument and cache_of, and what they say to bad input."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import pytest
import torch
from transformers import DynamicCache
from transformers.cache_utils import QuantizedCache
from transformers.modeling_outputs import BaseModelOutput, CausalLMOutputWithPast

import cachetree
from cachetree import UnsupportedCacheError
from cachetree._models import tiny_model
from tests.support import filled

OutputWithPast: Any = CausalLMOutputWithPast  # its field has another name in the newest release


class Renamed(DynamicCache):
    """A subclass that only renames."""


class Stateful(DynamicCache):
    """A subclass with state of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.states = [torch.ones(1)]


@pytest.mark.usefixtures("registered")
def test_shapes_have_the_nesting_of_the_children() -> None:
    entry = {0: "b", 2: "l"}
    assert cachetree.dynamic_shapes(filled(0, 1), batch="b", length="l") == [[entry] * 2, [entry] * 2]
    assert cachetree.dynamic_shapes(filled(1, 2), batch="b", length="l") == [[entry] * 2, [entry] * 2]
    assert cachetree.dynamic_shapes(filled(0), length="l") == [[{2: "l"}], [{2: "l"}]]
    assert cachetree.dynamic_shapes(filled(0)) == [[{}], [{}]]
    assert cachetree.dynamic_shapes(DynamicCache(), batch="b", length="l") == [[], []]


@pytest.mark.usefixtures("registered")
def test_shapes_are_taken_by_export_with_named_dims() -> None:
    class Sums(torch.nn.Module):
        def forward(self, cache: Any) -> torch.Tensor:
            return sum(layer.keys.sum() + layer.values.sum() for layer in cache.layers)  # type: ignore[no-any-return]

    dims = {"batch": torch.export.Dim("batch"), "length": torch.export.Dim("length")}
    shapes = (cachetree.dynamic_shapes(filled(0, 1), **dims),)
    program = torch.export.export(Sums(), (filled(0, 1),), dynamic_shapes=shapes, strict=False)
    other = filled(0, 1, batch=4, length=9)
    assert torch.equal(program.module()(other), Sums()(other))


def test_a_cache_that_is_not_registered_is_refused() -> None:
    with pytest.raises(UnsupportedCacheError, match=r"DynamicCache is not registered .* call cachetree\.register\(\)"):
        cachetree.dynamic_shapes(filled(0))


WRONG: list[tuple[Any, str]] = [
    (DynamicCache, r"dynamic_shapes\(\) expected a cache, but found the class DynamicCache; pass an instance"),
    ([(1, 2)], r"dynamic_shapes\(\) expected a cache of transformers, such as a DynamicCache, but found a list"),
    (None, r"expected a cache of transformers, such as a DynamicCache, but found a NoneType"),
    (
        Renamed(),
        r"Renamed is a subclass of DynamicCache, .* torch matches exact types: call cachetree\.register\(Renamed\)",
    ),
]


@pytest.mark.usefixtures("registered")
@pytest.mark.parametrize(("wrong", "message"), WRONG)
def test_what_is_no_registered_cache_is_refused(wrong: Any, message: str) -> None:
    with pytest.raises(UnsupportedCacheError, match=message):
        cachetree.dynamic_shapes(wrong, batch="b")


def test_unsupported_cache_error_is_what_callers_would_catch() -> None:
    assert issubclass(UnsupportedCacheError, TypeError)
    assert issubclass(UnsupportedCacheError, RuntimeError)


def cache_with(layer: Any) -> Any:
    """Put a layer in the place of the second one."""
    cache = filled(0, 1, 2)
    cache.layers[1] = layer
    return cache


class OwnLayer(type(filled(0).layers[0])):  # type: ignore[misc]
    """A layer class of somebody else."""


@pytest.mark.usefixtures("registered")
@pytest.mark.parametrize("how", [torch.utils._pytree.tree_flatten, cachetree.dynamic_shapes])
def test_a_layer_that_cannot_be_carried_is_named(how: Any) -> None:
    with pytest.raises(
        UnsupportedCacheError, match=r"layer 1 is a OwnLayer \(tests\.test_shapes_and_access\), .* DynamicLayer"
    ):
        how(cache_with(OwnLayer()))


@pytest.mark.usefixtures("registered")
def test_a_quantized_layer_says_that_it_holds_packed_tensors() -> None:
    from transformers import cache_utils

    layer = object.__new__(cache_utils.QuantoQuantizedLayer)
    layer.is_initialized = True
    with pytest.raises(
        UnsupportedCacheError, match=r"layer 1 is a QuantoQuantizedLayer .* packed tensors and cannot be"
    ):
        torch.utils._pytree.tree_flatten(cache_with(layer))
    with pytest.raises(UnsupportedCacheError, match=r"but found transformers\.cache_utils\.QuantizedCache"):
        cachetree.register(QuantizedCache)


@pytest.mark.usefixtures("registered")
@pytest.mark.parametrize("how", [torch.utils._pytree.tree_flatten, cachetree.dynamic_shapes])
def test_an_offloading_cache_is_refused(how: Any) -> None:
    cache = filled(0)
    cache.offloading = True
    with pytest.raises(UnsupportedCacheError, match="offloads its layers through a prefetch stream"):
        how(cache)


@pytest.mark.usefixtures("registered")
@pytest.mark.parametrize("how", [torch.utils._pytree.tree_flatten, cachetree.dynamic_shapes])
def test_a_cache_with_further_attributes_is_refused(how: Any) -> None:
    cache = filled(0)
    cache.scales = [torch.ones(1)]
    with pytest.raises(UnsupportedCacheError, match=r"a DynamicCache holds \['scales'\] besides its layers"):
        how(cache)


def test_a_subclass_that_only_renames_is_a_node_of_its_own() -> None:
    cache = Renamed()
    cache.update(torch.ones(2, 2, 3, 8), torch.ones(2, 2, 3, 8), 0)
    with cachetree.register(Renamed) as handle:
        assert handle.classes == (Renamed,)
        rebuilt = torch.utils._pytree.tree_map(lambda leaf: leaf, cache)
        assert type(rebuilt) is Renamed
        assert cachetree.dynamic_shapes(cache, batch="b") == [[{0: "b"}], [{0: "b"}]]
        name = torch.utils._pytree.treespec_dumps(torch.utils._pytree.tree_structure(cache))
        assert "tests.test_shapes_and_access.Renamed" in name


def test_a_subclass_with_state_of_its_own_is_refused_when_it_is_used() -> None:
    with (
        cachetree.register(Stateful),
        pytest.raises(UnsupportedCacheError, match=r"a Stateful holds \['states'\] besides its layers"),
    ):
        torch.utils._pytree.tree_flatten(Stateful())


@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_cache_argument_is_what_forward_calls_it(name: str) -> None:
    newest = tuple(map(int, cachetree.environment().transformers.split(".")[:2])) >= (5, 24)
    assert cachetree.cache_argument(tiny_model(name)) == ("cache" if newest else "past_key_values")


@pytest.mark.parametrize("argument", ["cache", "past_key_values", "cache_params"])
def test_cache_argument_knows_every_name(argument: str) -> None:
    namespace: dict[str, Any] = {}
    exec(f"def forward(self, x, {argument}=None): ...", namespace)
    model = type("Model", (torch.nn.Module,), {"forward": namespace["forward"]})()
    assert cachetree.cache_argument(model) == argument


def test_cache_argument_refuses_what_takes_none() -> None:
    with pytest.raises(
        cachetree.InvalidArgumentError, match=r"Linear\.forward takes no cache: expected one of cache, .* found input"
    ):
        cachetree.cache_argument(torch.nn.Linear(1, 1))
    with pytest.raises(cachetree.InvalidArgumentError, match="expected a model"):
        cachetree.cache_argument(torch.nn.Linear)  # type: ignore[arg-type]


def test_cache_of_finds_the_cache_in_whatever_a_model_returns() -> None:
    cache, logits = filled(0), torch.ones(1)
    for outputs in (
        cache,
        OutputWithPast(logits=logits, past_key_values=cache),
        {"logits": logits, "cache": cache},
        OrderedDict(logits=logits, cache_params=cache),
        {"logits": logits, "memory": cache},
        {"logits": logits, "past_key_values": None, "cache_params": cache},
        (logits, cache),
        [cache],
    ):
        assert cachetree.cache_of(outputs) is cache
    model = tiny_model("llama")
    assert type(cachetree.cache_of(model(input_ids=torch.ones(2, 3, dtype=torch.long)))) is DynamicCache


def test_cache_of_takes_what_a_known_field_holds_whatever_its_class() -> None:
    """The caches of state space models have no common base below transformers 5.5."""
    states = object()
    assert cachetree.cache_of({"logits": torch.ones(1), "cache_params": states}) is states


@pytest.mark.parametrize(
    ("outputs", "message"),
    [
        (
            BaseModelOutput(last_hidden_state=torch.ones(1)),
            r"no cache .* \{'last_hidden_state': 'Tensor'\}; .*use_cache=True",
        ),
        (torch.ones(1), r"no cache .* but found Tensor"),
        ((torch.ones(1),), r"no cache"),
        ({"past_key_values": ((torch.ones(1),),)}, r"no cache"),
        ({"a": filled(0), "b": filled(0)}, r"several caches, in a, b, in the outputs"),
        (None, r"no cache .* NoneType"),
    ],
)
def test_cache_of_refuses_what_has_none(outputs: Any, message: str) -> None:
    with pytest.raises(UnsupportedCacheError, match=message):
        cachetree.cache_of(outputs)


@pytest.mark.parametrize("wrong", [None, torch.nn.Linear(1, 1), "program"])
def test_save_refuses_what_is_no_program(wrong: Any) -> None:
    with pytest.raises(cachetree.InvalidArgumentError, match="expected an ExportedProgram"):
        cachetree.save(wrong, "nowhere.pt2")
