"""transformers < 5.4. Unnecessary from 5.4 on: delete this file when the matrix no longer names it."""

from __future__ import annotations

from cachetree._gate import gate
from cachetree._transformers import below_5_5

__all__ = ["Adapter"]


class Adapter(below_5_5.Adapter):
    """What is in a cache and how it is rebuilt."""

    @gate(
        because="a static layer counts its tokens nowhere, and one with a window in a Python number, not in a tensor",
        upstream="https://github.com/huggingface/transformers/blob/v5.3.0/src/transformers/cache_utils.py",
    )
    def has_static_counter_tensor(self) -> bool:
        """Whether a static layer counts its tokens in a tensor."""
        return False
