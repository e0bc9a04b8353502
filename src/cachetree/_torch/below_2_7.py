"""torch < 2.7. Unnecessary from 2.7 on: delete this file with the last row that names it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch.fx._pytree as fx_pytree

from cachetree._gate import gate
from cachetree._torch import below_2_10
from cachetree.errors import LayoutError

if TYPE_CHECKING:
    from cachetree._node import Children, NodeSpec

__all__ = ["Adapter"]


class Adapter(below_2_10.Adapter):
    """How torch is told of a node."""

    needs_fx_spec = True

    @gate(
        because="calling an exported module looks a class up in torch.fx._pytree only",
        upstream="https://github.com/pytorch/pytorch/pull/147533",
    )
    def register_fx_spec(self, node: NodeSpec) -> None:
        """Register a flatten function with ``torch.fx._pytree`` that compares what torch itself does not there."""

        def flatten_as(cache: Any, spec: Any) -> Children:
            children, context = node.flatten(cache)
            # Children that are nodes of their own are compared when they are flattened in turn.
            found = [len(child) if type(child) is list else None for child in children]
            expected = [child.num_children if child.type is list else None for child in spec.children_specs]
            if context != spec.context or found != expected:
                raise LayoutError(
                    f"a {node.cls.__name__} does not have the structure that the program was exported with: expected "
                    f"context {spec.context} with {expected} leaves in its groups, found {context} with {found}"
                )
            return children

        fx_pytree.register_pytree_flatten_spec(node.cls, flatten_as)
