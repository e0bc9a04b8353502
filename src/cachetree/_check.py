"""The main job as one run: real models, exported with their caches, called, saved, loaded elsewhere and compared."""

from __future__ import annotations

import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import torch

from cachetree import _exportable, _register, access, files, shapes
from cachetree._decode import Saved, Trace, decode, difference, in_order, rebuilt, saved
from cachetree._models import CASES, Case, prefilled, tiny_model

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["TOLERANCE", "Result", "check", "export_decode_step", "run"]

# The largest difference from eager, in float32, that counts as exact.
TOLERANCE = 1e-4

STEPS = 4

# (batch, tokens in the cache) of the example, and of the runs that follow. All past the windows of the models that
# have one: where a window is full, a model takes another way through its code, and an export is of one way.
EXAMPLE = (2, 5)
SHAPES = ((2, 5), (3, 8), (5, 6))


@dataclass(frozen=True)
class Result:
    """A row of the report.

    Attributes:
        model: the model type.
        cache: the class of the cache.
        seconds: what exporting took.
        here: the largest difference from eager of the exported program, over all shapes and steps.
        elsewhere: the same after saving it and loading it in a fresh process; None if it got no further.
        error: what failed, or None.
    """

    model: str
    cache: str
    seconds: float
    here: float | None
    elsewhere: float | None
    error: str | None

    @property
    def exact(self) -> bool:
        """Whether eager's numbers came out everywhere."""
        found = (self.here, self.elsewhere)
        return self.error is None and all(number is not None and number <= TOLERANCE for number in found)


def check(progress: Callable[[str], None]) -> list[Result]:
    """Export a decode step of several models, and compare several steps of it with eager.

    Each program is called at other batch sizes and lengths than its example's, with the cache that it returned, then
    saved, and loaded by a fresh process that runs the same steps.

    Args:
        progress: is told what is being done, a line at a time.
    """
    with _register.register(), TemporaryDirectory() as folder:
        cases = [case for case in CASES if case.exists]
        results = [_run_here(case, Path(folder), progress) for case in cases]
        progress("loading the programs in a fresh process")
        complaint = _run_elsewhere(Path(folder))
        return [_completed(result, Path(folder), complaint) for result in results]


def export_decode_step(case: Case, model: Any) -> torch.export.ExportedProgram:
    """Export the step that takes one token per sequence, for any batch size and any number of tokens in the cache."""
    argument = access.cache_argument(model)
    auto = torch.export.Dim.AUTO  # type: ignore[attr-defined]  # torch 2.7 types Dim as a function
    start = prefilled(case, model, *EXAMPLE, STEPS)
    cache = rebuilt(saved(start.cache))
    dims = {**start.shapes, argument: shapes.dynamic_shapes(cache, batch=auto, length=auto, cross_length=auto)}
    example = {**start.steps[0], argument: cache}
    with torch.no_grad(), _exportable.exportable(model):
        return torch.export.export(
            model,
            (),
            in_order(example, model),
            dynamic_shapes=in_order(dims, model),
            strict=False,
        )


def _run_here(case: Case, folder: Path, progress: Callable[[str], None]) -> Result:
    progress(f"exporting {case.name}")
    started = time.perf_counter()
    seconds, here, kind = 0.0, None, "-"
    try:
        model = tiny_model(case.name)
        kind = type(prefilled(case, model, *EXAMPLE, 0).cache).__name__
        program = export_decode_step(case, model)
        seconds = time.perf_counter() - started
        argument = access.cache_argument(model)
        runs = [run(case, model, program, *shape) for shape in SHAPES]
        here = max(difference(expected, found) for _, _, expected, found in runs)
        files.save(program, folder / f"{case.name}.pt2")
        kept = [(tuple(cache), steps, tuple(expected)) for cache, steps, expected, _ in runs]
        torch.save({"argument": argument, "runs": kept}, folder / f"{case.name}.runs")
    except Exception as error:  # noqa: BLE001  (whatever a model or torch raises becomes a row of the report)
        return Result(case.name, kind, seconds, here, None, _one_line(error))
    return Result(case.name, kind, seconds, here, None, None)


def run(
    case: Case, model: Any, program: torch.export.ExportedProgram, batch: int, length: int
) -> tuple[Saved, list[dict[str, Any]], Trace, Trace]:
    """Decode with a model and with a program of it: the cache at the start, the steps, and what both gave."""
    argument = access.cache_argument(model)
    start = prefilled(case, model, batch, length, STEPS)
    cache = saved(start.cache)
    steps = [in_order({**step, argument: None}, model) for step in start.steps]
    expected = decode(model, argument, rebuilt(cache), steps)
    return cache, steps, expected, decode(program.module(), argument, rebuilt(cache), steps)


def _run_elsewhere(folder: Path) -> str:
    """Run the programs of *folder* in a fresh process; give the last line that it complained with."""
    command = [sys.executable, "-m", "cachetree._check", str(folder)]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    return f"exit {done.returncode}: {(done.stderr.strip().splitlines() or ['no message'])[-1][:200]}"


def _completed(result: Result, folder: Path, complaint: str) -> Result:
    if result.error is not None:
        return result
    found = folder / f"{result.model}.found"
    if not found.exists():
        return Result(**{**vars(result), "error": f"the fresh process gave no result: {complaint}"})
    loaded = torch.load(found, weights_only=True)
    if isinstance(loaded, str):
        return Result(**{**vars(result), "error": f"in a fresh process: {loaded}"})
    expected = torch.load(folder / f"{result.model}.runs", weights_only=True)["runs"]
    elsewhere = max(difference(Trace(*run[2]), Trace(*got)) for run, got in zip(expected, loaded, strict=True))
    return Result(**{**vars(result), "elsewhere": elsewhere})


def _replay(folder: Path) -> None:
    """Load every program of *folder* and run its steps: what the fresh process does."""
    for path in sorted(folder.glob("*.pt2")):
        kept = torch.load(path.with_suffix(".runs"), weights_only=True)
        found: Any
        try:
            call = files.load(path).module()
            found = [
                tuple(decode(call, kept["argument"], rebuilt(Saved(*cache)), steps)) for cache, steps, _ in kept["runs"]
            ]
        except Exception as error:  # noqa: BLE001  (goes into the report of the parent)
            found = _one_line(error)
        torch.save(found, path.with_suffix(".found"))


def _one_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0][:200] if lines else ''}"


if __name__ == "__main__":
    _replay(Path(sys.argv[1]))
