"""Access to what transformers names and keeps differently from release to release."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from typing import Any

import torch

from cachetree import _select
from cachetree.errors import InvalidArgumentError, UnsupportedCacheError

__all__ = ["cache_argument", "cache_of", "require_cache"]

# In the order in which transformers introduced them last: a model that has two of them takes the newest as its cache.
_NAMES = ("cache", "past_key_values", "cache_params")


def cache_argument(model: torch.nn.Module) -> str:
    """Name the argument of ``model.forward`` that takes the cache.

    transformers renamed it from ``past_key_values`` to ``cache`` in 5.24; state space models have ``cache_params``.
    Below 5.40 the old name still works in eager calls, but `torch.export` matches names with the signature, so keyword
    arguments and dynamic shapes have to use this one.

    Args:
        model: an instance of a model.

    Returns:
        ``"cache"``, ``"past_key_values"`` or ``"cache_params"``.

    Raises:
        InvalidArgumentError: *model* is no `torch.nn.Module`, or its ``forward`` takes no cache.

    Example:
        >>> cachetree.cache_argument(model)  # doctest: +SKIP
        'past_key_values'
    """
    if not isinstance(model, torch.nn.Module):
        raise InvalidArgumentError(f"cache_argument() expected a model, a torch.nn.Module, but found {model!r}")
    parameters = inspect.signature(model.forward).parameters
    for name in _NAMES:
        if name in parameters:
            return name
    raise InvalidArgumentError(
        f"{type(model).__name__}.forward takes no cache: expected one of {', '.join(_NAMES)} among its arguments, "
        f"but found {', '.join(parameters)}"
    )


def cache_of(outputs: Any) -> Any:
    """Give the cache among the outputs of a model, whatever its field is called.

    Args:
        outputs: what a model or an exported program returned: a ``ModelOutput``, another mapping, or a tuple.

    Returns:
        The cache, the same object.

    Raises:
        UnsupportedCacheError: there is none, or more than one under no known name.

    Example:
        >>> cache = cachetree.cache_of(model(input_ids=ids))  # doctest: +SKIP
    """
    is_cache = _select.adapters().transformers.is_cache
    if is_cache(outputs):
        return outputs
    if isinstance(outputs, Mapping):
        for name in _NAMES:
            # Not every release has a common base for its caches: those of state space models were classes of their own.
            if not isinstance(outputs.get(name), torch.Tensor | tuple | list | None):
                return outputs[name]
        fields = {str(name): value for name, value in outputs.items()}
    elif isinstance(outputs, Iterable) and not isinstance(outputs, str | bytes | torch.Tensor):
        fields = {str(index): value for index, value in enumerate(outputs)}
    else:
        fields = {}
    caches = {name: value for name, value in fields.items() if is_cache(value)}
    if len(caches) == 1:
        return next(iter(caches.values()))
    found = {name: type(value).__name__ for name, value in fields.items()} or type(outputs).__name__
    count = f"several caches, in {', '.join(caches)}," if caches else "no cache"
    raise UnsupportedCacheError(
        f"cache_of() found {count} in the outputs: expected one in a field such as {', '.join(_NAMES)}, but found "
        f"{found}; a model returns its cache when it is called with use_cache=True"
    )


def require_cache(cache: object, caller: str) -> None:
    """Refuse what is no instance of a cache class.

    Raises:
        UnsupportedCacheError: *cache* is a class, or no cache.
    """
    if isinstance(cache, type):
        raise UnsupportedCacheError(
            f"{caller} expected a cache, but found the class {cache.__name__}; pass an instance: {cache.__name__}(…)"
        )
    if not _select.adapters().transformers.is_cache(cache):
        raise UnsupportedCacheError(
            f"{caller} expected a cache of transformers, such as a DynamicCache, but found a {type(cache).__name__}"
        )
