"""Make the KV caches of transformers proper pytree nodes of torch.

`register` is the one call that most projects need:

    >>> import cachetree
    >>> handle = cachetree.register()  # doctest: +SKIP

After it `torch.export` takes caches as inputs and returns them as outputs. Importing this package imports neither
torch nor transformers, and registers nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from cachetree.errors import (
    AlreadyRegisteredError,
    CachetreeError,
    InvalidArgumentError,
    LayoutError,
    OldTorchWarning,
    UnsupportedCacheError,
    UnsupportedTorchError,
    UnsupportedTransformersError,
)

if TYPE_CHECKING:
    from cachetree._exportable import exportable
    from cachetree._register import Registration, register
    from cachetree._status import ClassStatus, Environment, GateInfo, environment, status
    from cachetree.access import cache_argument, cache_of
    from cachetree.files import load, save
    from cachetree.shapes import dynamic_shapes

__version__ = "0.1.0"

__all__ = [
    "AlreadyRegisteredError",
    "CachetreeError",
    "ClassStatus",
    "Environment",
    "GateInfo",
    "InvalidArgumentError",
    "LayoutError",
    "OldTorchWarning",
    "Registration",
    "UnsupportedCacheError",
    "UnsupportedTorchError",
    "UnsupportedTransformersError",
    "__version__",
    "cache_argument",
    "cache_of",
    "dynamic_shapes",
    "environment",
    "exportable",
    "load",
    "register",
    "save",
    "status",
]

# What imports torch is imported at its first use. The modules whose function has the module's own name are private,
# because importing a submodule binds its name in this package and would hide the function.
_HOMES = {
    "ClassStatus": "_status",
    "Environment": "_status",
    "GateInfo": "_status",
    "Registration": "_register",
    "cache_argument": "access",
    "cache_of": "access",
    "dynamic_shapes": "shapes",
    "environment": "_status",
    "exportable": "_exportable",
    "load": "files",
    "register": "_register",
    "save": "files",
    "status": "_status",
}


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(import_module(f"{__name__}.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
