"""The structures that torch.export wants for a cache."""

from __future__ import annotations

from typing import Any

from cachetree import _register
from cachetree.access import require_cache
from cachetree.errors import UnsupportedCacheError

__all__ = ["dynamic_shapes"]


def dynamic_shapes(cache: Any, *, batch: Any = None, length: Any = None) -> list[list[dict[int, Any]]]:
    """Give the dynamic shapes of *cache*, in the nesting of its children, as `torch.export.export` wants them.

    torch specialises an axis whose size in the example is 0 or 1, whatever is said here: build the example with a
    batch of at least 2, and let it have seen at least 2 tokens.

    Args:
        cache: the example that is exported with, of a class that `register` has made a node.
        batch: what the batch axis is, a `torch.export.Dim` or ``Dim.AUTO``; None: as it is in the example.
        length: the same for the number of tokens in the cache.

    Returns:
        ``[[{0: batch, 2: length}, …], [{0: batch, 2: length}, …]]`` for the keys and the values, each with an entry
        per filled layer.

    Raises:
        UnsupportedCacheError: *cache* is no cache, is not registered, or holds a layer that cannot be a node.

    Example:
        >>> shapes = cachetree.dynamic_shapes(cache, batch=Dim.AUTO, length=Dim.AUTO)  # doctest: +SKIP
    """
    require_cache(cache, "dynamic_shapes()")
    node = _register.standing_node(type(cache))
    if node is None:
        raise UnsupportedCacheError(_how_to_register(type(cache)))
    return [[_axes({leaf.batch: batch, leaf.length: length}) for leaf in group] for group in node.leaves(cache)]


def _axes(dims: dict[int | None, Any]) -> dict[int, Any]:
    return {axis: dim for axis, dim in dims.items() if axis is not None and dim is not None}


def _how_to_register(cls: type) -> str:
    parent = next((base for base in cls.__mro__[1:] if _register.standing_node(base) is not None), None)
    if parent is not None:
        return (
            f"{cls.__name__} is a subclass of {parent.__name__}, which is registered, but torch matches exact types: "
            f"call cachetree.register({cls.__name__}) as well"
        )
    _register.node_for(cls)
    return (
        f"{cls.__name__} is not registered by cachetree, so torch would not export with this structure: "
        f"call cachetree.register() first"
    )
