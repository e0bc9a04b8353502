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
from cachetree._decode import Trace, cache_from, decode, difference, leaves_of
from cachetree._models import MODELS, VOCABULARY, tiny_model

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["TOLERANCE", "Result", "check", "export_decode_step"]

# The largest difference from eager, in float32, that counts as exact.
TOLERANCE = 1e-4

STEPS = 4

# (batch, tokens in the cache) of the example, and of the runs that follow.
EXAMPLE = (2, 4)
SHAPES = ((2, 4), (3, 7), (5, 2))


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
        results = [_run_here(name, Path(folder), progress) for name in MODELS]
        progress("loading the programs in a fresh process")
        _run_elsewhere(Path(folder))
        return [_completed(result, Path(folder)) for result in results]


def export_decode_step(model: Any) -> torch.export.ExportedProgram:
    """Export the step that takes one token per sequence, for any batch size and any number of tokens in the cache."""
    argument = access.cache_argument(model)
    auto = torch.export.Dim.AUTO  # type: ignore[attr-defined]
    cache, tokens = _prefill(model, *EXAMPLE)
    dims = {"input_ids": {0: auto}, argument: shapes.dynamic_shapes(cache, batch=auto, length=auto)}
    example = {"input_ids": tokens[0], argument: cache}
    with torch.no_grad(), _exportable.exportable(model):
        return torch.export.export(model, (), example, dynamic_shapes=dims, strict=False)


def _run_here(name: str, folder: Path, progress: Callable[[str], None]) -> Result:
    progress(f"exporting {name}")
    started = time.perf_counter()
    seconds, here, kind = 0.0, None, "DynamicCache"
    try:
        model = tiny_model(name)
        program = export_decode_step(model)
        seconds = time.perf_counter() - started
        runs = list(_runs(model, program))
        here = max(difference(expected, found) for _, _, expected, found in runs)
        files.save(program, folder / f"{name}.pt2")
        saved = [(start, tokens, tuple(expected)) for start, tokens, expected, _ in runs]
        torch.save({"argument": access.cache_argument(model), "runs": saved}, folder / f"{name}.runs")
    except Exception as error:  # noqa: BLE001  (whatever a model or torch raises becomes a row of the report)
        return Result(name, kind, seconds, here, None, _one_line(error))
    return Result(name, kind, seconds, here, None, None)


def _runs(
    model: Any, program: torch.export.ExportedProgram
) -> Iterator[tuple[list[torch.Tensor], list[torch.Tensor], Trace, Trace]]:
    argument = access.cache_argument(model)
    exported = program.module()
    for shape in SHAPES:
        cache, tokens = _prefill(model, *shape)
        start = [leaf.clone() for leaf in leaves_of(cache)]
        yield (
            start,
            tokens,
            decode(model, argument, cache, tokens),
            decode(exported, argument, cache_from(start), tokens),
        )


def _prefill(model: Any, batch: int, length: int) -> tuple[Any, list[torch.Tensor]]:
    """Give a cache that has seen (batch, length) tokens, and the tokens of the steps to come."""
    generator = torch.Generator().manual_seed(batch * 1000 + length)
    ids = torch.randint(VOCABULARY, (batch, length + STEPS), generator=generator)
    with torch.no_grad():
        cache = access.cache_of(model(input_ids=ids[:, :length], use_cache=True))
    return cache, [ids[:, [at]] for at in range(length, length + STEPS)]


def _run_elsewhere(folder: Path) -> None:
    subprocess.run([sys.executable, "-m", "cachetree._check", str(folder)], check=False, capture_output=True)


def _completed(result: Result, folder: Path) -> Result:
    if result.error is not None:
        return result
    found = folder / f"{result.model}.found"
    if not found.exists():
        return Result(**{**vars(result), "error": "the fresh process gave no result"})
    loaded = torch.load(found, weights_only=True)
    if isinstance(loaded, str):
        return Result(**{**vars(result), "error": f"in a fresh process: {loaded}"})
    expected = torch.load(folder / f"{result.model}.runs", weights_only=True)["runs"]
    elsewhere = max(difference(Trace(*run[2]), Trace(*got)) for run, got in zip(expected, loaded, strict=True))
    return Result(**{**vars(result), "elsewhere": elsewhere})


def _replay(folder: Path) -> None:
    """Load every program of *folder* and run its steps: what the fresh process does."""
    for path in sorted(folder.glob("*.pt2")):
        saved = torch.load(path.with_suffix(".runs"), weights_only=True)
        found: Any
        try:
            call = files.load(path).module()
            found = [tuple(decode(call, saved["argument"], cache_from(start), ids)) for start, ids, _ in saved["runs"]]
        except Exception as error:  # noqa: BLE001  (goes into the report of the parent)
            found = _one_line(error)
        torch.save(found, path.with_suffix(".found"))


def _one_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0][:200] if lines else ''}"


if __name__ == "__main__":
    _replay(Path(sys.argv[1]))
