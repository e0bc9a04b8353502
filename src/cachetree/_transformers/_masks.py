"""Attention masks by broadcasting, for the releases that build them with vmap."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from transformers import masking_utils as current_masking_utils

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["broadcast_masks"]

# Typed as what it is in older releases: whatever they have.
masking_utils: Any = current_masking_utils

_LOCK = threading.Lock()
_ENTERED = 0
_OVERRIDDEN: dict[str, Any] = {}


@contextmanager
def broadcast_masks() -> Iterator[None]:
    """Override the mask functions for ``sdpa`` and ``eager`` in transformers' registry of them, until exit.

    The registry is one object for the process, and what it held is restored when the last of several overlapping
    contexts exits. A mask is the same with and without vmap, so models that run meanwhile are not affected. A mask
    function that somebody else has put into the registry stays.
    """
    _enter()
    try:
        yield
    finally:
        _exit()


def _enter() -> None:
    global _ENTERED
    registry = masking_utils.ALL_MASK_ATTENTION_FUNCTIONS
    with _LOCK:
        _ENTERED += 1
        if _ENTERED == 1:
            for name, upstream, ours in _REPLACEMENTS:
                if registry[name] is upstream:
                    _OVERRIDDEN[name] = registry._local_mapping.get(name)
                    registry[name] = ours


def _exit() -> None:
    global _ENTERED
    registry = masking_utils.ALL_MASK_ATTENTION_FUNCTIONS
    with _LOCK:
        _ENTERED -= 1
        if _ENTERED == 0:
            for name, _, ours in _REPLACEMENTS:
                if name in _OVERRIDDEN and registry[name] is ours:
                    del registry[name]
                    if _OVERRIDDEN[name] is not None:
                        registry[name] = _OVERRIDDEN[name]
            _OVERRIDDEN.clear()


def _bool_mask(
    batch_size: int,
    cache_position: torch.Tensor,
    kv_length: int,
    kv_offset: int = 0,
    mask_function: Callable[..., torch.Tensor] = masking_utils.causal_mask_function,
    attention_mask: torch.Tensor | None = None,
    local_size: int | None = None,
    allow_is_causal_skip: bool = True,  # noqa: FBT001, FBT002  (upstream's signature)
    **_: object,
) -> torch.Tensor | None:
    """Build the mask of ``sdpa``: (batch, 1, queries, keys), True where a query attends to a key.

    *mask_function* maps the indices of batch, head, query and key to a bool. It works on index tensors that broadcast
    against each other as well as on the scalars that vmap would give it.
    """
    queries = cache_position.shape[0]
    padding = masking_utils.prepare_padding_mask(attention_mask, kv_length, kv_offset, _slice=False)
    if allow_is_causal_skip and masking_utils._ignore_causal_mask_sdpa(
        padding, queries, kv_length, kv_offset, local_size
    ):
        return None
    if padding is not None:
        mask_function = masking_utils.and_masks(mask_function, masking_utils.padding_mask_function(padding))
    device = cache_position.device
    batch = torch.arange(batch_size, device=device)[:, None, None, None]
    head = torch.arange(1, device=device)[None, :, None, None]
    keys = (torch.arange(kv_length, device=device) + kv_offset)[None, None, None, :]
    mask = mask_function(batch, head, cache_position[None, None, :, None], keys)
    expanded: torch.Tensor = mask.expand(batch_size, 1, queries, kv_length)
    return expanded


def _float_mask(*, dtype: torch.dtype = torch.float32, **arguments: Any) -> torch.Tensor:
    """Build the mask of ``eager``: zero where a query attends to a key, else the lowest number of *dtype*."""
    mask = _bool_mask(**{**arguments, "allow_is_causal_skip": False})
    assert mask is not None
    return torch.where(mask, mask.new_zeros((), dtype=dtype), torch.finfo(dtype).min)


_REPLACEMENTS = (
    ("sdpa", masking_utils.sdpa_mask, _bool_mask),
    ("eager", masking_utils.eager_mask, _float_mask),
)
