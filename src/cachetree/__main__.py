"""The command: ``python -m cachetree status`` and ``python -m cachetree check``."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["main"]


def main(arguments: list[str] | None = None) -> int:
    """Run the command and give its exit code: 0 if all is well, 1 if not, 2 for wrong usage."""
    parser = argparse.ArgumentParser(
        prog="cachetree", description="KV caches of transformers as pytree nodes of torch."
    )
    commands = parser.add_subparsers(dest="command", required=True)
    for name, text in (
        ("status", "say what is installed, what serves it, and who has registered which cache class"),
        ("check", "export real models with their caches, save, load and run them, and compare with eager"),
    ):
        command = commands.add_parser(name, help=text, description=text[0].upper() + text[1:] + ".")
        command.add_argument("--json", action="store_true", help="print JSON instead of text")
    options = parser.parse_args(arguments)
    return {"status": _status, "check": _check}[options.command](as_json=options.json)


def _status(*, as_json: bool) -> int:
    import cachetree

    found = cachetree.environment()
    classes = cachetree.status()
    if as_json:
        rows = [{**dataclasses.asdict(row), "cls": f"{row.cls.__module__}.{row.cls.__qualname__}"} for row in classes]
        print(json.dumps({"environment": dataclasses.asdict(found), "classes": rows}, indent=2))
        return 0
    print(f"cachetree {found.cachetree}, Python {found.python}")
    print(f"torch {found.torch}, served by {found.torch_adapter}")
    print(f"transformers {found.transformers}, served by {found.transformers_adapter}")
    print(f"this pair is {found.tier}")
    print("\nActive gates:" if found.gates else "\nNo gate is active.")
    for gate in found.gates:
        print(f"  {gate.name.removeprefix('cachetree.')}\n    {gate.because}\n    {gate.upstream}")
    print("\nCache classes:")
    rows_of_text = [(row.cls.__name__, row.owner or "-", "sound" if row.sound else row.reason or "") for row in classes]
    _print_table(("class", "registered by", "state"), rows_of_text)
    return 0


def _check(*, as_json: bool) -> int:
    import logging

    import cachetree
    from cachetree import _check as job

    # On some releases torch logs each guard between two lengths that it could drop; the comparison shows they hold.
    logging.getLogger("torch.fx.experimental.symbolic_shapes").setLevel(logging.ERROR)
    found = cachetree.environment()
    results = job.check(lambda line: print(line, file=sys.stderr, flush=True))
    exact = all(result.exact for result in results)
    if as_json:
        rows: list[dict[str, Any]] = [{**dataclasses.asdict(row), "exact": row.exact} for row in results]
        print(json.dumps({"environment": dataclasses.asdict(found), "tolerance": job.TOLERANCE, "results": rows}))
        return 0 if exact else 1
    print(f"torch {found.torch}, transformers {found.transformers}: largest difference from eager")
    _print_table(
        ("model", "cache", "export", "here", "fresh process", ""),
        [
            (
                result.model,
                result.cache,
                f"{result.seconds:.1f} s",
                _number(result.here),
                _number(result.elsewhere),
                "exact" if result.exact else f"NOT EXACT {result.error or ''}".rstrip(),
            )
            for result in results
        ],
    )
    return 0 if exact else 1


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.1e}"


def _print_table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> None:
    widths = [max(len(row[column]) for row in [head, *rows]) for column in range(len(head))]
    for row in [head, *rows]:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


if __name__ == "__main__":
    sys.exit(main())
