"""Which releases are supported and which adapter serves them. Made by `nox -s sync`; do not edit."""

from __future__ import annotations

TORCH_FLOOR = (2, 5)
TORCH_NEWEST = (2, 7)
TORCH_ONLY: dict[tuple[int, int], str] = {(2, 6): "only_2_6"}
TORCH_ADAPTERS: tuple[tuple[tuple[int, int] | None, str], ...] = (
    ((2, 6), "below_2_6"),
    ((2, 7), "below_2_7"),
    ((2, 10), "below_2_10"),
    (None, "current"),
)

TRANSFORMERS_FLOOR = (4, 56)
TRANSFORMERS_NEWEST = (5, 24)
TRANSFORMERS_ADAPTERS: tuple[tuple[tuple[int, int] | None, str], ...] = (
    ((4, 57), "below_4_57"),
    ((5, 0), "below_5_0"),
    ((5, 4), "below_5_4"),
    ((5, 5), "below_5_5"),
    ((5, 13), "below_5_13"),
    ((5, 14), "below_5_14"),
    ((5, 15), "below_5_15"),
    ((5, 24), "below_5_24"),
    (None, "current"),
)

TESTED_PAIRS = frozenset(
    {
        ((2, 5), (4, 57)),
        ((2, 5), (5, 18)),
        ((2, 6), (4, 57)),
        ((2, 6), (5, 24)),
        ((2, 7), (4, 56)),
        ((2, 7), (5, 24)),
    }
)
