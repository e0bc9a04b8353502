"""Decoding step by step, feeding the returned cache back: with a model, or with a program exported from it."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from cachetree import _register, access

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["Trace", "cache_from", "decode", "difference", "leaves_of"]


class Trace(NamedTuple):
    """What a decoding run gave: the logits of each step, and the leaves of the last cache."""

    logits: list[torch.Tensor]
    leaves: list[torch.Tensor]


def decode(call: Callable[..., Any], argument: str, cache: Any, tokens: Sequence[torch.Tensor]) -> Trace:
    """Run *tokens*, each (batch, new tokens), through *call*, with the cache that each step returned."""
    logits = []
    with torch.no_grad():
        for ids in tokens:
            outputs = call(**{"input_ids": ids, argument: cache})
            logits.append(outputs["logits"])
            cache = access.cache_of(outputs)
    return Trace(logits, leaves_of(cache))


def leaves_of(cache: Any) -> list[torch.Tensor]:
    """Give the leaves of a cache in their order."""
    children, _ = _register.node_for(type(cache)).flatten(cache)
    return [leaf for group in children for leaf in group]


def cache_from(leaves: Sequence[torch.Tensor]) -> Any:
    """Build a DynamicCache around keys followed by values."""
    from transformers import DynamicCache

    cache = DynamicCache()
    half = len(leaves) // 2
    for index, (keys, values) in enumerate(zip(leaves[:half], leaves[half:], strict=True)):
        cache.update(keys, values, index)
    return cache


def difference(one: Trace, other: Trace) -> float:
    """Give the largest absolute difference; infinity where shapes or numbers of tensors differ, or for a NaN."""
    left, right = [*one.logits, *one.leaves], [*other.logits, *other.leaves]
    if [tensor.shape for tensor in left] != [tensor.shape for tensor in right]:
        return math.inf
    largest = max(((a - b).abs().max().item() for a, b in zip(left, right, strict=True) if a.numel()), default=0.0)
    return largest if math.isfinite(largest) and not any(tensor.isnan().any() for tensor in left) else math.inf
