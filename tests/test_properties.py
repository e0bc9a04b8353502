"""Whatever layers a cache is made of, nothing is lost and nothing changes places; whatever a context is, it is data."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from transformers import DynamicCache, cache_utils

from cachetree import LayoutError, _register
from tests.support import state, updated

NODE = _register.node_for(DynamicCache)

LAYERS = [
    name
    for name in (
        "DynamicLayer",
        "DynamicSlidingWindowLayer",
        "StaticLayer",
        "StaticSlidingWindowLayer",
        "LinearAttentionLayer",
        "LinearAttentionAndFullAttentionLayer",
        "DummyLayer",
    )
    if hasattr(cache_utils, name)
]

layers = st.lists(st.tuples(st.sampled_from(LAYERS), st.booleans(), st.integers(1, 9)), max_size=7)
tensors = st.fixed_dictionaries({"dtype": st.sampled_from([torch.float32, torch.float16, torch.int64])})

moderately = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def build(chosen: list[tuple[str, bool, int]], window: int, batch: int, tensor: dict[str, Any]) -> Any:
    """Make a cache of these layers: their classes, whether they hold something, and how many tokens they have seen."""
    cache: Any = DynamicCache()
    for index, (name, filled, length) in enumerate(chosen):
        arguments = {"sliding_window": window} if "Sliding" in name else {}
        layer = getattr(cache_utils, name)(**arguments, **({"max_cache_len": 16} if "Static" in name else {}))
        cache.layers.append(layer)
        if filled and hasattr(layer, "update_conv_state"):
            layer.update_conv_state(torch.full((batch, 4, 3), index, **tensor))
        if filled and hasattr(layer, "keys") and name != "DummyLayer":
            updated(cache, index, batch=batch, length=length, **tensor)
    return cache


@moderately
@given(layers, st.integers(2, 5), st.integers(1, 3), tensors)
def test_no_layer_is_lost_or_moved(chosen: Any, window: int, batch: int, tensor: dict[str, Any]) -> None:
    cache = build(chosen, window, batch, tensor)
    children, context = NODE.flatten(cache)
    read = NODE.load(json.loads(json.dumps(NODE.dump(context))))
    assert read == context
    rebuilt = NODE.unflatten(children, read)
    assert state(rebuilt) == state(cache)
    again, context_again = NODE.flatten(rebuilt)
    assert context_again == context
    assert [[id(leaf) for leaf in group] for group in again] == [[id(leaf) for leaf in group] for group in children]
    assert [len(group) for group in NODE.leaves(cache)] == [len(group) for group in children]


@moderately
@given(layers, st.integers(2, 5), st.integers(1, 9))
def test_context_does_not_depend_on_how_much_has_been_seen(chosen: Any, window: int, other: int) -> None:
    """As long as all layers have seen the same number of tokens, as those of a model have."""
    contexts = [
        NODE.flatten(build([(name, filled, length) for name, filled, _ in chosen], window, 2, {}))[1]
        for length in (other, 3)
    ]
    assert contexts[0] == contexts[1]


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8) | st.sampled_from(["full", "sliding", "format"]),
    lambda inner: st.lists(inner, max_size=4)
    | st.dictionaries(
        st.sampled_from(["format", "layers", "kind", "empty", "count", "sliding_window", "conv_kernel_size"]), inner
    ),
    max_leaves=12,
)
plausible = st.fixed_dictionaries({"format": st.just(1) | json_values, "layers": st.lists(json_values, max_size=3)})


@settings(max_examples=300, deadline=None)
@given(json_values | plausible | st.text(max_size=30))
def test_any_data_is_a_context_or_is_refused(data: Any) -> None:
    try:
        context = NODE.load(data)
    except LayoutError:
        return
    assert NODE.load(json.loads(json.dumps(context))) == context
    try:
        NODE.unflatten([[1, 2], [3, 4]], context)
    except LayoutError:
        return


@pytest.mark.parametrize("name", LAYERS)
def test_every_layer_of_the_table_is_carried(name: str) -> None:
    """What the strategies above choose from is what the node knows."""
    assert getattr(cache_utils, name) in NODE.unflatten.__self__.kinds  # type: ignore[attr-defined]
