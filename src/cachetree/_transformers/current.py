"""transformers as it is from 5.24 on."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._python_dispatch import _disable_current_modes
from transformers import cache_utils
from transformers.cache_utils import Cache, DynamicCache, DynamicLayer, EncoderDecoderCache, StaticCache

from cachetree._transformers._layers import layer_kinds
from cachetree.errors import UnsupportedCacheError

if TYPE_CHECKING:
    from cachetree._kinds import LayerKind

__all__ = ["Adapter"]

# Why layers of these classes cannot be nodes at all, and what to do instead.
_IMPOSSIBLE = {
    "QuantizedLayer": "which holds packed tensors and cannot be a pytree node; export with an unquantized cache",
    "BaseQuantizedLayer": "which holds packed tensors and cannot be a pytree node; export with an unquantized cache",
}

# The attributes of a cache that are not state of its layers, in every release that keeps its state in layers.
_SHELL = frozenset({"layers", "layer_class_to_replicate", "offloading"})

# Where a cache keeps the leaves that carry counts, so that the next flatten gives the same objects.
_COUNT_LEAVES = "_cachetree_count_leaves"

_WINDOW_TENSORS: dict[int, torch.Tensor] = {}


class Adapter:
    """What is in a cache and how it is rebuilt."""

    # -- what differs between releases, one question each ------------------------------------------------------------

    def keeps_dtype(self) -> bool:
        """Whether a layer that holds keys also keeps their dtype."""
        return False

    def keeps_croppable(self) -> bool:
        """Whether a static sliding layer keeps whether it can be cropped."""
        return True

    def records_past(self) -> bool:
        """Whether a sliding layer can be told to keep what has left its window."""
        return True

    def keys_linear_states(self) -> bool:
        """Whether a linear attention layer keeps any number of states, in dicts."""
        return True

    def batch_size_name(self) -> str:
        """Name the attribute in which a static layer keeps its batch size."""
        return "batch_size"

    def has_static_counter_tensor(self) -> bool:
        """Whether a static layer counts its tokens in a tensor."""
        return True

    def head_size_names(self) -> tuple[str, str]:
        """Name the attributes in which a static layer keeps the head sizes of its keys and of its values."""
        return "k_head_dim", "v_head_dim"

    def static_sliding_layers(self) -> dict[str, str]:
        """Name the classes of static layers with a window, and their kinds."""
        return {"StaticSlidingWindowLayer": "static_sliding"}

    def set_window_tensor(self, layer: Any, window: int) -> None:
        """Give a sliding layer the tensor that it hands out for data parallelism: of its window, never written to."""
        layer._sliding_window_tensor = _window_tensor(window)

    def is_filled(self, layer: Any) -> bool:
        """Tell whether a layer holds keys and values yet."""
        return bool(layer.is_initialized)

    def mark(self, layer: Any, *, filled: bool) -> None:
        """Set the flag by which a layer itself knows whether it holds keys and values yet."""
        layer.is_initialized = filled

    def masks_without_vmap(self) -> AbstractContextManager[None]:
        """Build attention masks without vmap; transformers does."""
        return nullcontext()

    # -- kinds of layers ---------------------------------------------------------------------------------------------

    @cached_property
    def _kinds(self) -> dict[type, LayerKind]:
        return layer_kinds(self)

    def kinds(self) -> dict[type, LayerKind]:
        """Give the kind of each layer class of this release that can be carried."""
        return self._kinds

    # -- caches ------------------------------------------------------------------------------------------------------

    def cache_classes(self) -> tuple[type, ...]:
        """List the cache classes that `register` covers without being asked for a particular one."""
        return tuple(cls for cls in self.all_cache_classes() if self.covers(cls) or self.is_pair(cls))

    def all_cache_classes(self) -> tuple[type, ...]:
        """List the cache classes that ``transformers.cache_utils`` defines, each under its own name."""
        found = (value for name, value in vars(cache_utils).items() if getattr(value, "__name__", None) == name)
        return tuple(cls for cls in found if isinstance(cls, type) and issubclass(cls, Cache) and cls is not Cache)

    def covers(self, cls: type) -> bool:
        """Tell whether *cls* is a cache class that is kept as a list of layers."""
        return issubclass(cls, DynamicCache | StaticCache)

    def is_pair(self, cls: type) -> bool:
        """Tell whether *cls* is a cache class that holds one cache for self-attention and one for cross-attention."""
        return issubclass(cls, EncoderDecoderCache)

    def is_cache(self, candidate: object) -> bool:
        """Tell whether *candidate* is a cache of transformers, of whatever class."""
        return isinstance(candidate, Cache)

    def cache_with(self, cls: type, layers: list[Any]) -> Any:
        """Make a cache of class *cls* with these layers.

        A dynamic one can grow by further layers, as one from ``DynamicCache()`` does: a context does not tell whether
        the original could, so that those of ``DynamicCache()`` and ``DynamicCache(config=…)`` are interchangeable.
        """
        cache: Any = object.__new__(cls)
        cache.layers = layers
        cache.layer_class_to_replicate = DynamicLayer if issubclass(cls, DynamicCache) else None
        cache.offloading = False
        return cache

    def pair_with(self, cls: type, caches: list[Any], updated: list[bool] | None) -> Any:
        """Make a cache of class *cls* of one for self-attention and one for cross-attention.

        *updated* says for which layers the second holds what the encoder gave; None: those that are filled.
        """
        pair: Any = object.__new__(cls)
        pair.self_attention_cache, pair.cross_attention_cache = caches
        flags = self.filled_layers(caches[1]) if updated is None else updated
        pair.is_updated = dict(enumerate(flags))
        return pair

    def filled_layers(self, cache: Any) -> list[bool]:
        """Tell of each layer whether it holds keys and values; of what is no cache, nothing."""
        kinds = self.kinds()
        found = []
        for layer in getattr(cache, "layers", []):
            kind = kinds.get(type(layer))
            found.append(kind is not None and kind.has_keys and self.is_filled(layer))
        return found

    def count_leaves(self, cache: Any) -> list[Any]:
        """Give the leaves that carried the counts of *cache* when it was flattened last, or that it was made with."""
        return list(getattr(cache, _COUNT_LEAVES, ()))

    def keep_count_leaves(self, cache: Any, leaves: list[Any]) -> None:
        """Have the next flatten find these leaves."""
        setattr(cache, _COUNT_LEAVES, leaves)

    def count_of(self, leaf: Any) -> Any:
        """Read a number of tokens from the shape of a leaf; None from what has no shape."""
        shape = getattr(leaf, "shape", None)
        return None if shape is None else shape[0]

    def length_of(self, keys: Any) -> Any:
        """Read a number of tokens from the shape of keys; -1, which is no count, from what has no shape."""
        shape = getattr(keys, "shape", None)
        if shape is None:
            return -1
        return shape[2] if len(shape) > 2 else 0

    def require_plain_state(self, cache: Any) -> None:
        """Refuse a cache that holds more than its layers.

        Raises:
            UnsupportedCacheError: it offloads, or its class has attributes of its own.
        """
        if cache.offloading:
            raise UnsupportedCacheError(
                f"this {type(cache).__name__} offloads its layers through a prefetch stream, which cannot be a leaf "
                "of a pytree; export with a cache made without offloading=True"
            )
        # Dynamo cannot look into the attributes of an object; a compiled function does without this check.
        if not torch.compiler.is_dynamo_compiling() and len(cache.__dict__) > len(_SHELL):
            further = [name for name in cache.__dict__ if name not in _SHELL and name != _COUNT_LEAVES]
            if further:
                raise UnsupportedCacheError(
                    f"a {type(cache).__name__} holds {further} besides its layers, and cachetree does not know "
                    "whether that is state to carry; remove it, or use a cache with no attributes of its own"
                )

    def reason_against(self, layer: object) -> str:
        """Say why a layer cannot be carried, as the end of "layer 3 is a SomeLayer, …"."""
        for name, reason in _IMPOSSIBLE.items():
            impossible = getattr(cache_utils, name, None)
            if impossible is not None and isinstance(layer, impossible):
                return reason
        return "whose state cachetree does not know"

    def prepare_to_load(self) -> None:
        """Import what saved programs of transformers models refer to: the classes of their outputs."""
        import transformers.modeling_outputs  # noqa: F401  (registers the classes with torch)


def _window_tensor(window: int) -> torch.Tensor:
    """Give a tensor with the size of a window, one for the process, that is no part of any graph being traced."""
    found = _WINDOW_TENSORS.get(window)
    if found is None:
        if torch.compiler.is_dynamo_compiling():
            return torch.tensor(window)
        with _disable_current_modes():
            found = _WINDOW_TENSORS[window] = torch.tensor(window)
    return found
