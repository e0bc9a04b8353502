"""transformers < 4.57. Unnecessary from 4.57 on: delete this file when the matrix no longer names it."""

from __future__ import annotations

from typing import Any

from cachetree._gate import gate
from cachetree._transformers import below_5_0

__all__ = ["Adapter"]


class Adapter(below_5_0.Adapter):
    """What is in a cache and how it is rebuilt."""

    @gate(
        because="a layer that holds tensors is known by its having a device: there is no flag for it",
        upstream="https://github.com/huggingface/transformers/blob/v4.56.2/src/transformers/cache_utils.py",
    )
    def is_filled(self, layer: Any) -> bool:
        """Tell whether a layer holds tensors, also where the tensors are replaced by None."""
        return layer.keys is not None or hasattr(layer, "device")

    @gate(
        because="a layer has no flag that says whether it holds tensors, so a rebuilt one must not have it either",
        upstream="https://github.com/huggingface/transformers/blob/v4.56.2/src/transformers/cache_utils.py",
    )
    def mark(self, layer: Any, *, filled: bool) -> None:
        """Set no flag."""

    @gate(
        because="static layers with a window are of two other classes, the second of which takes its prompt in chunks",
        upstream="https://github.com/huggingface/transformers/blob/v4.56.2/src/transformers/cache_utils.py",
    )
    def static_sliding_layers(self) -> dict[str, str]:
        """Name the classes of static layers with a window, and their kinds."""
        return {"SlidingWindowLayer": "static_sliding", "ChunkedSlidingLayer": "static_chunked"}
