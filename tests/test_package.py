"""The package as such: what importing it does, its names, versions, the matrix and the commands."""

from __future__ import annotations

import copy
import importlib
import json
import re
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

import cachetree
from cachetree import _select, _status
from cachetree import _support_window as window
from tests.support import ROOT, filled, quiet_environment, run_python

if TYPE_CHECKING:
    from pathlib import Path

NAMES = [
    "AlreadyRegisteredError", "CachetreeError", "ClassStatus", "Environment", "GateInfo", "InvalidArgumentError",
    "LayoutError", "OldTorchWarning", "Registration", "UnsupportedCacheError", "UnsupportedTorchError",
    "UnsupportedTransformersError", "__version__", "cache_argument", "cache_of", "dynamic_shapes", "environment",
    "exportable", "load", "register", "save", "status",
]  # fmt: skip


def test_import_brings_in_neither_torch_nor_transformers() -> None:
    assert run_python(
        """
        import sys, json
        before = set(sys.modules)
        import cachetree
        dir(cachetree)
        new = set(sys.modules) - before
        print(json.dumps(not [n for n in new if n.split(".")[0] in {"torch", "transformers", "numpy", "packaging"}]))
        """
    )


def test_public_names_are_these_and_all_there() -> None:
    assert cachetree.__all__ == NAMES
    assert dir(cachetree) == NAMES
    for name in NAMES:
        assert getattr(cachetree, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'unknown'"):
        _ = cachetree.unknown


def test_functions_stay_functions_whatever_submodule_is_imported() -> None:
    for path in (ROOT / "src" / "cachetree").glob("*.py"):
        if path.stem not in {"__init__", "__main__"}:
            importlib.import_module(f"cachetree.{path.stem}")
    assert callable(cachetree.exportable)
    assert callable(cachetree.status)


@pytest.mark.parametrize(
    ("version", "minor"),
    [
        ("2.6.0", (2, 6)),
        ("2.7.0.dev20250101", (2, 7)),
        ("2.6.0a0+gitabc1234", (2, 6)),
        ("2.6.0+cpu", (2, 6)),
        ("2.10.0rc1", (2, 10)),
        ("2.15", (2, 15)),
        ("3", (3, 0)),
    ],
)
def test_version_strings_are_what_their_numbers_say(version: str, minor: tuple[int, int]) -> None:
    assert _select.minor_of(version) == minor


@pytest.mark.parametrize(
    ("version", "adapter"),
    [
        ("2.5.1", "below_2_6"),
        ("2.6.0a0+git", "only_2_6"),
        ("2.7.0.dev20250101", "below_2_10"),
        ("2.9.1", "below_2_10"),
        ("2.10.0", "current"),
        ("9.0.0", "current"),
    ],
)
def test_torch_adapters(version: str, adapter: str) -> None:
    assert _select.name_of_torch_adapter(version) == adapter


@pytest.mark.parametrize(
    ("version", "adapter"),
    [
        ("4.56.2", "below_4_57"),
        ("4.57.0.dev0", "below_5_0"),
        ("5.0.0", "below_5_4"),
        ("5.24.0", "current"),
        ("6.1", "current"),
    ],
)
def test_transformers_adapters(version: str, adapter: str) -> None:
    assert _select.name_of_transformers_adapter(version) == adapter


def test_versions_below_the_floor_are_refused() -> None:
    with pytest.raises(
        cachetree.UnsupportedTorchError, match=r"torch 2\.5 and later .* but torch 2\.4\.1 is installed"
    ):
        _select.name_of_torch_adapter("2.4.1")
    with pytest.raises(cachetree.UnsupportedTransformersError, match=r"but transformers 4\.40\.0 is installed"):
        _select.name_of_transformers_adapter("4.40.0")


def test_every_adapter_of_the_window_can_be_imported() -> None:
    names = [*(n for _, n in window.TORCH_ADAPTERS), *window.TORCH_ONLY.values()]
    for name in names:
        assert importlib.import_module(f"cachetree._torch.{name}").Adapter
    for _, name in window.TRANSFORMERS_ADAPTERS:
        # Modules for older releases may need what the installed one no longer has; the newer ones must not.
        assert (ROOT / "src" / "cachetree" / "_transformers" / f"{name}.py").exists()


def test_folders_of_the_two_axes_do_not_know_each_other() -> None:
    for folder, other in (("_torch", "_transformers"), ("_transformers", "_torch")):
        for path in (ROOT / "src" / "cachetree" / folder).glob("*.py"):
            lines = path.read_text(encoding="utf-8").splitlines()
            imports = [line for line in lines if line.startswith(("import ", "from ")) and f"cachetree.{other}" in line]
            assert not imports, path


def test_environment_describes_the_running_pair() -> None:
    found = cachetree.environment()
    pair = (_select.minor_of(found.torch), _select.minor_of(found.transformers))
    assert (found.tier == "tested") == (pair in window.TESTED_PAIRS)
    assert found.torch_adapter.startswith("cachetree._torch.")
    assert all(gate.because and gate.upstream.startswith("https://") for gate in found.gates)


@pytest.mark.parametrize(
    ("torch", "transformers", "tier"),
    [
        (window.TORCH_NEWEST, window.TRANSFORMERS_NEWEST, "tested"),
        ((window.TORCH_NEWEST[0], window.TORCH_NEWEST[1] + 1), window.TRANSFORMERS_NEWEST, "newer than tested"),
        (window.TORCH_NEWEST, (window.TRANSFORMERS_NEWEST[0] + 1, 0), "newer than tested"),
        (window.TORCH_NEWEST, (5, 1), "supported"),
    ],
)
def test_tiers(torch: tuple[int, int], transformers: tuple[int, int], tier: str) -> None:
    assert _status._tier(torch, transformers) == tier


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the command line."""
    full = [sys.executable, "-m", "cachetree", *arguments]
    return subprocess.run(full, capture_output=True, text=True, check=False, cwd=ROOT, env=quiet_environment())


def test_status_as_text() -> None:
    done = command("status")
    assert done.returncode == 0, done.stderr
    found = cachetree.environment()
    assert f"torch {found.torch}, served by {found.torch_adapter}" in done.stdout
    for gate in found.gates:
        assert gate.because in done.stdout
    assert "not registered: torch.export refuses it" in done.stdout


def test_status_as_json_names_every_cache_class() -> None:
    done = command("status", "--json")
    found = json.loads(done.stdout)
    classes = {row["cls"]: row for row in found["classes"]}
    assert classes["transformers.cache_utils.DynamicCache"]["owner"] is None
    assert "transformers.cache_utils.StaticCache" in classes
    assert len(found["environment"]["gates"]) == len(cachetree.environment().gates)


def test_status_knows_sound_from_unsound() -> None:
    rows = run_python(
        """
        import json, warnings
        warnings.simplefilter("ignore")
        import cachetree
        from transformers.cache_utils import DynamicCache
        from transformers.integrations.executorch import register_dynamic_cache_export_support as upstream
        def row():
            return next([r.owner, r.sound, r.reason] for r in cachetree.status() if r.cls is DynamicCache)
        rows = [row()]
        upstream()
        rows.append(row())
        class Mine(DynamicCache): pass
        with cachetree.register(), cachetree.register(Mine):
            rows.append(row())
            rows.append([[r.cls.__name__, r.reason] for r in cachetree.status() if r.owner and not r.sound])
            rows.append([r.owner for r in cachetree.status() if r.cls is Mine])
        print(json.dumps(rows))
        """
    )
    assert rows[0] == [None, False, "not registered: torch.export refuses it"]
    assert rows[1][:2] == ["transformers.integrations.executorch", False]
    assert rows[1][2] == "a layer that holds nothing yet is lost, and the layers behind it change places"
    assert rows[2] == ["cachetree._layered", True, None]
    assert rows[3:] == [[], ["cachetree._layered"]]


def test_check_is_exact_on_this_pair() -> None:
    done = command("check", "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout)
    assert {row["model"] for row in found["results"]} >= {"llama", "gpt2", "mistral, window 4", "llama, static", "t5"}
    for row in found["results"]:
        assert row["exact"], row
        assert max(row["here"], row["elsewhere"]) <= found["tolerance"]
    assert "exporting llama" in done.stderr


def test_check_reports_what_is_not_exact(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    from cachetree import __main__, _check, _models

    monkeypatch.setattr(_check, "CASES", [case for case in _models.CASES if case.name in {"llama", "gpt2"}])
    honest = _check.export_decode_step

    def dishonest(case: Any, model: Any) -> Any:
        if model.config.model_type == "gpt2":
            raise RuntimeError("no export\nsecond line")
        other = copy.deepcopy(model)
        other.lm_head.weight.data.mul_(1.01)
        return honest(case, other)

    monkeypatch.setattr(_check, "export_decode_step", dishonest)
    assert __main__.main(["check", "--json"]) == 1
    llama, gpt2 = json.loads(capsys.readouterr().out)["results"]
    assert not llama["exact"]
    assert min(llama["here"], llama["elsewhere"]) > _check.TOLERANCE
    assert gpt2["error"] == "RuntimeError: no export"
    assert not gpt2["exact"]


def test_wrong_usage_exits_with_2() -> None:
    assert command("nonsense").returncode == 2
    assert command().returncode == 2


def test_matrix_and_generated_files_agree() -> None:
    done = subprocess.run(
        [sys.executable, "tools/sync_matrix.py", "--check"], capture_output=True, text=True, check=False, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr


def test_stale_generated_files_are_found(tmp_path: Path) -> None:
    for name in ("compat_matrix.toml", "pyproject.toml", "README.md", "docs", "src", "tools"):
        source, copied = ROOT / name, tmp_path / name
        shutil.copytree(source, copied) if source.is_dir() else shutil.copy(source, copied)
    window_file = tmp_path / "src" / "cachetree" / "_support_window.py"
    window_file.write_text(window_file.read_text(encoding="utf-8").replace("(2, 5)", "(2, 4)"), encoding="utf-8")
    (tmp_path / "src" / "cachetree" / "_torch" / "below_2_2.py").touch()
    done = subprocess.run(
        [sys.executable, "tools/sync_matrix.py", "--check"], capture_output=True, text=True, check=False, cwd=tmp_path
    )
    assert done.returncode == 1
    assert "src/cachetree/_support_window.py is stale: run `nox -s sync`" in done.stderr
    assert "nothing in the matrix names the adapter 'below_2_2': name it, or delete" in done.stderr


def test_readme_snippet_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    from cachetree._models import tiny_model

    monkeypatch.chdir(tmp_path)
    (snippet,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    names = {
        "model": tiny_model("llama"),
        "prompt": torch.ones(2, 4, dtype=torch.long),
        "token": torch.ones(2, 1).long(),
    }
    with torch.no_grad():
        exec(snippet, names)
        step: Any = names["step"]
        assert step(**{"input_ids": torch.ones(3, 1).long(), str(names["argument"]): filled(0, 1, 2, batch=3)})


def test_example_runs(tmp_path: Path) -> None:
    example = ROOT / "examples" / "export_decoder.py"
    done = subprocess.run(
        [sys.executable, str(example), str(tmp_path / "decoder.pt2")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert "exact" in done.stdout
