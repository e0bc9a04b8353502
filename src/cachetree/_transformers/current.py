"""transformers as it is from 5.24 on."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

from transformers import cache_utils
from transformers.cache_utils import Cache, DynamicCache, DynamicLayer

from cachetree._kinds import FULL, LayerKind
from cachetree.errors import UnsupportedCacheError

__all__ = ["Adapter"]

_KINDS: dict[type, LayerKind] = {DynamicLayer: FULL}

# Why layers of these classes cannot be nodes at all, and what to do instead.
_IMPOSSIBLE = {
    "QuantizedLayer": "which holds packed tensors and cannot be a pytree node; export with an unquantized cache",
    "BaseQuantizedLayer": "which holds packed tensors and cannot be a pytree node; export with an unquantized cache",
}


class Adapter:
    """What is in a cache and how it is rebuilt."""

    def cache_classes(self) -> tuple[type, ...]:
        """List the cache classes that `register` covers without being asked for a particular one."""
        return (DynamicCache,)

    def all_cache_classes(self) -> tuple[type, ...]:
        """List the cache classes that ``transformers.cache_utils`` defines, each under its own name."""
        found = (value for name, value in vars(cache_utils).items() if getattr(value, "__name__", None) == name)
        return tuple(cls for cls in found if isinstance(cls, type) and issubclass(cls, Cache) and cls is not Cache)

    def covers(self, cls: type) -> bool:
        """Tell whether *cls* is a cache class that is kept as a list of layers of known kinds."""
        return issubclass(cls, DynamicCache)

    def is_cache(self, candidate: object) -> bool:
        """Tell whether *candidate* is a cache of transformers, of whatever class."""
        return isinstance(candidate, Cache)

    def kinds(self) -> dict[type, LayerKind]:
        """Give the kind of each layer class that can be carried."""
        return _KINDS

    def is_filled(self, layer: Any) -> bool:
        """Tell whether a layer holds tensors yet."""
        return bool(layer.is_initialized)

    def fill(self, layer: Any, keys: Any, values: Any) -> None:
        """Put leaves into a new layer, as its own lazy initialization would have."""
        layer.keys = keys
        layer.values = values
        self.mark(layer, filled=True)
        # A leaf need not be a tensor: torch and its backends unflatten ints, strings and placeholders too.
        layer.device = getattr(keys, "device", None)

    def clear(self, layer: Any) -> None:
        """Make a new layer one that holds nothing yet."""
        layer.keys = None
        layer.values = None
        self.mark(layer, filled=False)

    def mark(self, layer: Any, *, filled: bool) -> None:
        """Set the flag by which a layer itself knows whether it holds tensors yet."""
        layer.is_initialized = filled

    def cache_with(self, cls: type, layers: list[Any]) -> Any:
        """Make a cache of class *cls* with these layers.

        It can grow by further layers, as one from ``DynamicCache()`` does: a context does not tell whether the
        original could, so that the caches of ``DynamicCache()`` and ``DynamicCache(config=…)`` are interchangeable.
        """
        cache = DynamicCache()
        cache.layers = layers
        if cls is not DynamicCache:
            cache.__class__ = cls
        return cache

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
        if type(cache) is not DynamicCache:
            further = vars(cache).keys() - {"layers", "layer_class_to_replicate", "offloading"}
            if further:
                raise UnsupportedCacheError(
                    f"a {type(cache).__name__} holds {sorted(further)} besides its layers, and cachetree does not know "
                    "whether that is state to carry; expected a subclass of DynamicCache with no attributes of its own"
                )

    def reason_against(self, layer: object) -> str:
        """Say why a layer cannot be carried, as the end of "layer 3 is a SomeLayer, …"."""
        for name, reason in _IMPOSSIBLE.items():
            impossible = getattr(cache_utils, name, None)
            if impossible is not None and isinstance(layer, impossible):
                return reason
        return "whose state cachetree does not know"

    def masks_without_vmap(self) -> AbstractContextManager[None]:
        """Build attention masks without vmap; transformers does."""
        return nullcontext()

    def prepare_to_load(self) -> None:
        """Import what saved programs of transformers models refer to: the classes of their outputs."""
        import transformers.modeling_outputs  # noqa: F401  (registers the classes with torch)
