"""The laws of a node, for every shape of cache."""

from __future__ import annotations

import timeit
from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch.utils._pytree as pytree
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import EncoderDecoderCache

from cachetree import _register
from tests.support import CACHES, KINDS, filled, run_python, state

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.usefixtures("registered")

EVERY = {**CACHES, **KINDS}
every_cache = pytest.mark.parametrize("name", EVERY)
full_caches = pytest.mark.parametrize("name", CACHES)


class NoOperation(TorchDispatchMode):
    """Fails on every tensor operation."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Refuse *func*."""
        raise AssertionError(f"ran {func}")


@every_cache
def test_round_trip_keeps_every_attribute(name: str) -> None:
    cache = EVERY[name]()
    leaves, spec = pytree.tree_flatten(cache)
    rebuilt = pytree.tree_unflatten(leaves, spec)
    assert type(rebuilt) is type(cache)
    assert state(rebuilt) == state(cache)
    assert vars(rebuilt).keys() == vars(cache).keys()


@full_caches
def test_rebuilt_cache_goes_on_as_the_original_does(name: str) -> None:
    cache = CACHES[name]()
    rebuilt = pytree.tree_unflatten(*pytree.tree_flatten(cache))
    new = torch.ones(2, 2, 1, 8)
    for layer in range(3):
        for mine, expected in zip(rebuilt.update(new, -new, layer), cache.update(new, -new, layer), strict=True):
            assert torch.equal(mine, expected)
        assert rebuilt.get_seq_length(layer) == cache.get_seq_length(layer)


@every_cache
def test_leaves_come_back_as_the_same_objects(name: str) -> None:
    leaves, spec = pytree.tree_flatten(EVERY[name]())
    again, spec_again = pytree.tree_flatten(pytree.tree_unflatten(leaves, spec))
    assert [id(leaf) for leaf in again] == [id(leaf) for leaf in leaves]
    assert spec_again == spec


@full_caches
def test_leaves_are_all_keys_and_then_all_values(name: str) -> None:
    cache = CACHES[name]()
    layers = [layer for layer in cache.layers if layer.keys is not None]
    expected = [*(layer.keys for layer in layers), *(layer.values for layer in layers)]
    assert [id(leaf) for leaf in pytree.tree_leaves(cache)] == [id(leaf) for leaf in expected]


@every_cache
def test_neither_direction_runs_a_tensor_operation(name: str) -> None:
    cache = EVERY[name]()
    pytree.tree_flatten(cache)  # the first time makes the leaf that carries a count
    with NoOperation():  # type: ignore[no-untyped-call]
        pytree.tree_unflatten(*pytree.tree_flatten(cache))


def other_leaves() -> dict[str, Any]:
    shapes = ShapeEnv()
    fake = FakeTensorMode(shape_env=shapes)
    with fake:
        fake_tensor = torch.ones(2, 2)
    symbol = shapes.create_unbacked_symint()
    return {
        "int": 7,
        "None": None,
        "str": "*",
        "object": object(),
        "FakeTensor": fake_tensor,
        "SymInt": symbol,
        "dict": {},
    }


@every_cache
@pytest.mark.parametrize("kind", ["int", "None", "str", "object", "FakeTensor", "SymInt", "dict"])
def test_any_object_is_a_leaf(name: str, kind: str) -> None:
    leaf = other_leaves()[kind]
    cache = EVERY[name]()
    if isinstance(cache, EncoderDecoderCache):
        cache = cache.self_attention_cache
    node = _register.node_for(type(cache))
    children, context = node.flatten(cache)
    replaced = [[leaf for _ in group] for group in children]
    again, context_again = node.flatten(node.unflatten(replaced, context))
    assert context_again == context
    assert [[id(found) for found in group] for group in again] == [[id(leaf) for _ in group] for group in children]


@full_caches
def test_keyed_flatten_agrees_with_the_plain_one(name: str) -> None:
    cache = CACHES[name]()
    leaves, spec = pytree.tree_flatten(cache)
    keyed, keyed_spec = pytree.tree_flatten_with_path(cache)
    assert keyed_spec == spec
    assert [id(leaf) for _, leaf in keyed] == [id(leaf) for leaf in leaves]
    half = len(leaves) // 2
    expected = [f"['{group}'][{index}]" for group in ("key_cache", "value_cache") for index in range(half)]
    assert [pytree.keystr(path) for path, _ in keyed] == expected


@every_cache
def test_keyed_flatten_gives_the_leaves_of_the_plain_one(name: str) -> None:
    cache = EVERY[name]()
    leaves, spec = pytree.tree_flatten(cache)
    keyed, keyed_spec = pytree.tree_flatten_with_path(cache)
    assert keyed_spec == spec
    assert [id(leaf) for _, leaf in keyed] == [id(leaf) for leaf in leaves]
    assert len({pytree.keystr(path) for path, _ in keyed}) == len(leaves)


@every_cache
@pytest.mark.parametrize("other", [{"batch": 5}, {"length": 9}, {"dtype": torch.float16}, {"device": "meta"}])
def test_spec_does_not_depend_on_sizes_dtype_or_device(name: str, other: dict[str, Any]) -> None:
    assert pytree.tree_structure(EVERY[name](**other)) == pytree.tree_structure(EVERY[name]())


def test_spec_is_the_same_however_a_filled_cache_was_made() -> None:
    made = [EVERY[name]() for name in ("filled", "filled, from a config")]
    assert len({pytree.treespec_dumps(pytree.tree_structure(cache)) for cache in made}) == 1


def test_spec_tells_which_layers_are_empty() -> None:
    specs = [pytree.treespec_dumps(pytree.tree_structure(EVERY[name]())) for name in CACHES]
    assert len(set(specs)) == len(CACHES) - 1  # the two ways of filling all three layers give one


@every_cache
def test_spec_survives_being_written_and_read(name: str) -> None:
    spec = pytree.tree_structure(EVERY[name]())
    assert pytree.treespec_loads(pytree.treespec_dumps(spec)) == spec


def test_spec_written_by_another_process_is_equal() -> None:
    written = run_python(
        """
        import json, sys, warnings
        warnings.simplefilter("ignore")
        import cachetree, torch.utils._pytree as pytree
        from tests.support import CACHES, KINDS
        cachetree.register()
        made = {name: make() for name, make in {**CACHES, **KINDS}.items()}
        print(json.dumps({name: pytree.treespec_dumps(pytree.tree_structure(cache)) for name, cache in made.items()}))
        """
    )
    for name, text in written.items():
        assert pytree.treespec_loads(text) == pytree.tree_structure(EVERY[name]())


@every_cache
def test_tree_map_in_a_compiled_function(name: str) -> None:
    @torch.compile(backend="eager", fullgraph=True)
    def doubled(cache: Any) -> Any:
        return pytree.tree_map(lambda leaf: leaf * 2, cache)

    cache = EVERY[name]()
    torch._dynamo.reset()
    result = doubled(cache)
    assert type(result) is type(cache)
    assert pytree.tree_structure(result) == pytree.tree_structure(cache)
    for found, leaf in zip(pytree.tree_leaves(result), pytree.tree_leaves(cache), strict=True):
        assert torch.equal(found, leaf * 2)


def test_taking_apart_and_rebuilding_costs_little_more_than_plain_lists() -> None:
    """A ratio within one process, with room: ``benchmarks/`` has the figures."""
    cache = filled(*range(32))
    lists = [[layer.keys for layer in cache.layers], [layer.values for layer in cache.layers]]

    def best(function: Callable[[], Any]) -> float:
        return min(timeit.repeat(function, number=50, repeat=15))

    taken, plain = pytree.tree_flatten(cache), pytree.tree_flatten(lists)
    assert best(lambda: pytree.tree_flatten(cache)) < 3 * best(lambda: pytree.tree_flatten(lists))
    assert best(lambda: pytree.tree_unflatten(*taken)) < 5 * best(lambda: pytree.tree_unflatten(*plain))
