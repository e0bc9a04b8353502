"""The sessions of cachetree, made from ``compat_matrix.toml``. ``nox -l`` lists them."""

from __future__ import annotations

import sys
from pathlib import Path

import nox

sys.path.insert(0, str(Path(__file__).parent / "tools"))
from sync_matrix import Row, read_matrix

nox.needs_version = ">=2024.10.9"
nox.options.default_venv_backend = "uv|virtualenv"
nox.options.sessions = ["lint", "types", "sync"]

PYPROJECT = nox.project.load_toml("pyproject.toml")
MATRIX = read_matrix()
NEWEST = MATRIX.rows[-1]


def group(name: str) -> list[str]:
    """List the requirements of a dependency group."""
    return list(nox.project.dependency_groups(PYPROJECT, name))


def install_pair(session: nox.Session, row: Row, transformers: str, *further: str) -> None:
    """Install one torch with one transformers and the package, and prove that these are what is there.

    One resolution for all of it: installed one after the other, a later requirement could replace an earlier one.
    """
    session.install(f"torch=={row.torch}.*", f"transformers=={transformers}.*", "-e.", *further)
    session.run(
        "python",
        "-c",
        "import sys, torch, transformers\n"
        "found = [m.__version__.split('.')[:2] for m in (torch, transformers)]\n"
        "expected = [v.split('.') for v in sys.argv[1:]]\n"
        "sys.exit(f'expected torch and transformers {expected}, found {found}' if found != expected else 0)",
        row.torch,
        transformers,
        silent=True,
    )


def add_tests(row: Row) -> None:
    """Add ``tests-<torch>``, with an environment for each transformers of the row."""

    @nox.parametrize("transformers", list(row.transformers), ids=list(row.transformers))
    def tests(session: nox.Session, transformers: str) -> None:
        install_pair(session, row, transformers, *group("test"))
        expected = {"EXPECTED_TORCH": row.torch, "EXPECTED_TRANSFORMERS": transformers}
        session.run("pytest", "-n", "auto", *session.posargs, env=expected)

    tests.__doc__ = f"Run the suite on torch {row.torch} with each transformers it is tested with."
    nox.session(name=f"tests-{row.torch}", python=row.python, tags=["tests", "ci"])(tests)


def add_check(row: Row) -> None:
    """Add ``check-<torch>``, on the newest transformers of the row."""

    def check(session: nox.Session) -> None:
        install_pair(session, row, row.transformers[-1])
        session.run("python", "-m", "cachetree", "check", *session.posargs)

    check.__doc__ = f"Export, save, load and run real models on torch {row.torch} and compare them with eager."
    nox.session(name=f"check-{row.torch}", python=row.python, tags=["check"])(check)


for _row in MATRIX.rows:
    add_tests(_row)
    add_check(_row)


@nox.session(python=NEWEST.python, tags=["ci"])
def lint(session: nox.Session) -> None:
    """Check style and formatting."""
    session.install(*group("lint"))
    session.run("ruff", "check", *session.posargs)
    session.run("ruff", "format", "--check")


@nox.session(python=NEWEST.python, tags=["ci"])
def types(session: nox.Session) -> None:
    """Check types, strictly, on the newest pair."""
    install_pair(session, NEWEST, NEWEST.transformers[-1], *group("types"))
    session.run("mypy", *session.posargs)


@nox.session(python=NEWEST.python)
def sync(session: nox.Session) -> None:
    """Make the files that follow from compat_matrix.toml; with ``-- --check``, fail if one is stale."""
    session.run("python", "tools/sync_matrix.py", *session.posargs)
