"""Make everything that follows from ``compat_matrix.toml``, or check that it is up to date.

    python tools/sync_matrix.py [--check]

Needs neither torch nor transformers nor cachetree: gates are read from the adapters' source text.
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "cachetree"
BEGIN, END = "<!-- matrix: made by `nox -s sync` -->", "<!-- end of matrix -->"

Minor: TypeAlias = "tuple[int, int]"


class Row(NamedTuple):
    """A torch minor of the matrix."""

    torch: str
    adapter: str
    python: str
    transformers: tuple[str, ...]


class Matrix(NamedTuple):
    """What ``compat_matrix.toml`` says."""

    rows: tuple[Row, ...]
    transformers_floor: str
    transformers_adapters: tuple[str, ...]


class GateText(NamedTuple):
    """A gate as its adapter's source has it."""

    module: str
    method: str
    because: str
    upstream: str


def minor(text: str) -> Minor:
    """Read ``2.6`` as (2, 6)."""
    major, found = text.split(".")
    return int(major), int(found)


def read_matrix(path: Path = ROOT / "compat_matrix.toml") -> Matrix:
    """Read the matrix, rows in the order of their versions."""
    data = tomllib.loads(path.read_text(encoding="utf-8"))
    rows = [
        Row(torch, row["adapter"], row["python"], tuple(row["transformers"])) for torch, row in data["torch"].items()
    ]
    return Matrix(
        tuple(sorted(rows, key=lambda row: minor(row.torch))),
        data["transformers"]["floor"],
        tuple(data["transformers"]["adapters"]),
    )


def condition(adapter: str) -> tuple[str, Minor | None]:
    """Read an adapter's name: ``below_2_7`` as ("below", (2, 7)), ``current`` as ("current", None)."""
    if adapter == "current":
        return "current", None
    found = re.fullmatch(r"(below|only)_(\d+)_(\d+)", adapter)
    if found is None:
        raise SystemExit(f"{adapter!r} is no name for an adapter: expected current, below_X_Y or only_X_Y")
    return found[1], (int(found[2]), int(found[3]))


def adapter_serving(version: Minor, adapters: tuple[str, ...]) -> str:
    """Choose as the package does at run time."""
    for adapter in adapters:
        kind, bound = condition(adapter)
        if kind == "only" and bound == version:
            return adapter
    below = [(bound, adapter) for adapter in adapters for kind, bound in [condition(adapter)] if kind == "below"]
    return min(((bound, adapter) for bound, adapter in below if bound and version < bound), default=(None, "current"))[
        1
    ]


def torch_adapters(matrix: Matrix) -> tuple[str, ...]:
    """List the adapters that the rows name, and the one for whatever is newer."""
    return tuple(dict.fromkeys((*(row.adapter for row in matrix.rows), *_inherited(matrix), "current")))


def _inherited(matrix: Matrix) -> list[str]:
    """List the adapters that named ones build on, so that a row in between finds the right one."""
    found = []
    for row in matrix.rows:
        name = row.adapter
        while (source := PACKAGE / "_torch" / f"{name}.py").exists():
            bases = re.findall(
                r"^from cachetree\._torch import (\w+)$", source.read_text(encoding="utf-8"), re.MULTILINE
            )
            if not bases:
                break
            name = bases[0]
            found.append(name)
    return found


def problems(matrix: Matrix) -> list[str]:
    """Say what in the tree contradicts the matrix."""
    found = []
    named = torch_adapters(matrix)
    for row in matrix.rows:
        fitting = adapter_serving(minor(row.torch), named)
        if row.adapter != fitting:
            found.append(f"the row torch {row.torch} names the adapter {row.adapter!r}, but {fitting!r} serves it")
    for folder, names in (("_torch", named), ("_transformers", matrix.transformers_adapters)):
        files = {path.stem for path in (PACKAGE / folder).glob("*.py") if not path.stem.startswith("_")}
        found += [_unnamed(n, folder, matrix) for n in files - set(names)]
        found += [
            f"the matrix names the adapter {n!r}, but src/cachetree/{folder}/{n}.py is missing"
            for n in set(names) - files
        ]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    floors = {"torch": matrix.rows[0].torch, "transformers": matrix.transformers_floor}
    for name, floor in floors.items():
        if f"{name}>={floor}" not in project["dependencies"]:
            found.append(f"pyproject.toml: the dependency on {name} must read '{name}>={floor}', as the matrix has it")
    oldest = min(minor(t) for row in matrix.rows for t in row.transformers)
    if oldest < minor(matrix.transformers_floor):
        found.append(f"a row is tested with transformers {oldest}, below the floor {matrix.transformers_floor}")
    return sorted(found)


def _unnamed(adapter: str, folder: str, matrix: Matrix) -> str:
    """Say what to do about an adapter that the matrix does not name: name it where it would serve, or delete it."""
    if folder == "_torch":
        with_it = (*torch_adapters(matrix), adapter)
        served = [row.torch for row in matrix.rows if adapter_serving(minor(row.torch), with_it) == adapter]
        if served:
            return f"no row names the adapter {adapter!r}, which would serve torch {', '.join(served)}: name it there"
    return (
        f"nothing in the matrix names the adapter {adapter!r}: name it, or delete src/cachetree/{folder}/{adapter}.py"
    )


def support_window(matrix: Matrix) -> str:
    """Write ``_support_window.py``."""
    torch_only = {
        bound: n for n in torch_adapters(matrix) for kind, bound in [condition(n)] if kind == "only" and bound
    }
    pairs = [(minor(row.torch), minor(t)) for row in matrix.rows for t in row.transformers]
    lines = [
        '"""Which releases are supported and which adapter serves them. Made by `nox -s sync`; do not edit."""',
        "",
        "from __future__ import annotations",
        "",
        f"TORCH_FLOOR = {minor(matrix.rows[0].torch)}",
        f"TORCH_NEWEST = {minor(matrix.rows[-1].torch)}",
        f"TORCH_ONLY: dict[tuple[int, int], str] = {_quoted(torch_only)}",
        *_bounds("TORCH_ADAPTERS", torch_adapters(matrix)),
        "",
        f"TRANSFORMERS_FLOOR = {minor(matrix.transformers_floor)}",
        f"TRANSFORMERS_NEWEST = {max(t for _, t in pairs)}",
        *_bounds("TRANSFORMERS_ADAPTERS", matrix.transformers_adapters),
        "",
        "TESTED_PAIRS = frozenset(",
        "    {",
        *(f"        ({torch}, {transformers})," for torch, transformers in pairs),
        "    }",
        ")",
    ]
    return "\n".join(lines) + "\n"


def _quoted(table: dict[Minor, str]) -> str:
    return "{" + ", ".join(f'{key}: "{value}"' for key, value in table.items()) + "}"


def _bounds(name: str, adapters: tuple[str, ...]) -> list[str]:
    below = sorted((bound, n) for n in adapters for kind, bound in [condition(n)] if kind == "below" and bound)
    return [
        f"{name}: tuple[tuple[tuple[int, int] | None, str], ...] = (",
        *(f'    ({bound}, "{adapter}"),' for bound, adapter in below),
        '    (None, "current"),',
        ")",
    ]


def gates(folder: str) -> list[GateText]:
    """Read the gates of every adapter in a folder."""
    found = []
    for path in sorted((PACKAGE / folder).glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef):
                found += [
                    GateText(path.stem, node.name, said["because"], said["upstream"])
                    for mark in node.decorator_list
                    if isinstance(mark, ast.Call) and isinstance(mark.func, ast.Name) and mark.func.id == "gate"
                    for said in [{word.arg: ast.literal_eval(word.value) for word in mark.keywords}]
                ]
    return found


def table(matrix: Matrix) -> str:
    """Write the table of tested pairs."""
    lines = ["| torch | transformers tested with it | command |", "| --- | --- | --- |"]
    lines += [f"| {row.torch} | {', '.join(row.transformers)} | `nox -s tests-{row.torch}` |" for row in matrix.rows]
    return "\n".join(lines)


def compatibility(matrix: Matrix) -> str:
    """Write ``docs/compatibility.md``."""
    floor, newest = matrix.rows[0].torch, matrix.rows[-1].torch
    lines = [
        "# Compatibility",
        "",
        "Made by `nox -s sync` from `compat_matrix.toml` and the adapters; do not edit.",
        "",
        f"torch {floor} and later, transformers {matrix.transformers_floor} and later. There is no upper bound: a",
        f"release newer than the newest tested one (torch {newest}) is served by the newest adapter that fits, and",
        "`cachetree.environment()` says so. Tested pairs, each in an environment of its own:",
        "",
        table(matrix),
        "",
    ]
    for title, folder, names in (
        ("torch", "_torch", torch_adapters(matrix)),
        ("transformers", "_transformers", matrix.transformers_adapters),
    ):
        lines += [f"## What is different on older releases of {title}", "", "| releases | difference | upstream |"]
        lines += ["| --- | --- | --- |"]
        lines += [
            f"| {_releases(entry.module)} | {entry.because} | [link]({entry.upstream}) |"
            for entry in gates(folder)
            if entry.module in names
        ]
        lines += [""]
    return "\n".join(lines)


def _releases(adapter: str) -> str:
    kind, bound = condition(adapter)
    return f"{'<' if kind == 'below' else '='} {'.'.join(map(str, bound or ()))}"


def generated(matrix: Matrix) -> dict[Path, str]:
    """Give the text of every file that follows from the matrix."""
    readme = ROOT / "README.md"
    before, _, rest = readme.read_text(encoding="utf-8").partition(BEGIN)
    _, _, after = rest.partition(END)
    return {
        PACKAGE / "_support_window.py": support_window(matrix),
        ROOT / "docs" / "compatibility.md": compatibility(matrix),
        readme: f"{before}{BEGIN}\n{table(matrix)}\n{END}{after}",
    }


def main(arguments: list[str] | None = None) -> int:
    """Write the files, or with ``--check`` name those that are stale."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if a file is stale")
    options: Any = parser.parse_args(arguments)
    matrix = read_matrix()
    found = problems(matrix)
    for path, text in generated(matrix).items():
        if path.exists() and path.read_text(encoding="utf-8") == text:
            continue
        if options.check:
            found.append(f"{path.relative_to(ROOT)} is stale: run `nox -s sync`")
        else:
            path.parent.mkdir(exist_ok=True)
            path.write_text(text, encoding="utf-8")
            print(f"wrote {path.relative_to(ROOT)}")
    for problem in found:
        print(problem, file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
