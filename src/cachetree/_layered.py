"""A cache that is a list of layers, as a node: the layers' leaves in groups, and a context of kinds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cachetree import _layout
from cachetree._kinds import FULL, Leaf
from cachetree._layout import Context, LayerEntry
from cachetree._node import Children, NodeSpec
from cachetree.errors import LayoutError, UnsupportedCacheError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from cachetree._transformers.current import Adapter

__all__ = ["LayeredCache"]


class LayeredCache:
    """Takes the caches of one class apart and rebuilds them."""

    def __init__(self, cls: type, adapter: Adapter) -> None:
        self.cls = cls
        self.adapter = adapter
        self.full_layer: type[Any] = next(layer for layer, kind in self.adapter.kinds().items() if kind is FULL)

    def spec(self) -> NodeSpec:
        """Give the node that torch is to know."""
        return NodeSpec(
            cls=self.cls,
            name=f"{self.cls.__module__}.{self.cls.__qualname__}",
            flatten=self.flatten,
            unflatten=self.unflatten,
            child_names=self.child_names,
            leaves=self.leaves,
        )

    def flatten(self, cache: Any) -> tuple[Children, Context]:
        """Give the groups of leaves and the context.

        Raises:
            UnsupportedCacheError: the cache holds state that cannot be carried; the message names the layer.
        """
        self.adapter.require_plain_state(cache)
        keys: list[Any] = []
        values: list[Any] = []
        is_filled = self.adapter.is_filled
        full_layer: Any = self.full_layer
        for layer in cache.layers:
            if type(layer) is not full_layer or not is_filled(layer):
                return self._flatten_any(cache)
            keys.append(layer.keys)
            values.append(layer.values)
        return [keys, values], {"format": _layout.FORMAT}

    def _flatten_any(self, cache: Any) -> tuple[Children, Context]:
        entries = self._entries(cache)
        groups: dict[str, list[Any]] = {name: [] for name in _groups_of(entries)}
        for layer, entry in zip(cache.layers, entries, strict=True):
            if entry.filled:
                for leaf in entry.kind.leaves:
                    groups[leaf.group].append(getattr(layer, leaf.attribute))
        return list(groups.values()), _layout.make(entries)

    def _entries(self, cache: Any) -> list[LayerEntry]:
        kinds = self.adapter.kinds()
        entries = []
        for index, layer in enumerate(cache.layers):
            kind = kinds.get(type(layer))
            if kind is None:
                raise UnsupportedCacheError(_refusal(index, layer, self.adapter.reason_against(layer), kinds))
            entries.append(LayerEntry(kind, self.adapter.is_filled(layer)))
        return entries

    def unflatten(self, children: Iterable[Any], context: object) -> Any:
        """Rebuild a cache around *children*, whatever its leaves are: tensors, ints, None, any object.

        Raises:
            LayoutError: the context is unknown, or the children do not fit it.
        """
        groups = list(children)
        entries = _layout.entries_of(context)
        if entries is None:
            entries = [LayerEntry(FULL, filled=True)] * (len(groups[0]) if groups else 0)
        names = _groups_of(entries)
        if len(groups) != len(names):
            raise LayoutError(f"expected the {len(names)} groups of leaves {list(names)}, but found {len(groups)}")
        used = [0] * len(names)
        layers = []
        for entry in entries:
            layer = object.__new__(self.full_layer)  # no constructor: it may want arguments, and costs more
            layers.append(layer)
            if entry.filled:
                leaves = []
                for leaf in entry.kind.leaves:
                    at = names.index(leaf.group)
                    leaves.append(groups[at][used[at]] if used[at] < len(groups[at]) else None)
                    used[at] += 1
                self.adapter.fill(layer, *leaves)
            else:
                self.adapter.clear(layer)
        for name, group, wanted in zip(names, groups, used):  # noqa: B905  (Dynamo of torch 2.5 knows no strict=)
            if len(group) != wanted:
                raise LayoutError(f"expected {wanted} leaves in the group {name!r}, but found {len(group)}")
        return self.adapter.cache_with(self.cls, layers)

    def child_names(self, context: object) -> tuple[str, ...]:
        """Name the groups of a cache with this context."""
        return _groups_of(_layout.entries_of(context) or [])

    def leaves(self, cache: Any) -> list[list[Leaf]]:
        """Give the declaration of each leaf of *cache*, in the nesting of its children."""
        entries = self._entries(cache)
        groups: dict[str, list[Leaf]] = {name: [] for name in _groups_of(entries)}
        for entry in entries:
            if entry.filled:
                for leaf in entry.kind.leaves:
                    groups[leaf.group].append(leaf)
        return list(groups.values())


def _groups_of(entries: list[LayerEntry]) -> tuple[str, ...]:
    names = list(_layout.GROUPS)
    for entry in entries:  # plain loops: the Dynamo of torch 2.5 and 2.6 traces this, and knows no generators
        for leaf in entry.kind.leaves:
            if leaf.group not in names:
                names.append(leaf.group)
    return tuple(names)


def _refusal(index: int, layer: object, reason: str, kinds: dict[type, Any]) -> str:
    known = ", ".join(sorted(cls.__name__ for cls in kinds))
    return (
        f"layer {index} is a {type(layer).__name__} ({type(layer).__module__}), {reason}. "
        f"cachetree carries caches whose layers are all of: {known}"
    )
