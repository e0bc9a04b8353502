"""transformers < 5.13. Unnecessary from 5.13 on: delete this file when the matrix no longer names it."""

from __future__ import annotations

from cachetree._gate import gate
from cachetree._transformers import below_5_14

__all__ = ["Adapter"]


class Adapter(below_5_14.Adapter):
    """What is in a cache and how it is rebuilt."""

    @gate(
        because="a static layer keeps its batch size under another name",
        upstream="https://github.com/huggingface/transformers/blob/v5.12.0/src/transformers/cache_utils.py",
    )
    def batch_size_name(self) -> str:
        """Name the attribute in which a static layer keeps its batch size."""
        return "max_batch_size"
