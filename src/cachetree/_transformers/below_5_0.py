"""transformers < 5.0. Unnecessary from 5.0 on: delete this file when the matrix no longer names it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cachetree._gate import gate
from cachetree._transformers import below_5_24
from cachetree._transformers._masks import broadcast_masks

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

__all__ = ["Adapter"]


class Adapter(below_5_24.Adapter):
    """What is in a cache and how it is rebuilt."""

    @gate(
        because="attention masks are built with torch.vmap over index functions",
        upstream="https://github.com/huggingface/transformers/pull/41852",
        pair="masks",
    )
    def masks_without_vmap(self) -> AbstractContextManager[None]:
        """Build attention masks by broadcasting the same index functions, until exit."""
        return broadcast_masks()
