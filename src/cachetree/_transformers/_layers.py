"""What the layers of transformers hold: a declaration for each class, from what a release answers about them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from transformers import cache_utils

from cachetree._kinds import Derived, Fact, LayerKind, Leaf

if TYPE_CHECKING:
    from cachetree._transformers.current import Adapter

__all__ = ["layer_kinds"]

# Keys and values are (batch, heads, length, head size) in every release.
_GROWING = (Leaf("keys", "key_cache", 0, 2), Leaf("values", "value_cache", 0, 2))
_BUFFERS = (Leaf("keys", "key_cache", 0), Leaf("values", "value_cache", 0))
_NOTHING_YET: tuple[tuple[str, object], ...] = (("keys", None), ("values", None))


def layer_kinds(release: Adapter) -> dict[type, LayerKind]:
    """Give the kind of each layer class of a release that can be carried."""
    full, sliding, static, static_sliding = _attention_kinds(release)
    linear = _linear_kind(release)
    by_name = {
        "DynamicLayer": full,
        "DynamicSlidingWindowLayer": sliding,
        "StaticLayer": static,
        **{layer: replace(static_sliding, name=name) for layer, name in release.static_sliding_layers().items()},
        "LinearAttentionLayer": linear,
        "LinearAttentionAndFullAttentionLayer": _both("hybrid", linear, full),
        "LinearAttentionAndSlidingWindowAttentionLayer": _both("hybrid_sliding", linear, sliding),
        "LinearAttentionAndStaticFullAttentionLayer": _both("hybrid_static", linear, static),
        "LinearAttentionAndStaticSlidingWindowAttentionLayer": _both("hybrid_static_sliding", linear, static_sliding),
        "DummyLayer": LayerKind("dummy", constants=(*_NOTHING_YET, ("is_initialized", True))),
    }
    return {getattr(cache_utils, name): kind for name, kind in by_name.items() if hasattr(cache_utils, name)}


def _attention_kinds(release: Adapter) -> tuple[LayerKind, LayerKind, LayerKind, LayerKind]:
    device = Derived("device", "keys", "device")
    of_keys = (device, Derived("dtype", "keys", "dtype")) if release.keeps_dtype() else (device,)
    full = LayerKind("full", _GROWING, derived=of_keys, constants=_NOTHING_YET, tells_length=True)
    past = (Fact("record_past", "bool", default=False),) if release.records_past() else ()
    sliding = replace(
        full,
        name="sliding",
        facts=(Fact("sliding_window", "int"), *past),
        count="cumulative_length",
        window="sliding_window",
        tells_length=False,
    )
    counter = (Leaf("cumulative_length", "cumulative_length", batch=None, flag=None),)
    sizes = (
        Derived(release.batch_size_name(), "keys", 0),
        Derived("num_heads", "keys", 1),
        *(Derived(name, leaf, 3) for name, leaf in zip(release.head_size_names(), ("keys", "values"), strict=True)),
    )
    static = LayerKind(
        "static",
        (*_BUFFERS, *(counter if release.has_static_counter_tensor() else ())),
        (Fact("max_cache_len", "int"),),
        (*of_keys, *sizes),
        _NOTHING_YET,
    )
    # Whether it can be cropped depends on a length that the layer does not keep: a rebuilt one cannot.
    croppable = (("_is_croppable", False),) if release.keeps_croppable() else ()
    static_sliding = replace(
        static,
        name="static_sliding",
        count="cumulative_length_int" if release.has_static_counter_tensor() else "cumulative_length",
        constants=(*_NOTHING_YET, *croppable),
    )
    return full, sliding, static, static_sliding


def _linear_kind(release: Adapter) -> LayerKind:
    one = not release.keys_linear_states()
    states = [
        Leaf(name, name, 0, flag=f"is_{name}_initialized", keyed=True, single=one)
        for name in ("conv_states", "recurrent_states")
    ]
    facts = [
        *(
            Fact(f"is_{name}_initialized", "bool", keyed=True, single=one)
            for name in ("conv_states", "recurrent_states")
        ),
        Fact("has_previous_state", "bool", keyed=True, single=one),
        Fact("conv_kernel_size", "int or None", keyed=True, single=one),
        *(() if one else (Fact("number_of_states", "int", default=1), Fact("record_past", "bool", default=False))),
    ]
    size = (Derived(release.batch_size_name(), "conv_states", 0),) if one else ()
    return LayerKind(
        "linear",
        tuple(states),
        tuple(facts),
        (Derived("device", "conv_states", "device"), Derived("dtype", "conv_states", "dtype"), *size),
        (("conv_states", None), ("recurrent_states", None)) if one else (("device", None), ("dtype", None)),
    )


def _both(name: str, linear: LayerKind, attention: LayerKind) -> LayerKind:
    """Join what a linear attention layer and a layer with keys and values hold."""
    return LayerKind(
        name,
        (*attention.leaves, *linear.leaves),
        (*attention.facts, *(fact for fact in linear.facts if fact not in attention.facts)),
        (*linear.derived, *attention.derived),
        tuple(dict((*attention.constants, *linear.constants)).items()),
        attention.count,
        attention.window,
        attention.tells_length,
    )
