"""What the state of a layer is: declarations, with no knowledge of any release.

Flatten, unflatten, key paths, contexts and `dynamic_shapes` are all derived from a `LayerKind`. Which layer class is
of which kind in which release is for ``cachetree._transformers`` to say.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["FULL", "KINDS", "LayerKind", "Leaf"]


@dataclass(frozen=True)
class Leaf:
    """One tensor of a layer.

    Attributes:
        attribute: where the layer keeps it.
        group: the list of leaves, among the children of the cache, that it travels in.
        batch: its batch axis, or None.
        length: the axis that grows with every token, or None for a buffer of fixed size.
    """

    attribute: str
    group: str
    batch: int | None
    length: int | None


@dataclass(frozen=True)
class LayerKind:
    """What a layer's leaves are. `name` stands in contexts, so it is a part of the file format."""

    name: str
    leaves: tuple[Leaf, ...]


# Keys and values are (batch, heads, length, head size) in every release.
FULL = LayerKind("full", (Leaf("keys", "key_cache", 0, 2), Leaf("values", "value_cache", 0, 2)))

KINDS = {kind.name: kind for kind in (FULL,)}
