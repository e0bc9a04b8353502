"""transformers < 5.24. Unnecessary from 5.24 on: delete this file when the matrix no longer names it."""

from __future__ import annotations

from typing import Any

from cachetree._gate import gate
from cachetree._transformers import current

__all__ = ["Adapter"]


class Adapter(current.Adapter):
    """What is in a cache and how it is rebuilt."""

    @gate(
        because="a layer that holds tensors also tells their dtype, in an attribute that later releases do not have",
        upstream="https://github.com/huggingface/transformers/blob/v5.19.0/src/transformers/cache_utils.py",
    )
    def fill(self, layer: Any, keys: Any, values: Any) -> None:
        """Put leaves into a new layer, and their dtype beside them."""
        super().fill(layer, keys, values)
        layer.dtype = getattr(keys, "dtype", None)
