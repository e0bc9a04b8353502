"""torch 2.6 alone: what neither torch 2.5 nor torch 2.7 needs. Delete this file with the row that names it."""

from __future__ import annotations

from cachetree._gate import gate
from cachetree._torch import below_2_7

__all__ = ["Adapter"]


class Adapter(below_2_7.Adapter):
    """How torch is told of a node."""

    @gate(
        because="loading a program that holds an autocast region fails until the operator for it has been imported",
        upstream="https://github.com/pytorch/pytorch/pull/132677",
    )
    def prepare_to_load(self) -> None:
        """Import the operator that stands for ``torch.autocast`` in exported programs."""
        import torch._higher_order_ops.wrap  # noqa: F401  (defines the operator)
