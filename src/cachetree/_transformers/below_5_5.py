"""transformers < 5.5. Unnecessary from 5.5 on: delete this file when the matrix no longer names it."""

from __future__ import annotations

from cachetree._transformers import below_5_13

__all__ = ["Adapter"]


class Adapter(below_5_13.Adapter):
    """What is in a cache and how it is rebuilt."""

    def keys_linear_states(self) -> bool:
        """Whether a linear attention layer keeps any number of states; there are no such layers, so no gate acts."""
        return True
