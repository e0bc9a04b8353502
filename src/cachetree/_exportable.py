"""What registration cannot reach: the obstacles that a model itself puts in the way of export."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, TypeVar

import torch

from cachetree import _select
from cachetree.errors import InvalidArgumentError

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["exportable"]

Model = TypeVar("Model", bound=torch.nn.Module)


@contextmanager
def exportable(model: Model) -> Iterator[Model]:
    """Take the known obstacles of the installed torch and transformers out of the way of exporting *model*.

    Which they are is in `cachetree.environment().gates`, with the reason for each. Where there are none, nothing is
    changed. On exit, also after an exception, everything is as it was; a program that was exported inside works
    outside.

    Args:
        model: the module to export, or one that contains it.

    Yields:
        *model* itself.

    Raises:
        InvalidArgumentError: *model* is not a `torch.nn.Module`.
        UnsupportedTorchError: the installed torch is too old.
        UnsupportedTransformersError: the installed transformers is too old.

    Example:
        >>> with cachetree.exportable(model):  # doctest: +SKIP
        ...     program = torch.export.export(model, (), {"input_ids": ids, "past_key_values": cache}, strict=False)
    """
    if not isinstance(model, torch.nn.Module):
        raise InvalidArgumentError(
            f"exportable() expected the torch.nn.Module to export, but found {model!r}; pass an instance of the model"
        )
    adapters = _select.adapters()
    with ExitStack() as stack:
        stack.enter_context(adapters.torch.traceable_modules(model))
        stack.enter_context(adapters.torch.traceable_masks(adapters.transformers))
        yield model
