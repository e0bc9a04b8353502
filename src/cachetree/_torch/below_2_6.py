"""torch < 2.6. Unnecessary from 2.6 on: delete this file with the last row that names it."""

from __future__ import annotations

import warnings
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any

import torch

from cachetree._gate import gate
from cachetree._torch import below_2_7
from cachetree.errors import OldTorchWarning

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Adapter"]


class Adapter(below_2_7.Adapter):
    """How torch is told of a node."""

    _announced = False

    @gate(
        because="this torch exports caches with limits that later ones do not have, which a user should hear of once",
        upstream="https://github.com/huggingface/transformers/pull/36311",
    )
    def announce(self, stacklevel: int) -> None:
        """Issue `OldTorchWarning`, once per process."""
        if self._announced:
            return
        warnings.warn(
            f"torch {torch.__version__} is installed. cachetree supports and tests it, but below torch 2.6 "
            "torch.export has limits of its own: an exported module takes keyword arguments only in the order of the "
            "export, Dim.AUTO cannot be mixed with named dims, Dim.DYNAMIC does not exist, and saved programs cannot "
            "be loaded by a later torch",
            OldTorchWarning,
            stacklevel=stacklevel + 1,
        )
        self._announced = True

    @gate(
        because="the tracer of non-strict export cannot slice a ModuleList: AttrProxy.__init__() misses 'path'",
        upstream="https://github.com/pytorch/pytorch/blob/v2.5.1/torch/fx/experimental/proxy_tensor.py",
    )
    def traceable_modules(self, model: torch.nn.Module) -> AbstractContextManager[None]:
        """Have slices of the ModuleLists in *model* be plain lists, until exit."""
        return _slices_as_lists(model)


@contextmanager
def _slices_as_lists(model: torch.nn.Module) -> Iterator[None]:
    changed: list[tuple[torch.nn.ModuleList, type]] = []
    try:
        for module in model.modules():
            # An own __getitem__ decides for itself what a slice is.
            if isinstance(module, torch.nn.ModuleList) and type(module).__getitem__ is torch.nn.ModuleList.__getitem__:
                changed.append((module, type(module)))
                module.__class__ = _sliced(type(module))
        yield
    finally:
        for module, cls in changed:
            module.__class__ = cls


def _sliced(cls: type) -> type:
    """Derive a class whose slices hold the same modules in a list; its name stays, since exports record it."""

    def item(self: Any, index: Any) -> Any:
        if isinstance(index, slice):
            return list(self._modules.values())[index]
        return torch.nn.ModuleList.__getitem__(self, index)

    return type(cls.__name__, (cls,), {"__getitem__": item, "__module__": cls.__module__})
