"""Caches to test with, and how to compare and run things."""

from __future__ import annotations

import atexit
import functools
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from transformers import DynamicCache, LlamaConfig

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = Path(__file__).resolve().parent.parent

CONFIG = LlamaConfig(
    num_hidden_layers=3,
    hidden_size=32,
    num_attention_heads=4,
    num_key_value_heads=2,
    intermediate_size=64,
    vocab_size=64,
)

# What runs before the program of `run_python`: optree is not there, is there, or is already used by torch.
OPTREE = {
    "absent": "import importlib.util; assert importlib.util.find_spec('optree') is None",
    "pending": "import importlib.util; assert importlib.util.find_spec('optree') is not None",
    "imported": "import torch.utils._cxx_pytree",
}


def filled(*layers: int, batch: int = 2, length: int = 3, config: LlamaConfig | None = None, **tensor: Any) -> Any:
    """Build a DynamicCache in which just these layers hold tensors."""
    cache = DynamicCache() if config is None else DynamicCache(config=config)
    for layer in layers:
        keys = torch.full((batch, 2, length, 8), float(layer), **tensor)
        cache.update(keys, -keys, layer)
    return cache


CACHES: dict[str, Callable[..., Any]] = {
    "no layers": lambda **how: filled(**how),
    "filled": lambda **how: filled(0, 1, 2, **how),
    "filled, from a config": lambda **how: filled(0, 1, 2, config=CONFIG, **how),
    "all empty": lambda **how: filled(config=CONFIG, **how),
    "first skipped": lambda **how: filled(1, 2, **how),
    "middle skipped": lambda **how: filled(0, 2, **how),
    "last empty": lambda **how: filled(0, 1, config=CONFIG, **how),
}


def state(cache: Any) -> list[tuple[type, dict[str, Any]]]:
    """Give all that the layers of a cache hold, tensors by identity."""
    return [
        (type(layer), {k: id(v) if isinstance(v, torch.Tensor) else v for k, v in vars(layer).items()})
        for layer in cache.layers
    ]


def run_python(program: str, *arguments: str, optree: str = "pending") -> Any:
    """Run a program in a fresh interpreter; give what it printed last, read as JSON."""
    code = f"{OPTREE[optree]}\n{textwrap.dedent(program)}"
    environment = quiet_environment()
    command = [sys.executable, "-c", code, *arguments]
    if optree == "absent":
        environment["PYTHONPATH"] = os.pathsep.join([site_packages_without_optree(), str(ROOT / "src"), str(ROOT)])
        command.insert(1, "-S")  # without the site-packages of the environment, which has optree
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT, env=environment)
    assert done.returncode == 0, f"exit {done.returncode}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    return json.loads(done.stdout.splitlines()[-1])


def quiet_environment() -> dict[str, str]:
    """Give the environment of this process without what silences or adds warnings."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONWARNINGS"}


@functools.cache
def site_packages_without_optree() -> str:
    """Make a folder of links to everything that is installed but optree."""
    folder = Path(tempfile.mkdtemp(prefix="without-optree-"))
    atexit.register(shutil.rmtree, folder)
    for entry in Path(sysconfig.get_path("purelib")).iterdir():
        if not entry.name.startswith("optree"):
            (folder / entry.name).symlink_to(entry)
    return str(folder)
