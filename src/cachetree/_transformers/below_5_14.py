"""transformers < 5.14. Unnecessary from 5.14 on: delete this file when the matrix no longer names it."""

from __future__ import annotations

from cachetree._gate import gate
from cachetree._transformers import below_5_15

__all__ = ["Adapter"]


class Adapter(below_5_15.Adapter):
    """What is in a cache and how it is rebuilt."""

    @gate(
        because="a linear attention layer keeps one state of each sort, without a dict around it",
        upstream="https://github.com/huggingface/transformers/blob/v5.13.0/src/transformers/cache_utils.py",
    )
    def keys_linear_states(self) -> bool:
        """Whether a linear attention layer keeps any number of states, in dicts."""
        return False
