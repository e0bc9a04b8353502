"""torch < 2.6. Unnecessary from 2.6 on: delete this file with the last row that names it."""

from __future__ import annotations

import threading
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
    entered: list[torch.nn.ModuleList] = []
    try:
        for module in model.modules():
            # An own __getitem__ decides for itself what a slice is; ours is that of a context around this one.
            own = type(module).__getitem__ if isinstance(module, torch.nn.ModuleList) else None
            if isinstance(module, torch.nn.ModuleList) and (own is torch.nn.ModuleList.__getitem__ or own is _item):
                _enter(module)
                entered.append(module)
        yield
    finally:
        for module in entered:
            _exit(module)


# Per module that is changed at present, by its id: its own class and the number of contexts that it is in.
_ENTERED: dict[int, tuple[type, int]] = {}
_LOCK = threading.Lock()


def _enter(module: torch.nn.ModuleList) -> None:
    with _LOCK:
        cls, contexts = _ENTERED.get(id(module), (type(module), 0))
        _ENTERED[id(module)] = cls, contexts + 1
        if contexts == 0:
            module.__class__ = _sliced(cls)


def _exit(module: torch.nn.ModuleList) -> None:
    with _LOCK:
        cls, contexts = _ENTERED.pop(id(module))
        if contexts > 1:
            _ENTERED[id(module)] = cls, contexts - 1
        else:
            module.__class__ = cls


def _item(self: Any, index: Any) -> Any:
    if isinstance(index, slice):
        return list(self._modules.values())[index]
    return torch.nn.ModuleList.__getitem__(self, index)


def _sliced(cls: type) -> type:
    """Derive a class whose slices hold the same modules in a list; its name stays, since exports record it."""

    def of_own_class(self: Any, protocol: Any) -> Any:
        """Have copies and pickles be of the class itself."""
        reduced: Any = torch.nn.ModuleList.__reduce_ex__(self, protocol)
        _, _, *state = reduced
        return (object.__new__, (cls,), *state)

    members = {"__getitem__": _item, "__reduce_ex__": of_own_class, "__module__": cls.__module__}
    return type(cls.__name__, (cls,), members)
