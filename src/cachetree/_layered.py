"""A cache that is a list of layers, as a node: the layers' leaves in groups, and a context of kinds.

Loops are plain in what `flatten` and `unflatten` run: Dynamo traces them inside compiled functions, and that of torch
2.5 and 2.6 knows neither generators nor ``zip(…, strict=True)``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cachetree import _layout
from cachetree._kinds import COUNTS, LayerKind, Leaf
from cachetree._layout import Context, LayerEntry
from cachetree._node import Children, NodeSpec
from cachetree.errors import LayoutError, UnsupportedCacheError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from cachetree._transformers.current import Adapter

__all__ = ["LayeredCache"]

# The leaf that carries a number of tokens as its shape: (count, 0), so that the count is dynamic, and without bytes.
_COUNT_LEAF = Leaf("seen tokens", COUNTS, batch=None, length=0, flag=None)


class LayeredCache:
    """Takes the caches of one class apart and rebuilds them."""

    def __init__(self, cls: type, adapter: Adapter) -> None:
        self.cls = cls
        self.adapter = adapter
        self.kinds = adapter.kinds()
        self.classes = {kind.name: layer for layer, kind in self.kinds.items()}
        self.full_layer: Any = self.classes[_layout.FULL]
        self.full = self.kinds[self.full_layer]
        self.full_derived = [(derived.attribute, str(derived.read)) for derived in self.full.derived]

    def spec(self) -> NodeSpec:
        """Give the node that torch is to know."""
        return NodeSpec(
            cls=self.cls,
            flatten=self.flatten,
            unflatten=self.unflatten,
            child_names=self.child_names,
            dump=lambda context: _layout.dump(context, self.kinds),
            load=lambda data: _layout.load(data, self.kinds),
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
        full_layer = self.full_layer
        for layer in cache.layers:
            if type(layer) is not full_layer or not is_filled(layer):
                return self._flatten_any(cache)
            keys.append(layer.keys)
            values.append(layer.values)
        return [keys, values], {"format": _layout.FORMAT}

    def _flatten_any(self, cache: Any) -> tuple[Children, Context]:
        entries = self._entries(cache)
        counts = self._count_leaves(cache, entries)
        names = _groups_of(entries)
        groups: list[list[Any]] = []
        for _ in names:
            groups.append([])  # noqa: PERF401  (see the module's docstring)
        for index, entry in enumerate(entries):
            layer = cache.layers[index]
            for leaf in entry.kind.leaves:
                for state in _states(leaf, entry):
                    value = getattr(layer, leaf.attribute)
                    groups[names.index(leaf.group)].append(value if state is None else value[state])
        if counts:
            groups[names.index(COUNTS)].extend(counts)
        return groups, _layout.make(entries)

    def _entries(self, cache: Any) -> list[LayerEntry]:
        entries = []
        is_told, length = self._length(cache.layers)
        counts: list[Any] = []
        for index, layer in enumerate(cache.layers):
            kind = self.kinds.get(type(layer))
            if kind is None:
                reason = self.adapter.reason_against(layer)
                raise UnsupportedCacheError(_refusal(index, layer, reason, list(self.kinds)))
            filled = not kind.has_keys or self.adapter.is_filled(layer)
            facts: dict[str, Any] = {}
            for fact in kind.facts:
                # A fact that may be None may also not be there yet.
                value: Any = getattr(layer, fact.attribute, None)
                if fact.keyed:
                    value = [value] if fact.single else list(value.values())
                if fact.default is None or value != fact.default:
                    facts[fact.attribute] = value
            count = None
            if kind.count is not None and filled:
                seen = getattr(layer, kind.count)
                if not is_told or not _same(seen, length):
                    count = _position(counts, seen)
            entries.append(LayerEntry(kind, filled, facts, count))
        return entries

    def _length(self, layers: list[Any]) -> tuple[bool, Any]:
        """Tell whether there is a layer whose keys have the number of tokens seen, and what the first such has."""
        for layer in layers:
            kind = self.kinds.get(type(layer))
            if kind is not None and kind.tells_length and self.adapter.is_filled(layer):
                return True, self.adapter.length_of(layer.keys)
        return False, None

    def _count_leaves(self, cache: Any, entries: list[LayerEntry]) -> list[Any]:
        """Give the leaves that carry counts, the same objects for as long as the counts are the same.

        torch finds a dynamic axis of an example by the identity of its tensor: flattening twice has to give one leaf.
        """
        wanted: list[Any] = []
        source: Any = None
        for index, entry in enumerate(entries):
            if entry.counted_by is not None and entry.counted_by == len(wanted):
                layer = cache.layers[index]
                wanted.append(getattr(layer, str(entry.kind.count)))
                source = layer.keys
        known = self.adapter.count_leaves(cache)
        leaves = []
        for index, count in enumerate(wanted):
            if index < len(known) and _same(self.adapter.count_of(known[index]), count):
                leaves.append(known[index])
            else:
                leaves.append(source.new_empty((count, 0)))
        if wanted or known:
            self.adapter.keep_count_leaves(cache, leaves)
        return leaves

    def unflatten(self, children: Iterable[Any], context: object) -> Any:
        """Rebuild a cache around *children*, whatever its leaves are: tensors, ints, None, any object.

        Raises:
            LayoutError: the context is unknown, or the children do not fit it.
        """
        groups = list(children)
        if context == {"format": _layout.FORMAT} and len(groups) == 2 and len(groups[0]) == len(groups[1]):
            return self.adapter.cache_with(self.cls, self._full_layers(groups[0], groups[1]))
        entries = _layout.entries_of(context, self.kinds)
        if entries is None:
            entries = [LayerEntry(self.full, True, {}, None)] * (len(groups[0]) if groups else 0)
        names = _groups_of(entries)
        if len(groups) != len(names):
            raise LayoutError(f"expected the {len(names)} groups of leaves {list(names)}, but found {len(groups)}")
        used = [0] * len(names)
        layers = []
        for entry in entries:
            layers.append(self._layer(entry, names, groups, used))  # noqa: PERF401  (see the module's docstring)
        counts = self._set_counts(layers, entries, names, groups, used)
        for at, wanted in enumerate(used):
            if len(groups[at]) != wanted:
                raise LayoutError(f"expected {wanted} leaves in the group {names[at]!r}, but found {len(groups[at])}")
        cache = self.adapter.cache_with(self.cls, layers)
        if counts:
            self.adapter.keep_count_leaves(cache, counts)
        return cache

    def _full_layers(self, keys: list[Any], values: list[Any]) -> list[Any]:
        """Make the layers of a plain cache: what `_layer` makes, without asking the kind anew for each."""
        layers = []
        mark = self.adapter.mark
        for index, key in enumerate(keys):
            layer = object.__new__(self.full_layer)
            layer.keys = key
            layer.values = values[index]
            mark(layer, filled=True)
            for attribute, read in self.full_derived:
                setattr(layer, attribute, getattr(key, read, None))
            layers.append(layer)
        return layers

    def _layer(self, entry: LayerEntry, names: tuple[str, ...], groups: list[Any], used: list[int]) -> Any:
        kind = entry.kind
        layer: Any = object.__new__(self.classes[kind.name])  # no constructor: it may want arguments, and costs more
        for attribute, constant in kind.constants:
            setattr(layer, attribute, constant)
        for fact in kind.facts:
            value: Any = entry.facts.get(fact.attribute, fact.default)
            if fact.keyed:
                value = value[0] if fact.single else dict(enumerate(value))
            if not (fact.single and value is None):
                setattr(layer, fact.attribute, value)
        for leaf in kind.leaves:
            at = names.index(leaf.group)
            if leaf.keyed and not leaf.single:
                setattr(layer, leaf.attribute, dict.fromkeys(range(len(entry.facts[str(leaf.flag)]))))
            for state in _states(leaf, entry):
                tensor = groups[at][used[at]] if used[at] < len(groups[at]) else None
                used[at] += 1
                if state is None or leaf.single:
                    setattr(layer, leaf.attribute, tensor)
                else:
                    getattr(layer, leaf.attribute)[state] = tensor
        if kind.has_keys:
            self.adapter.mark(layer, filled=entry.filled)
        self._derive(layer, entry)
        return layer

    def _derive(self, layer: Any, entry: LayerEntry) -> None:
        for derived in entry.kind.derived:
            for leaf in entry.kind.leaves:
                if leaf.attribute == derived.leaf and _states(leaf, entry):
                    source = getattr(layer, leaf.attribute)
                    if leaf.keyed and not leaf.single:
                        source = source[_states(leaf, entry)[0]]
                    # A leaf need not be a tensor: torch and its backends unflatten ints, strings and placeholders too.
                    if isinstance(derived.read, int):
                        shape = getattr(source, "shape", None)
                        size = shape[derived.read] if shape is not None and len(shape) > derived.read else None
                        setattr(layer, derived.attribute, size)
                    else:
                        setattr(layer, derived.attribute, getattr(source, derived.read, None))
        if entry.kind.window is not None:
            self.adapter.set_window_tensor(layer, getattr(layer, entry.kind.window))

    def _set_counts(
        self, layers: list[Any], entries: list[LayerEntry], names: tuple[str, ...], groups: list[Any], used: list[int]
    ) -> list[Any]:
        is_told, length = self._length(layers)
        leaves = list(groups[names.index(COUNTS)]) if COUNTS in names else []
        for index, entry in enumerate(entries):
            if entry.kind.count is None:
                continue
            seen: Any = 0
            if entry.filled and entry.counted_by is None:
                if not is_told:
                    raise LayoutError(f"layer {index} of a context: expected a 'count', since no other layer tells it")
                seen = length
            elif entry.filled and entry.counted_by is not None:
                at = names.index(COUNTS)
                used[at] = max(used[at], entry.counted_by + 1)
                seen = self.adapter.count_of(leaves[entry.counted_by]) if entry.counted_by < len(leaves) else None
            setattr(layers[index], entry.kind.count, seen)
        return leaves

    def child_names(self, context: object) -> tuple[str, ...]:
        """Name the groups of a cache with this context."""
        return _groups_of(_layout.entries_of(context, self.kinds) or [])

    def leaves(self, cache: Any) -> list[list[Leaf]]:
        """Give the declaration of each leaf of *cache*, in the nesting of its children.

        Raises:
            UnsupportedCacheError: as `flatten`.
        """
        self.adapter.require_plain_state(cache)
        entries = self._entries(cache)
        names = _groups_of(entries)
        groups: dict[str, list[Leaf]] = {name: [] for name in names}
        counts = -1
        for entry, layer in zip(entries, cache.layers, strict=True):
            for leaf in entry.kind.leaves:
                groups[leaf.group] += [self._as_grown(leaf, entry.kind, layer)] * len(_states(leaf, entry))
            counts = max(counts, -1 if entry.counted_by is None else entry.counted_by)
        if counts >= 0:
            groups[COUNTS] += [_COUNT_LEAF] * (counts + 1)
        return list(groups.values())

    def _as_grown(self, leaf: Leaf, kind: LayerKind, layer: Any) -> Leaf:
        """Give a leaf of a layer with a window as one of fixed size once the window is full."""
        if kind.window is None or leaf.length is None or getattr(layer, leaf.attribute) is None:
            return leaf
        full = getattr(layer, leaf.attribute).shape[leaf.length] >= getattr(layer, kind.window) - 1
        return Leaf(leaf.attribute, leaf.group, leaf.batch, None, leaf.flag) if full else leaf


def _states(leaf: Leaf, entry: LayerEntry) -> list[int | None]:
    """List what there is of a leaf: nothing, one tensor (None), or the indices of the states that have one."""
    if leaf.flag is None:
        return [None]
    if leaf.flag == "filled":
        return [None] if entry.filled else []
    flags: Any = entry.facts.get(leaf.flag)
    if not leaf.keyed:
        return [None] if flags else []
    found: list[int | None] = []
    for state, present in enumerate(flags or []):
        if present:
            found.append(state)
    return [None] * len(found) if leaf.single else found


def _groups_of(entries: list[LayerEntry]) -> tuple[str, ...]:
    names = list(_layout.GROUPS)
    counted = False
    for entry in entries:
        for leaf in entry.kind.leaves:
            if leaf.group not in names:
                names.append(leaf.group)
        counted = counted or entry.counted_by is not None
    return (*names, COUNTS) if counted else tuple(names)


def _position(counts: list[Any], seen: Any) -> int:
    """Find a count among those before it, or add it."""
    for at, other in enumerate(counts):
        if _same(other, seen):
            return at
    counts.append(seen)
    return len(counts) - 1


def _same(one: Any, other: Any) -> bool:
    """Compare two numbers of tokens; None stands for that of a leaf that is no tensor."""
    if one is None or other is None:
        return one is other
    return bool(one == other)


def _refusal(index: int, layer: object, reason: str, known: list[type]) -> str:
    names = ", ".join(sorted(cls.__name__ for cls in known))
    return (
        f"layer {index} is a {type(layer).__name__} ({type(layer).__module__}), {reason}. "
        f"cachetree carries caches whose layers are all of: {names}; export with a cache of these, or without one"
    )
