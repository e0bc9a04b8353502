"""The structures that torch.export wants for a cache."""

from __future__ import annotations

from typing import Any

from cachetree import _register, _select
from cachetree.access import require_cache
from cachetree.errors import UnsupportedCacheError

__all__ = ["dynamic_shapes"]


def dynamic_shapes(cache: Any, *, batch: Any = None, length: Any = None, cross_length: Any = None) -> list[Any]:
    """Give the dynamic shapes of *cache*, in the nesting of its children, as `torch.export.export` wants them.

    torch specialises an axis whose size in the example is 0 or 1, whatever is said here: build the example with a
    batch of at least 2, and let it have seen at least 2 tokens. Make its tensors contiguous: torch 2.6 and 2.7 cannot
    load a program that was exported from views, which are what a layer holds once its window is full.

    Args:
        cache: the example that is exported with, of a class that `register` has made a node.
        batch: what the batch axis is, a `torch.export.Dim` or ``Dim.AUTO``; None: as it is in the example.
        length: the same for the number of tokens in the cache: the length of keys and values that grow, and the count
            that a cache with windows only carries. Static buffers, full windows and recurrent states have none.
        cross_length: the same for the number of tokens of the encoder, of which the cross-attention of an
            encoder-decoder cache keeps the keys and values; they do not grow.

    Returns:
        ``[[{0: batch, 2: length}, …], [{0: batch, 2: length}, …]]`` for the keys and the values, each with an entry
        per filled layer, and further lists where a cache has further groups; for an encoder-decoder cache a list of
        this for each of its two caches.

    Raises:
        UnsupportedCacheError: *cache* is no cache, is not registered, or holds a layer that cannot be a node.

    Example:
        >>> shapes = cachetree.dynamic_shapes(cache, batch=Dim.AUTO, length=Dim.AUTO)  # doctest: +SKIP
    """
    require_cache(cache, "dynamic_shapes()")
    node = _register.standing_node(type(cache))
    if node is None:
        raise UnsupportedCacheError(_how_to_register(type(cache)))
    leaves = node.leaves(cache)
    if _select.adapters().transformers.is_pair(type(cache)):
        return [_nested(leaves[0], batch, length), _nested(leaves[1], batch, cross_length)]
    shapes: list[Any] = _nested(leaves, batch, length)
    return shapes


def _nested(leaves: Any, batch: Any, length: Any) -> Any:
    if isinstance(leaves, list):
        return [_nested(one, batch, length) for one in leaves]
    return _axes({leaves.batch: batch, leaves.length: length})


def _axes(dims: dict[int | None, Any]) -> dict[int, Any]:
    return {axis: dim for axis, dim in dims.items() if axis is not None and dim is not None}


def _how_to_register(cls: type) -> str:
    parent = next((base for base in cls.__mro__[1:] if _register.standing_node(base) is not None), None)
    if parent is not None:
        return (
            f"{cls.__name__} is a subclass of {parent.__name__}, which is registered, but torch matches exact types: "
            f"call cachetree.register({cls.__name__}) as well"
        )
    owner = _register.owner_of(cls)
    if owner is not None:
        return (
            f"{cls.__name__} is registered by {owner}, and only that knows the structure; "
            "call cachetree.register(on_conflict='replace') to have ours"
        )
    return (
        f"{cls.__name__} is not registered by cachetree, so torch would not export with this structure: "
        "call cachetree.register() first"
    )
