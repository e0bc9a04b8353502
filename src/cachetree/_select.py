"""Which adapter serves an installed release. The one place that reads version strings."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from packaging.version import Version

from cachetree import _support_window as window
from cachetree.errors import UnsupportedTorchError, UnsupportedTransformersError

if TYPE_CHECKING:
    from cachetree._torch.current import Adapter as TorchAdapter
    from cachetree._transformers.current import Adapter as TransformersAdapter

__all__ = ["Adapters", "adapters", "installed", "minor_of", "name_of_torch_adapter", "name_of_transformers_adapter"]

Minor: TypeAlias = "tuple[int, int]"


class Adapters(NamedTuple):
    """The two adapters of this process."""

    torch: TorchAdapter
    transformers: TransformersAdapter


def minor_of(version: str) -> Minor:
    """Give (major, minor): ``2.7.0.dev20250101``, ``2.6.0a0+gitabc`` and ``2.6.0+cpu`` are what their numbers say."""
    major, minor, *_ = (*Version(version).release, 0)
    return major, minor


def dotted(minor: Minor) -> str:
    """Write (2, 6) as ``2.6``."""
    return ".".join(map(str, minor))


def _lowest_bound_above(minor: Minor, named: tuple[tuple[Minor | None, str], ...]) -> str:
    return next(name for bound, name in named if bound is None or minor < bound)


def name_of_torch_adapter(version: str) -> str:
    """Name the module in ``cachetree._torch`` that serves *version*.

    Raises:
        UnsupportedTorchError: *version* is below the oldest row of the matrix.
    """
    minor = minor_of(version)
    if minor < window.TORCH_FLOOR:
        raise UnsupportedTorchError(
            f"cachetree supports torch {dotted(window.TORCH_FLOOR)} and later (tested up to "
            f"{dotted(window.TORCH_NEWEST)}), but torch {version} is installed. Install a newer torch."
        )
    return window.TORCH_ONLY.get(minor) or _lowest_bound_above(minor, window.TORCH_ADAPTERS)


def name_of_transformers_adapter(version: str) -> str:
    """Name the module in ``cachetree._transformers`` that serves *version*.

    Raises:
        UnsupportedTransformersError: *version* is below the floor of the matrix.
    """
    minor = minor_of(version)
    if minor < window.TRANSFORMERS_FLOOR:
        raise UnsupportedTransformersError(
            f"cachetree supports transformers {dotted(window.TRANSFORMERS_FLOOR)} and later (tested up to "
            f"{dotted(window.TRANSFORMERS_NEWEST)}), but transformers {version} is installed. Install a newer one."
        )
    return _lowest_bound_above(minor, window.TRANSFORMERS_ADAPTERS)


def installed() -> tuple[str, str]:
    """Give the versions of torch and transformers as they name themselves."""
    import torch
    import transformers

    return str(torch.__version__), str(transformers.__version__)


@cache
def adapters() -> Adapters:
    """Select both adapters, once per process.

    Raises:
        UnsupportedTorchError: the installed torch is too old.
        UnsupportedTransformersError: the installed transformers is too old.
    """
    torch_version, transformers_version = installed()
    names = (
        f"cachetree._torch.{name_of_torch_adapter(torch_version)}",
        f"cachetree._transformers.{name_of_transformers_adapter(transformers_version)}",
    )
    return Adapters(*(import_module(name).Adapter() for name in names))
