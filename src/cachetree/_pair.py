"""A cache that holds one cache for self-attention and one for cross-attention, as a node: both are its children."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cachetree import _layout
from cachetree._node import NodeSpec
from cachetree.errors import LayoutError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from cachetree._kinds import Leaf
    from cachetree._layout import Context
    from cachetree._transformers.current import Adapter

__all__ = ["PairCache"]

_NAMES = ("self_attention_cache", "cross_attention_cache")


class PairCache:
    """Takes the encoder-decoder caches of one class apart and rebuilds them."""

    def __init__(self, cls: type, adapter: Adapter, leaves_of: Callable[[Any], list[list[Leaf]]]) -> None:
        self.cls = cls
        self.adapter = adapter
        self.leaves_of = leaves_of

    def spec(self) -> NodeSpec:
        """Give the node that torch is to know."""
        return NodeSpec(
            cls=self.cls,
            flatten=self.flatten,
            unflatten=self.unflatten,
            child_names=lambda _: _NAMES,
            dump=_canonical,
            load=lambda data: _canonical(_layout.parsed(data)),
            leaves=self.leaves,
        )

    def flatten(self, pair: Any) -> tuple[list[Any], Context]:
        """Give the two caches, and a context that says which layers have what the encoder gave if that is not plain."""
        caches = [pair.self_attention_cache, pair.cross_attention_cache]
        updated = list(pair.is_updated.values())
        if updated == self.adapter.filled_layers(caches[1]):
            return caches, {"format": _layout.FORMAT}
        return caches, {"format": _layout.FORMAT, "is_updated": updated}

    def unflatten(self, children: Iterable[Any], context: Any) -> Any:
        """Rebuild a cache around *children*: two caches, or whatever else torch puts there.

        Raises:
            LayoutError: the context is unknown, or there are not two children.
        """
        caches = list(children)
        if len(caches) != len(_NAMES):
            raise LayoutError(f"expected the children {list(_NAMES)}, but found {len(caches)}")
        return self.adapter.pair_with(self.cls, caches, _updated(context))

    def leaves(self, pair: Any) -> list[list[list[Leaf]]]:
        """Give the declarations of the leaves of both caches."""
        return [self.leaves_of(pair.self_attention_cache), self.leaves_of(pair.cross_attention_cache)]


def _updated(context: Any) -> list[bool] | None:
    """Read a context.

    Raises:
        LayoutError: it is malformed, or of a newer format.
    """
    _layout.checked(context, "is_updated")
    updated: list[bool] | None = context.get("is_updated")
    if "is_updated" in context and not (isinstance(updated, list) and all(type(flag) is bool for flag in updated)):
        raise LayoutError(f"expected 'is_updated' to be a list of bool, but found {updated!r}")
    return updated


def _canonical(context: Any) -> Context:
    updated = _updated(context)
    return {"format": _layout.FORMAT} if updated is None else {"format": _layout.FORMAT, "is_updated": updated}
