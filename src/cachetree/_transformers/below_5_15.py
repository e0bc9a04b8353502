"""transformers < 5.15. Unnecessary from 5.15 on: delete this file when the matrix no longer names it."""

from __future__ import annotations

from cachetree._gate import gate
from cachetree._transformers import below_5_24

__all__ = ["Adapter"]


class Adapter(below_5_24.Adapter):
    """What is in a cache and how it is rebuilt."""

    @gate(
        because="a sliding layer cannot be told to keep what has left its window, and has no attribute for it",
        upstream="https://github.com/huggingface/transformers/blob/v5.14.0/src/transformers/cache_utils.py",
    )
    def records_past(self) -> bool:
        """Whether a sliding layer can be told to keep what has left its window."""
        return False
