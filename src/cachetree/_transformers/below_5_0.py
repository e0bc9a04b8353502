"""transformers < 5.0. Unnecessary from 5.0 on: delete this file when the matrix no longer names it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cachetree._gate import gate
from cachetree._transformers import below_5_4
from cachetree._transformers._masks import broadcast_masks

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

__all__ = ["Adapter"]


class Adapter(below_5_4.Adapter):
    """What is in a cache and how it is rebuilt."""

    @gate(
        because="a static layer keeps one head size, for keys and values alike",
        upstream="https://github.com/huggingface/transformers/blob/v4.57.6/src/transformers/cache_utils.py",
    )
    def head_size_names(self) -> tuple[str, str]:
        """Name the attribute in which a static layer keeps the head size of both."""
        return "head_dim", "head_dim"

    @gate(
        because="a sliding layer has no tensor of its window",
        upstream="https://github.com/huggingface/transformers/blob/v4.57.6/src/transformers/cache_utils.py",
    )
    def set_window_tensor(self, layer: Any, window: int) -> None:
        """Give a sliding layer none."""

    @gate(
        because="attention masks are built with torch.vmap over index functions",
        upstream="https://github.com/huggingface/transformers/pull/41852",
        pair="masks",
    )
    def masks_without_vmap(self) -> AbstractContextManager[None]:
        """Build attention masks by broadcasting the same index functions, until exit."""
        return broadcast_masks()
