"""Saved programs that outlive the process, and the release of transformers, that wrote them."""

from __future__ import annotations

import copy
from typing import IO, TYPE_CHECKING, Any, TypeAlias

import torch

from cachetree import _register, _select
from cachetree.errors import InvalidArgumentError

if TYPE_CHECKING:
    from os import PathLike

__all__ = ["load", "save"]

# The registration that loading made, one for the process however often it loads.
_HANDLES: list[_register.Registration] = []

File: TypeAlias = "str | PathLike[str] | IO[bytes]"


def save(program: torch.export.ExportedProgram, file: File) -> None:
    """Save an exported program without its example inputs.

    `torch.export.save` pickles the example inputs, cache objects included, which ties a file to the classes of one
    release of transformers. The program keeps its example inputs; the file has none.

    Args:
        program: what `torch.export.export` gave.
        file: where to; a path or a binary file. The usual suffix is ``.pt2``.

    Raises:
        InvalidArgumentError: *program* is no exported program.
    """
    if not isinstance(program, torch.export.ExportedProgram):
        raise InvalidArgumentError(f"save() expected an ExportedProgram, but found a {type(program).__name__}")
    bare: Any = copy.copy(program)
    bare._example_inputs = None
    torch.export.save(bare, file)


def load(file: File) -> torch.export.ExportedProgram:
    """Load an exported program; in a fresh process this one call is enough.

    Registers the cache classes for good, unless it fails, and imports what saved programs of transformers models refer
    to.

    Args:
        file: what `save` or `torch.export.save` wrote.

    Raises:
        UnsupportedTorchError: the installed torch is too old.
        UnsupportedTransformersError: the installed transformers is too old.
        AlreadyRegisteredError: somebody else has registered a cache class.
    """
    adapters = _select.adapters()
    handle = _register.register_at((), "error", stacklevel=3)
    try:
        adapters.transformers.prepare_to_load()
        adapters.torch.prepare_to_load()
        program = torch.export.load(file)
    except BaseException:
        handle.undo()
        raise
    for standing in _HANDLES:
        standing.undo()
    _HANDLES[:] = [handle]
    return program
