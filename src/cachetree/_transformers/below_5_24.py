"""transformers < 5.24. Unnecessary from 5.24 on: delete this file when the matrix no longer names it."""

from __future__ import annotations

from cachetree._gate import gate
from cachetree._transformers import current

__all__ = ["Adapter"]


class Adapter(current.Adapter):
    """What is in a cache and how it is rebuilt."""

    @gate(
        because="a layer that holds tensors also tells their dtype, in an attribute that later releases do not have",
        upstream="https://github.com/huggingface/transformers/blob/v5.19.0/src/transformers/cache_utils.py",
    )
    def keeps_dtype(self) -> bool:
        """Whether a layer that holds keys also keeps their dtype."""
        return True

    @gate(
        because="a static layer with a window has no attribute that tells whether it can be cropped",
        upstream="https://github.com/huggingface/transformers/blob/v5.19.0/src/transformers/cache_utils.py",
    )
    def keeps_croppable(self) -> bool:
        """Whether a static sliding layer keeps whether it can be cropped."""
        return False
