"""Contexts: what is known of a cache besides its leaves, as plain JSON data.

``docs/layout.md`` describes the format, which is written into every saved program and therefore frozen. A context
holds structure only: which layer is of which kind, and which are empty. Never a count of tokens, a device or a dtype,
so that caches of any length have equal contexts.
"""

from __future__ import annotations

import json
from typing import Any, NamedTuple, TypeAlias

from cachetree._kinds import FULL, KINDS, LayerKind
from cachetree.errors import LayoutError

__all__ = ["FORMAT", "GROUPS", "Context", "LayerEntry", "dump", "entries_of", "load", "make"]

FORMAT = 1

# The groups that every cache has, also an empty one. They lead; the groups of further kinds follow in the order in
# which the layers bring them.
GROUPS = ("key_cache", "value_cache")

Context: TypeAlias = "dict[str, object]"


class LayerEntry(NamedTuple):
    """One layer in a context."""

    kind: LayerKind
    filled: bool


def make(entries: list[LayerEntry]) -> Context:
    """Build the context of a cache with these layers.

    A plain cache, whose layers are all full attention and filled, has one context for any number of layers.
    """
    plain = True
    layers: list[dict[str, object]] = []
    for kind, filled in entries:  # a loop: the Dynamo of torch 2.5 and 2.6 traces this, and knows no generators
        plain = plain and filled and kind.name == FULL.name
        layers.append({"kind": kind.name} if filled else {"kind": kind.name, "empty": True})
    return {"format": FORMAT} if plain else {"format": FORMAT, "layers": layers}


def entries_of(context: object) -> list[LayerEntry] | None:
    """Read a context: an entry for each layer, or None for a plain cache of any number of layers.

    Raises:
        LayoutError: *context* is malformed, of a newer format, or names an unknown kind.
    """
    data = _upgraded(context)
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
        if key not in ("format", "layers"):
            raise LayoutError(f"unknown key {key!r} in a context of format {FORMAT}: expected 'format' and 'layers'")
    if "layers" not in data:
        return None
    layers = data["layers"]
    if not isinstance(layers, list):
        raise LayoutError(f"expected a list of layers in a context, but found {layers!r}")
    entries = []
    for index, layer in enumerate(layers):
        entries.append(_entry(index, layer))
    return entries


def _entry(index: int, layer: object) -> LayerEntry:
    if not isinstance(layer, dict) or not isinstance(layer.get("kind"), str):
        raise LayoutError(f"layer {index} of a context: expected a mapping with a 'kind', but found {layer!r}")
    kind = KINDS.get(layer["kind"])
    if kind is None:
        raise LayoutError(
            f"layer {index} of a context is of the unknown kind {layer['kind']!r}: expected one of {sorted(KINDS)}; "
            "a newer cachetree may know it"
        )
    for key in layer:
        if key not in ("kind", "empty"):
            raise LayoutError(f"layer {index} of a context: unknown key {key!r} for the kind {kind.name!r}")
    if layer.get("empty", True) is not True:
        raise LayoutError(f"layer {index} of a context: 'empty' is True or absent, but found {layer['empty']!r}")
    return LayerEntry(kind, "empty" not in layer)


def dump(context: object) -> Context:
    """Give the form of a context that goes into a file (torch's ``to_dumpable_context``)."""
    return _canonical(context)


def load(data: object) -> Context:
    """Read what a file holds (torch's ``from_dumpable_context``).

    Takes our own form, and the JSON text that torch writes for the contexts of transformers' own registrations, so
    that programs saved under those load.

    Raises:
        LayoutError: *data* is malformed, of a newer format, or names an unknown kind.
    """
    if not isinstance(data, str):
        return _canonical(data)
    try:
        return _canonical(json.loads(data))
    except (json.JSONDecodeError, RecursionError) as error:
        raise LayoutError(f"expected the JSON text of a context, but found {data[:80]!r}") from error


def _canonical(context: object) -> Context:
    entries = entries_of(context)
    return {"format": FORMAT} if entries is None else make(entries)


def _upgraded(context: Any) -> Any:
    """Map the two contexts that transformers writes onto ours; leave everything else as it is.

    ``integrations/executorch.py`` (and, up to 4.55, ``cache_utils.py``) writes the names of the two groups; from 5.16
    on a pair of these names and, for each layer, its sliding window or None. Neither tells which layers are empty.
    """
    if context == list(GROUPS):
        return {"format": FORMAT}
    if _is_names_and_windows(context):
        windows = [window for window in context[1] if window is not None]
        if windows:
            raise LayoutError(
                f"this context was written by transformers for a cache with sliding windows {windows}, which this "
                "cachetree does not carry: export again after cachetree.register()"
            )
        return {"format": FORMAT}
    return context


def _is_names_and_windows(context: object) -> bool:
    return (
        isinstance(context, list)
        and len(context) == 2
        and context[0] == list(GROUPS)
        and isinstance(context[1], list)
        and all(window is None or type(window) is int for window in context[1])
    )
