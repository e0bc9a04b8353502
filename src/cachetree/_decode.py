"""Decoding step by step, feeding the returned cache back: with a model, or with a program exported from it."""

from __future__ import annotations

import inspect
import math
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from cachetree import _select, access

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["Saved", "Trace", "decode", "difference", "in_order", "rebuilt", "saved"]


class Trace(NamedTuple):
    """What a decoding run gave: the logits of each step, and the leaves of the last cache."""

    logits: list[torch.Tensor]
    leaves: list[torch.Tensor]


class Saved(NamedTuple):
    """A cache as data: its leaves, and the text of its spec."""

    leaves: list[torch.Tensor]
    spec: str


def saved(cache: Any) -> Saved:
    """Copy a registered cache into data.

    The copies are contiguous: torch makes the strides of an example that is a view symbols of their own, and torch 2.6
    and 2.7 cannot load what was exported with it.
    """
    torch_adapter = _select.adapters().torch
    leaves, spec = torch_adapter.flatten(cache)
    return Saved(
        [leaf.detach().clone(memory_format=torch.contiguous_format) for leaf in leaves], torch_adapter.dumps(spec)
    )


def rebuilt(data: Saved) -> Any:
    """Make a cache of data, with tensors of its own."""
    torch_adapter = _select.adapters().torch
    return torch_adapter.unflatten([leaf.clone() for leaf in data.leaves], torch_adapter.loads(data.spec))


def in_order(arguments: dict[str, Any], model: torch.nn.Module) -> dict[str, Any]:
    """Put keyword arguments into the order of a model's signature.

    torch 2.5 calls an exported module with them in the order of the export only, and torch 2.6 matches those of an
    export with its dynamic shapes by position.
    """
    order = list(inspect.signature(model.forward).parameters)
    return {name: arguments[name] for name in sorted(arguments, key=order.index)}


def decode(call: Callable[..., Any], argument: str, cache: Any, steps: Sequence[dict[str, Any]]) -> Trace:
    """Call with the arguments of each of *steps*, and each time with the cache that the step before returned.

    Each step has *argument* too, in its place among the others, with anything for its value.
    """
    logits = []
    with torch.no_grad():
        for step in steps:
            outputs = call(**{**step, argument: cache})
            logits.append(outputs["logits"])
            cache = access.cache_of(outputs)
    return Trace(logits, _select.adapters().torch.flatten(cache)[0])


def difference(one: Trace, other: Trace) -> float:
    """Give the largest absolute difference; infinity for a NaN, or where shapes, dtypes or counts of tensors differ."""
    left, right = [*one.logits, *one.leaves], [*other.logits, *other.leaves]
    if [(tensor.shape, tensor.dtype) for tensor in left] != [(tensor.shape, tensor.dtype) for tensor in right]:
        return math.inf
    apart = [(a.double() - b.double()).abs().max().item() for a, b in zip(left, right, strict=True) if a.numel()]
    return max(apart, default=0.0) if all(map(math.isfinite, apart)) else math.inf
