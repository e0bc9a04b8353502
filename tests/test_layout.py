"""Contexts: the format, what is read besides it, and what is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
import torch.utils._pytree as pytree
from transformers import DynamicCache

import cachetree
from cachetree import LayoutError, _register
from tests.support import CACHES, KINDS, updated

NODE = _register.node_for(DynamicCache)

PLAIN: dict[str, Any] = {"format": 1}

# The contexts of transformers' own registrations: up to 5.15, and from 5.16 on for a cache of two layers.
UPSTREAM: list[Any] = [["key_cache", "value_cache"], [["key_cache", "value_cache"], [None, None]]]

GOLDEN: dict[str, Any] = {
    "no layers": PLAIN,
    "filled": PLAIN,
    "filled, from a config": PLAIN,
    "all empty": {"format": 1, "layers": [{"kind": "full", "empty": True}] * 3},
    "first skipped": {"format": 1, "layers": [{"kind": "full", "empty": True}, {"kind": "full"}, {"kind": "full"}]},
    "middle skipped": {"format": 1, "layers": [{"kind": "full"}, {"kind": "full", "empty": True}, {"kind": "full"}]},
    "last empty": {"format": 1, "layers": [{"kind": "full"}, {"kind": "full"}, {"kind": "full", "empty": True}]},
}


@pytest.mark.parametrize("name", CACHES)
def test_contexts_are_as_documented(name: str) -> None:
    _, context = NODE.flatten(CACHES[name]())
    assert context == GOLDEN[name]
    assert NODE.load(json.loads(json.dumps(NODE.dump(context)))) == context


def test_serialized_name_is_upstreams() -> None:
    assert NODE.name == "transformers.cache_utils.DynamicCache"


@pytest.mark.parametrize("context", UPSTREAM)
def test_contexts_of_transformers_are_read_as_ours(context: Any) -> None:
    assert NODE.load(json.dumps(context)) == PLAIN
    assert NODE.dump(context) == PLAIN


@pytest.mark.parametrize("context", UPSTREAM)
def test_unflatten_takes_the_raw_contexts_of_transformers(context: Any) -> None:
    keys, values = [object(), object()], [object(), object()]
    cache = NODE.unflatten([keys, values], context)
    assert [(layer.keys, layer.values) for layer in cache.layers] == list(zip(keys, values, strict=True))


@pytest.mark.parametrize("context", UPSTREAM)
@pytest.mark.usefixtures("registered")
def test_spec_dumped_under_transformers_own_registration_is_ours(context: Any) -> None:
    leaf: dict[str, Any] = {"type": None, "context": None, "children_spec": []}
    group = {"type": "builtins.list", "context": "null", "children_spec": [leaf, leaf]}
    node = {
        "type": "transformers.cache_utils.DynamicCache",
        "context": json.dumps(context),
        "children_spec": [group, group],
    }
    cache = pytree.tree_unflatten([torch.ones(1)] * 4, pytree.treespec_loads(json.dumps([1, node])))
    assert pytree.tree_structure(cache) == pytree.treespec_loads(json.dumps([1, node]))


def test_contexts_of_every_kind_are_as_documented() -> None:
    """The golden contexts: what stands in files, and is never changed."""
    linear = {
        "is_conv_states_initialized": [True],
        "is_recurrent_states_initialized": [True],
        "has_previous_state": [True],
        "conv_kernel_size": [3],
    }
    golden: dict[str, list[dict[str, Any]]] = {
        "sliding, past the window": [{"kind": "sliding", "sliding_window": 4, "count": 0}] * 2,
        "sliding, one empty": [
            {"kind": "sliding", "empty": True, "sliding_window": 4},
            {"kind": "sliding", "sliding_window": 4, "count": 0},
        ],
        "sliding beside full": [{"kind": "sliding", "sliding_window": 4}, {"kind": "full"}],
        "static, not initialized": [{"kind": "static", "empty": True, "max_cache_len": 16}] * 3,
        "static sliding beside static": [
            {"kind": "static_sliding", "max_cache_len": 4, "count": 0},
            {"kind": "static", "max_cache_len": 16},
        ],
        "LinearAttentionLayer and DynamicLayer": [{"kind": "linear", **linear}, {"kind": "full"}],
        "LinearAttentionAndFullAttentionLayer": [{"kind": "hybrid", **linear}],
        "sliding, recording its past": [{"kind": "sliding", "sliding_window": 4, "record_past": True, "count": 0}] * 2,
        "DummyLayer and DynamicLayer": [{"kind": "dummy"}, {"kind": "full"}],
    }
    for name in golden.keys() & KINDS.keys():
        cache = KINDS[name]()
        _, context = _register.node_for(type(cache)).flatten(cache)
        assert context == {"format": 1, "layers": golden[name]}, name


def test_spec_of_a_window_is_the_same_below_and_above_it() -> None:
    contexts = [NODE.flatten(KINDS[name]())[1] for name in ("sliding", "sliding, past the window")]
    assert contexts[0] == contexts[1]


def test_count_travels_as_a_shape_and_stays_one_object() -> None:
    cache = KINDS["sliding, past the window"]()
    (*_, counts), _ = NODE.flatten(cache)
    assert [tuple(leaf.shape) for leaf in counts] == [(7, 0)]
    assert NODE.flatten(cache)[0][2][0] is counts[0]
    updated(cache, 0, 1, length=2)
    assert [tuple(leaf.shape) for leaf in NODE.flatten(cache)[0][2]] == [(9, 0)]


def test_contexts_of_transformers_with_windows() -> None:
    assert NODE.load(json.dumps([["key_cache", "value_cache"], [4, None]])) == {
        "format": 1,
        "layers": [{"kind": "sliding", "sliding_window": 4}, {"kind": "full"}],
    }
    with pytest.raises(LayoutError, match=r"every layer has a window, \[4, 4\]: .* export again"):
        NODE.load(json.dumps([["key_cache", "value_cache"], [4, 4]]))


REFUSED: dict[str, tuple[Any, str]] = {
    "newer format": ({"format": 2}, r"format 2, but this cachetree knows formats up to 1: .* upgrade cachetree"),
    "unknown kind": (
        {"format": 1, "layers": [{"kind": "full"}, {"kind": "spiral"}]},
        r"layer 1 .* unknown kind 'spiral': expected one of \[.*'full'",
    ),
    "unknown key": ({"format": 1, "sizes": [3]}, r"unknown key 'sizes' .* expected 'format' and 'layers'"),
    "unknown key of a layer": (
        {"format": 1, "layers": [{"kind": "full", "size": 3}]},
        r"layer 0 .* unknown key 'size'",
    ),
    "empty is not True": (
        {"format": 1, "layers": [{"kind": "full", "empty": 0}]},
        r"layer 0 .*'empty' is True or absent",
    ),
    "layers is no list": ({"format": 1, "layers": {"0": "full"}}, r"expected a list of layers .* found \{'0'"),
    "layer is no mapping": ({"format": 1, "layers": ["full"]}, r"layer 0 .* expected a mapping with a 'kind'.* 'full'"),
    "kind is no name": ({"format": 1, "layers": [{"kind": ["full"]}]}, r"layer 0 .* expected a mapping with a 'kind'"),
    "format is no number": ({"format": True}, r"expected the number of a context format"),
    "format below 1": ({"format": 0}, r"expected the number of a context format"),
    "no format": ({}, r"expected the context of a cache, a mapping with the key 'format', but found \{\}"),
    "None": (None, r"expected the context of a cache"),
    "another library's": (["key_0", "value_0"], r"expected the context of a cache"),
    "no JSON": ("{'format': 1", r"expected the JSON text of a context"),
    "fact of another type": (
        {"format": 1, "layers": [{"kind": "sliding", "sliding_window": "4"}]},
        r"layer 0 .* 'sliding_window' is int, but found '4'",
    ),
    "fact that is missing": ({"format": 1, "layers": [{"kind": "sliding"}]}, r"layer 0 .* expected 'sliding_window'"),
    "count without a leaf before it": (
        {"format": 1, "layers": [{"kind": "sliding", "sliding_window": 4, "count": 1}]},
        r"layer 0 .* expected a count up to 0, but found 1",
    ),
    "count of what is not counted": ({"format": 1, "layers": [{"kind": "full", "count": 0}]}, r"layer 0 .* 'count' is"),
    "deep": ("[" * 100_000, r"expected the JSON text of a context"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_bad_contexts_are_refused(name: str) -> None:
    context, message = REFUSED[name]
    with pytest.raises(LayoutError, match=message):
        NODE.load(context)


@pytest.mark.parametrize(
    ("children", "context", "message"),
    [
        ([[1], [1, 2]], PLAIN, r"expected 1 leaves in the group 'value_cache', but found 2"),
        ([[1, 2], [1]], PLAIN, r"expected 2 leaves in the group 'value_cache', but found 1"),
        ([[1]], PLAIN, r"expected the 2 groups of leaves .* but found 1"),
        ([[1], [1]], GOLDEN["all empty"], r"expected 0 leaves in the group 'key_cache', but found 1"),
        ([[], []], GOLDEN["first skipped"], r"expected 2 leaves in the group 'key_cache', but found 0"),
        (
            [[1], [1]],
            {"format": 1, "layers": [{"kind": "sliding", "sliding_window": 4}]},
            r"layer 0 of a context: expected a 'count', since no other layer tells it",
        ),
    ],
)
def test_leaves_that_do_not_fit_are_refused(children: Any, context: Any, message: str) -> None:
    with pytest.raises(LayoutError, match=message):
        NODE.unflatten(children, context)


@pytest.mark.usefixtures("registered")
def test_bad_context_in_a_dumped_spec_is_refused_and_changes_nothing() -> None:
    text = pytree.treespec_dumps(pytree.tree_structure(CACHES["filled"]()))
    before = dict(pytree.SERIALIZED_TYPE_TO_PYTHON_TYPE)
    with pytest.raises(LayoutError, match="format 9"):
        pytree.treespec_loads(text.replace('"format": 1', '"format": 9'))
    assert before == pytree.SERIALIZED_TYPE_TO_PYTHON_TYPE
    assert isinstance(LayoutError("x"), cachetree.CachetreeError)
