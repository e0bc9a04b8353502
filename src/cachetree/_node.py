"""What a class is to torch, independent of how a release of torch wants to be told."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from cachetree import _layout

__all__ = ["Children", "NodeSpec"]

Children: TypeAlias = "list[list[Any]]"


@dataclass(frozen=True)
class NodeSpec:
    """A cache class as a node.

    Attributes:
        cls: the class; torch matches exact types.
        flatten: gives the children and the context of an instance.
        unflatten: the inverse; takes any objects as leaves and runs no tensor operation.
        child_names: the key of each child in key paths, from the context.
        dump: gives the form of a context that goes into a file.
        load: the inverse; reads also what transformers itself has written.
        leaves: the declarations of an instance's leaves, nested as its children are.
    """

    cls: type
    flatten: Callable[[Any], tuple[Children, _layout.Context]]
    unflatten: Callable[[Iterable[Any], Any], Any]
    child_names: Callable[[_layout.Context], tuple[str, ...]]
    dump: Callable[[Any], _layout.Context]
    load: Callable[[Any], _layout.Context]
    leaves: Callable[[Any], Any]

    @property
    def name(self) -> str:
        """The serialized type name, a part of the file format."""
        return f"{self.cls.__module__}.{self.cls.__qualname__}"
