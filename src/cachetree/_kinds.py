"""What the state of a layer is: declarations, with no knowledge of any release.

Flatten, unflatten, key paths, contexts and `dynamic_shapes` are all derived from a `LayerKind`. Which layer class is
of which kind in which release is for ``cachetree._transformers`` to say.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["COUNTS", "Derived", "Fact", "LayerKind", "Leaf"]

# The group of the leaves that carry a number of tokens as their shape, (count, 0).
COUNTS = "seen_tokens"


@dataclass(frozen=True)
class Leaf:
    """A tensor of a layer, or one tensor for each of its states.

    Attributes:
        attribute: where the layer keeps it; with *keyed*, a dict of them by the index of the state.
        group: the list of leaves, among the children of the cache, that it travels in.
        batch: its batch axis, or None.
        length: the axis that grows with every token, or None for a buffer of fixed size.
        flag: the attribute that says whether the tensor is there; with *keyed*, a dict. ``"filled"`` stands for what a
            layer with keys and values has for it; None: the tensor is always there.
        keyed: whether there is one for each state.
        single: of *keyed*, that there is one state only, kept without a dict around it.
    """

    attribute: str
    group: str
    batch: int | None = 0
    length: int | None = None
    flag: str | None = "filled"
    keyed: bool = False
    single: bool = False


@dataclass(frozen=True)
class Fact:
    """Structure that travels in the context: the same for every length, batch, dtype and device.

    Attributes:
        attribute: where the layer keeps it, and its key in the context; with *keyed*, a dict by the index of the state,
            which stands in the context as a list.
        type: what it is.
        default: the value that is left out of the context; None: it is always there.
        keyed: whether there is one for each state.
        single: of *keyed*, that there is one state only, kept without a dict around it.
    """

    attribute: str
    type: Literal["int", "bool", "int or None"]
    default: int | bool | None = None
    keyed: bool = False
    single: bool = False


@dataclass(frozen=True)
class Derived:
    """An attribute that follows from a leaf, so that nothing has to carry it.

    Attributes:
        attribute: where the layer keeps it.
        leaf: the attribute of the tensor that it is read from.
        read: ``"device"``, ``"dtype"`` or the axis whose size it is.
    """

    attribute: str
    leaf: str
    read: str | int


@dataclass(frozen=True)
class LayerKind:
    """What a layer holds. `name`, and the groups and facts, stand in contexts: they are a part of the file format.

    Attributes:
        name: the kind's name in contexts.
        leaves: its tensors.
        facts: its structure.
        derived: what follows from the leaves.
        constants: attributes of every layer of this kind that a layer has from its start, in this order.
        count: the attribute that counts the tokens seen, as a Python number, where no leaf's shape has it.
        window: the attribute with the size of the window beyond which keys and values do not grow, or None.
        tells_length: whether the size of its keys is the number of tokens seen.
    """

    name: str
    leaves: tuple[Leaf, ...] = ()
    facts: tuple[Fact, ...] = ()
    derived: tuple[Derived, ...] = ()
    constants: tuple[tuple[str, object], ...] = ()
    count: str | None = None
    window: str | None = None
    tells_length: bool = False

    @property
    def has_keys(self) -> bool:
        """Whether it is a layer that is filled with keys and values at its first update."""
        return any(leaf.flag == "filled" for leaf in self.leaves)
