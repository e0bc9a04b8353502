"""The errors and the warning that cachetree raises.

Every error is a `CachetreeError` and also the built-in type that a caller would expect for its kind of failure, so
existing ``except TypeError`` or ``except ImportError`` clauses go on working.
"""

from __future__ import annotations

__all__ = [
    "AlreadyRegisteredError",
    "CachetreeError",
    "InvalidArgumentError",
    "LayoutError",
    "OldTorchWarning",
    "UnsupportedCacheError",
    "UnsupportedTorchError",
    "UnsupportedTransformersError",
]


class CachetreeError(Exception):
    """The root of all errors of this package."""


class UnsupportedTorchError(CachetreeError, ImportError):
    """The installed torch is older than the oldest supported one."""


class UnsupportedTransformersError(CachetreeError, ImportError):
    """The installed transformers is older than the oldest supported one."""


class UnsupportedCacheError(CachetreeError, TypeError, RuntimeError):
    """An object is no cache, or a cache that cannot be a pytree node.

    Also a `RuntimeError`, since the registration that ships with transformers raises one in this place.
    """


class AlreadyRegisteredError(CachetreeError, ValueError):
    """A class that was asked for is registered with torch by somebody else."""


class LayoutError(CachetreeError, ValueError):
    """A context or a set of leaves does not have the documented layout (``docs/layout.md``)."""


class InvalidArgumentError(CachetreeError, TypeError, ValueError):
    """An argument other than a cache is of the wrong type or has a value that is not among the allowed ones."""


class OldTorchWarning(UserWarning):
    """Issued once per process by `cachetree.register` on a torch on which exporting caches is known to differ."""
