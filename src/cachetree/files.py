"""Saved programs that outlive the process, and the release of transformers, that wrote them."""

from __future__ import annotations

from os import PathLike
from pathlib import Path
from typing import IO, Any, TypeAlias

import torch

from cachetree import _register, _select
from cachetree.errors import InvalidArgumentError

__all__ = ["load", "save"]

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
    bare: Any = program
    examples = bare._example_inputs
    bare._example_inputs = None
    try:
        torch.export.save(program, _opened(file))
    finally:
        bare._example_inputs = examples


def load(file: File) -> torch.export.ExportedProgram:
    """Load an exported program; in a fresh process this one call is enough.

    Registers the cache classes for good, and imports what saved programs of transformers models refer to.

    Args:
        file: what `save` or `torch.export.save` wrote.

    Raises:
        UnsupportedTorchError: the installed torch is too old.
        UnsupportedTransformersError: the installed transformers is too old.
        AlreadyRegisteredError: somebody else has registered a cache class.
    """
    adapters = _select.adapters()
    _register.register()
    adapters.transformers.prepare_to_load()
    adapters.torch.prepare_to_load()
    return torch.export.load(_opened(file))


def _opened(file: File) -> Any:
    return Path(file) if isinstance(file, str | PathLike) else file
