"""Every active gate earns its keep: with it the contract holds, and without it the contract breaks."""

from __future__ import annotations

import pickle
import subprocess
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from unittest import mock

import pytest
import torch
import torch.utils._pytree as pytree
from transformers import EncoderDecoderCache

import cachetree
from cachetree import _check, _gate, _register, _select
from cachetree._decode import difference
from cachetree._models import CASES, tiny_model
from tests.support import CACHES, KINDS, ROOT, filled, state

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

ADAPTERS = _select.adapters()
ACTIVE = _gate.active_gates(type(ADAPTERS.torch), type(ADAPTERS.transformers))


def without(defined_in: type, method: str) -> Any:
    """Give the two adapters with one gate taken away: its method is what the next newer adapter has."""

    def ungated(adapter: Any) -> Any:
        cls = type(adapter)
        if defined_in not in cls.__mro__:
            return cls()
        newer = getattr(super(defined_in, cls), method)
        return type("Ungated", (cls,), {method: newer})()

    return _select.Adapters(*(ungated(adapter) for adapter in ADAPTERS))


@contextmanager
def using(adapters: Any) -> Iterator[None]:
    """Have the package use these adapters, from before it registers anything."""
    with mock.patch.object(_select, "adapters", return_value=adapters), cachetree.register():
        yield


def contract(adapters: Any, folder: Path, gate: tuple[str, str] | None) -> None:
    """All that the package promises of a DynamicCache, as far as a gate is needed for it."""
    old = torch.__version__.startswith("2.5.")
    with pytest.warns(cachetree.OldTorchWarning) if old else using_nothing():
        adapters.torch.announce(stacklevel=1)
    with using(adapters):
        caches_survive()
        a_compiled_function_may_rebuild_a_cache()
        exported_model_is_exact()
        saved_program_is_written(folder)
    program_runs_in_a_fresh_process(folder, gate)


@contextmanager
def using_nothing() -> Iterator[None]:
    """Change nothing."""
    yield


def caches_survive() -> None:
    """Laws 1 to 3."""
    for make in (*CACHES.values(), *KINDS.values()):
        cache = make()
        if isinstance(cache, EncoderDecoderCache):
            continue
        node = _register.node_for(type(cache))
        children, context = node.flatten(cache)
        assert state(node.unflatten(children, context)) == state(cache)
        placeholders = [[None for _ in group] for group in children]
        assert node.flatten(node.unflatten(placeholders, context)) == (placeholders, context)


def a_compiled_function_may_rebuild_a_cache() -> None:
    """Dynamo traces unflatten."""
    torch._dynamo.reset()
    doubled = torch.compile(lambda c: pytree.tree_map(lambda leaf: leaf * 2, c), backend="eager", fullgraph=True)
    assert len(doubled(CACHES["filled"]()).layers) == 3


def exported_model_is_exact() -> None:
    """Law 6, in this process."""
    case = CASES[0]
    model = tiny_model(case.name)
    program = _check.export_decode_step(case, model)
    _, _, expected, found = _check.run(case, model, program, 3, 8)
    assert difference(expected, found) <= _check.TOLERANCE


class AutocastRegion(torch.nn.Module):
    """Computes a part of it with autocast switched off, as rotary embeddings do."""

    def forward(self, x: torch.Tensor, cache: Any) -> tuple[torch.Tensor, Any]:
        """Append *x* to the only layer."""
        with torch.autocast("cpu", enabled=False):
            x = x.float() * 2
        return cache.update(x, x, 0)[0], cache


def saved_program_is_written(folder: Path) -> None:
    """Law 6, as far as this process has a part in it."""
    program = torch.export.export(AutocastRegion(), (torch.ones(2, 2, 1, 8), filled(0)), strict=False)
    cachetree.save(program, folder / "saved.pt2")


def program_runs_in_a_fresh_process(folder: Path, gate: tuple[str, str] | None) -> None:
    """Law 6, in another one."""
    program = (
        "import pickle, sys, warnings; warnings.simplefilter('ignore')\n"
        "from cachetree import _select\n"
        "gate = pickle.loads(bytes.fromhex(sys.argv[2]))\n"
        "if gate:\n"
        "    from tests.test_gates import without\n"
        "    from importlib import import_module\n"
        "    adapters = without(import_module(gate[0]).Adapter, gate[1])\n"
        "    _select.adapters = lambda: adapters\n"
        "import cachetree\n"
        "cachetree.load(sys.argv[1]).module()\n"
    )
    command = [sys.executable, "-c", program, str(folder / "saved.pt2"), pickle.dumps(gate).hex()]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr[-1000:]


def test_contract_holds_with_all_gates(tmp_path: Path) -> None:
    contract(_select.Adapters(type(ADAPTERS.torch)(), type(ADAPTERS.transformers)()), tmp_path, None)


@pytest.mark.parametrize(("method", "defined_in"), [(method, cls) for method, _, cls in ACTIVE])
def test_contract_breaks_without(method: str, defined_in: type, tmp_path: Path) -> None:
    with pytest.raises(BaseException):  # noqa: B017, PT011  (each gate breaks it in its own way)
        contract(without(defined_in, method), tmp_path, (defined_in.__module__, method))


def test_gates_tell_why() -> None:
    for _, gate, _ in ACTIVE:
        assert len(gate.because.split()) > 5
        assert gate.upstream.startswith("https://github.com/")


def test_gates_of_a_pair_act_only_together() -> None:
    for method, gate, _ in ACTIVE:
        partners = [other for other, found, _ in ACTIVE if gate.pair is not None and found.pair == gate.pair]
        assert len(partners) in {0, 2}, method


def test_older_adapters_import_newer_ones_only() -> None:
    for adapter in ADAPTERS:
        bounds = []
        for cls in type(adapter).__mro__[:-1]:
            *_, major, minor = ("0", *cls.__module__.rpartition(".")[2].split("_"))
            bounds.append((99, 99) if minor == "current" else (int(major), int(minor)))
        assert bounds == sorted(bounds), bounds
