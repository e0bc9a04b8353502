"""torch < 2.10. Unnecessary from 2.10 on: delete this file with the last row that names it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cachetree._gate import gate
from cachetree._torch import current

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from cachetree._transformers.current import Adapter as TransformersAdapter

__all__ = ["Adapter"]


class Adapter(current.Adapter):
    """How torch is told of a node."""

    @gate(
        because="torch.export cannot trace a torch.vmap over index functions, with which transformers builds its masks",
        upstream="https://github.com/pytorch/pytorch/issues/140849",
        pair="masks",
    )
    def traceable_masks(self, transformers: TransformersAdapter) -> AbstractContextManager[None]:
        """Have transformers build its masks without vmap, if it does use vmap."""
        return transformers.masks_without_vmap()
