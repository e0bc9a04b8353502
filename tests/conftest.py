"""What every test shares: the header with the versions, the proof of the environment, and a registration."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

import cachetree
from cachetree import _register, _select

if TYPE_CHECKING:
    from collections.abc import Iterator


def pytest_report_header() -> list[str]:
    """Show what is tested."""
    found = cachetree.environment()
    adapters = f"{found.torch_adapter}, {found.transformers_adapter}"
    return [f"torch {found.torch}, transformers {found.transformers} ({found.tier}); {adapters}"]


def pytest_configure() -> None:
    """Refuse to run on anything but what the session is named after."""
    found = cachetree.environment()
    for name, version in (("EXPECTED_TORCH", found.torch), ("EXPECTED_TRANSFORMERS", found.transformers)):
        expected = os.environ.get(name)
        if expected is not None and version.split(".")[:2] != expected.split("."):
            raise pytest.UsageError(f"{name} is {expected}, but {version} is installed")


@pytest.fixture
def registered() -> Iterator[cachetree.Registration]:
    """Register every cache class for the time of a test."""
    with cachetree.register() as handle:
        yield handle


@pytest.fixture(autouse=True)
def _nothing_stays_registered() -> Iterator[None]:
    """Undo what a test leaves registered, as `cachetree.load` does on purpose."""
    yield
    with _register._LOCK:
        for cls, standing in [*_register._STANDING.items()]:
            _select.adapters().torch.restore(cls, standing.before, standing.installed)
            del _register._STANDING[cls]
