"""Contexts: what is known of a cache besides its leaves, as plain JSON data.

``docs/layout.md`` describes the format, which is written into every saved program and therefore frozen. A context
holds structure only: which layer is of which kind, and which are empty. Never a count of tokens, a device or a dtype,
so that caches of any length have equal contexts.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from cachetree.errors import LayoutError

if TYPE_CHECKING:
    from cachetree._kinds import Fact, LayerKind

__all__ = [
    "FORMAT",
    "FULL",
    "GROUPS",
    "Context",
    "LayerEntry",
    "checked",
    "dump",
    "entries_of",
    "load",
    "make",
    "parsed",
]

FORMAT = 1

# The groups that every cache has, also an empty one. They lead; the groups of further kinds follow in the order in
# which the layers bring them.
GROUPS = ("key_cache", "value_cache")

# The kind of which all layers of a plain cache are.
FULL = "full"

Context: TypeAlias = "dict[str, object]"
Kinds: TypeAlias = "dict[type, LayerKind]"


class LayerEntry(NamedTuple):
    """One layer in a context.

    Attributes:
        kind: its kind.
        filled: whether it holds keys and values yet.
        facts: the structure that is not at its default, by attribute.
        counted_by: which leaf of the group of counts has its number of tokens; None if it has none or a shape tells it.
    """

    kind: LayerKind
    filled: bool
    facts: dict[str, Any]
    counted_by: int | None


def make(entries: list[LayerEntry]) -> Context:
    """Build the context of a cache with these layers.

    A plain cache, whose layers are all full attention and filled, has one context for any number of layers.
    """
    plain = True
    layers: list[dict[str, object]] = []
    for kind, filled, facts, count in entries:  # a loop, which the Dynamo of torch 2.5 and 2.6 traces
        plain = plain and filled and kind.name == FULL
        layer: dict[str, object] = {"kind": kind.name}
        if not filled:
            layer["empty"] = True
        layer.update(facts)
        if count is not None:
            layer["count"] = count
        layers.append(layer)
    return {"format": FORMAT} if plain else {"format": FORMAT, "layers": layers}


def checked(data: Any, *keys: str) -> dict[str, Any]:
    """Require a context of a known format that has, besides it, at most these keys.

    Raises:
        LayoutError: it is malformed, or of a newer format.
    """
    if not isinstance(data, dict) or "format" not in data:
        raise LayoutError(f"expected the context of a cache, a mapping with the key 'format', but found {data!r}")
    if type(data["format"]) is not int or data["format"] < 1:
        raise LayoutError(f"expected the number of a context format, at most {FORMAT}, but found {data['format']!r}")
    if data["format"] > FORMAT:
        raise LayoutError(
            f"this context has format {data['format']}, but this cachetree knows formats up to {FORMAT}: "
            "it was written by a newer release; upgrade cachetree"
        )
    for key in data:
        if key != "format" and key not in keys:
            wanted = " and ".join(map(repr, ("format", *keys)))
            raise LayoutError(f"unknown key {key!r} in a context of format {FORMAT}: expected {wanted}")
    return data


def parsed(data: object) -> object:
    """Read the JSON text that torch writes for a context which has no way of its own; leave other data as it is.

    Raises:
        LayoutError: it is text, but no JSON.
    """
    if not isinstance(data, str):
        return data
    try:
        return json.loads(data)
    except (json.JSONDecodeError, RecursionError) as error:
        raise LayoutError(f"expected the JSON text of a context, but found {data[:80]!r}") from error


def entries_of(context: object, kinds: Kinds) -> list[LayerEntry] | None:
    """Read a context: an entry for each layer, or None for a plain cache of any number of layers.

    Raises:
        LayoutError: *context* is malformed, of a newer format, or names an unknown kind.
    """
    data = checked(_upgraded(context), "layers")
    if "layers" not in data:
        return None
    layers = data["layers"]
    if not isinstance(layers, list):
        raise LayoutError(f"expected a list of layers in a context, but found {layers!r}")
    entries = []
    counts = 0
    for index, layer in enumerate(layers):
        entry = _entry(index, layer, kinds)
        if entry.counted_by is not None:
            if entry.counted_by > counts:
                found = entry.counted_by
                raise LayoutError(f"layer {index} of a context: expected a count up to {counts}, but found {found}")
            counts = max(counts, entry.counted_by + 1)
        entries.append(entry)
    return entries


def _entry(index: int, layer: object, kinds: Kinds) -> LayerEntry:
    if not isinstance(layer, dict) or not isinstance(layer.get("kind"), str):
        raise LayoutError(f"layer {index} of a context: expected a mapping with a 'kind', but found {layer!r}")
    kind = None
    for known in kinds.values():
        if known.name == layer["kind"]:
            kind = known
    if kind is None:
        names = sorted([known.name for known in kinds.values()])
        raise LayoutError(
            f"layer {index} of a context is of the unknown kind {layer['kind']!r}: expected one of {names}; "
            "another transformers, or a newer cachetree, may know it"
        )
    facts: dict[str, Any] = {}
    for fact in kind.facts:
        if fact.attribute in layer:
            facts[fact.attribute] = _fact(index, fact, layer[fact.attribute])
        elif fact.default is None:
            raise LayoutError(f"layer {index} of a context: expected {fact.attribute!r} for the kind {kind.name!r}")
    for key in layer:
        if key not in facts and key not in ("kind", "empty", "count"):
            raise LayoutError(f"layer {index} of a context: unknown key {key!r} for the kind {kind.name!r}")
    if layer.get("empty", True) is not True or ("empty" in layer and not kind.has_keys):
        raise LayoutError(f"layer {index} of a context: 'empty' is True or absent, but found {layer['empty']!r}")
    count = layer.get("count")
    if count is not None and (type(count) is not int or count < 0 or kind.count is None):
        raise LayoutError(f"layer {index} of a context: 'count' is the number of a leaf, but found {count!r}")
    return LayerEntry(kind, "empty" not in layer, facts, count)


def _fact(index: int, fact: Fact, value: Any) -> Any:
    values = value if fact.keyed else [value]
    fits = isinstance(values, list) and (len(values) == 1 or not fact.single)
    if fits:
        for one in values:
            fits = fits and (
                type(one) is (bool if fact.type == "bool" else int) or (fact.type == "int or None" and one is None)
            )
    if not fits:
        wanted = f"a list of {fact.type}" if fact.keyed else fact.type
        raise LayoutError(f"layer {index} of a context: {fact.attribute!r} is {wanted}, but found {value!r}")
    return value


def dump(context: object, kinds: Kinds) -> Context:
    """Give the form of a context that goes into a file (torch's ``to_dumpable_context``)."""
    return _canonical(context, kinds)


def load(data: object, kinds: Kinds) -> Context:
    """Read what a file holds (torch's ``from_dumpable_context``).

    Takes our own form, and the JSON text that torch writes for the contexts of transformers' own registrations, so
    that programs saved under those load.

    Raises:
        LayoutError: *data* is malformed, of a newer format, or names an unknown kind.
    """
    return _canonical(parsed(data), kinds)


def _canonical(context: object, kinds: Kinds) -> Context:
    entries = entries_of(context, kinds)
    return {"format": FORMAT} if entries is None else make(entries)


def _upgraded(context: Any) -> Any:
    """Map the two contexts that transformers writes onto ours; leave everything else as it is.

    ``integrations/executorch.py`` (and, up to 4.55, ``cache_utils.py``) writes the names of the two groups; from 5.16
    on a pair of these names and, for each layer, its sliding window or None. Neither tells which layers are empty.
    """
    if context == list(GROUPS):
        return {"format": FORMAT}
    if not _is_names_and_windows(context):
        return context
    if any(context[1]) and None not in context[1]:
        raise LayoutError(
            f"this context was written by transformers for a cache of which every layer has a window, {context[1]}: "
            "its leaves do not tell how many tokens it has seen; export again after cachetree.register()"
        )
    layers = [
        {"kind": FULL} if window is None else {"kind": "sliding", "sliding_window": window} for window in context[1]
    ]
    return {"format": FORMAT, "layers": layers} if any(context[1]) else {"format": FORMAT}


def _is_names_and_windows(context: object) -> bool:
    return (
        isinstance(context, list)
        and len(context) == 2
        and context[0] == list(GROUPS)
        and isinstance(context[1], list)
        and all(window is None or type(window) is int for window in context[1])
    )
