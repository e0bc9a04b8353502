"""The mark on whatever exists only because of an old torch or an old transformers.

`gate` records; it never decides anything. Which adapter serves a release is decided once, by `cachetree._select`, and
an adapter's gated methods are what the release it is named after made unnecessary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeVar

__all__ = ["Gate", "active_gates", "gate", "gates_of"]

F = TypeVar("F", bound=Callable[..., object])

_MARK = "__cachetree_gate__"


@dataclass(frozen=True)
class Gate:
    """Why a method overrides the one of the next newer adapter.

    `because` is the reason in terms of behaviour and `upstream` the link to the change or report behind it. `pair`
    is a name that two gates share, one in a torch adapter and one in a transformers adapter, when only both versions
    together make the trouble: such a gate is active only where both of its halves are.
    """

    because: str
    upstream: str
    pair: str | None = None


def gate(*, because: str, upstream: str, pair: str | None = None) -> Callable[[F], F]:
    """Mark a method of an adapter as one that a newer release makes unnecessary."""

    def mark(method: F) -> F:
        setattr(method, _MARK, Gate(because, upstream, pair))
        return method

    return mark


def gates_of(adapter: type) -> Iterator[tuple[str, Gate, type]]:
    """Yield (method name, gate, class that defines it) for every gated method that *adapter* itself uses.

    Where an older adapter overrides a gated method once more, that one counts.
    """
    seen: set[str] = set()
    for cls in adapter.__mro__:
        for name, member in vars(cls).items():
            found = getattr(member, _MARK, None)
            if found is not None and name not in seen:
                yield name, found, cls
            seen.add(name)


def active_gates(torch_adapter: type, transformers_adapter: type) -> list[tuple[str, Gate, type]]:
    """List the gates that act with these two adapters: all single ones, and the pairs of which both halves exist."""
    sides = [list(gates_of(torch_adapter)), list(gates_of(transformers_adapter))]
    torch_pairs, transformers_pairs = ({found.pair for _, found, _ in side if found.pair} for side in sides)
    both = torch_pairs & transformers_pairs
    return [entry for side in sides for entry in side if entry[1].pair is None or entry[1].pair in both]
