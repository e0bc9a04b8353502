"""What taking a cache apart and rebuilding it costs, as ratios to the same tensors in two plain lists.

python benchmarks/nodes.py
"""

from __future__ import annotations

import timeit
from typing import TYPE_CHECKING, Any

import torch
import torch.utils._pytree as pytree
from transformers import DynamicCache

import cachetree

if TYPE_CHECKING:
    from collections.abc import Callable


def best(function: Callable[[], object]) -> float:
    """Give the least time of a call, in microseconds."""
    return min(timeit.repeat(function, number=100, repeat=30)) * 1e4


def measure(tree: Any) -> tuple[float, float]:
    """Give what flattening a tree costs, and rebuilding it."""
    leaves, spec = pytree.tree_flatten(tree)
    return best(lambda: pytree.tree_flatten(tree)), best(lambda: pytree.tree_unflatten(leaves, spec))


def main() -> None:
    """Print a line per number of layers and direction."""
    found = cachetree.environment()
    print(f"torch {found.torch}, transformers {found.transformers}; microseconds, and ratio to two lists")
    for count in (2, 32, 80):
        cache: Any = DynamicCache()
        for layer in range(count):
            cache.update(torch.zeros(1, 2, 3, 4), torch.zeros(1, 2, 3, 4), layer)
        lists = [[layer.keys for layer in cache.layers], [layer.values for layer in cache.layers]]
        with cachetree.register():
            ours = measure(cache)
        plain = measure(lists)
        for name, mine, base in zip(("flatten", "unflatten"), ours, plain, strict=True):
            print(f"{count:3} layers  {name:9}  {mine:7.1f}  {mine / base:.2f}")


if __name__ == "__main__":
    main()
