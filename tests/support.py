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
from transformers import (
    DynamicCache,
    EncoderDecoderCache,
    Gemma2Config,
    LlamaConfig,
    MistralConfig,
    StaticCache,
    cache_utils,
)

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


def updated(cache: Any, *layers: int, batch: int = 2, length: int = 3, heads: int = 2, **tensor: Any) -> Any:
    """Fill these layers of a cache."""
    for layer in layers:
        keys = torch.full((batch, heads, length, 8), float(layer), **tensor)
        # Below transformers 5.4 a static layer is told where the tokens belong.
        positions = {"cache_position": torch.arange(length, device=keys.device)}
        cache.update(keys, -keys, layer, positions)
    return cache


def with_layers(*names: str, **how: Any) -> Any:
    """Build a DynamicCache of layers of these classes, all of which hold something."""
    cache = DynamicCache()
    arguments = {"Sliding": {"sliding_window": 4}, "Static": {"max_cache_len": 16}}
    cache.layers = [
        getattr(cache_utils, name)(**{k: v for part, how in arguments.items() if part in name for k, v in how.items()})
        for name in names
    ]
    tensor = {name: value for name, value in how.items() if name in {"dtype", "device"}}
    layers: list[Any] = cache.layers
    for index, layer in enumerate(layers):
        if hasattr(layer, "update_conv_state"):
            layer.update_conv_state(torch.full((how.get("batch", 2), 4, 3), float(index), **tensor))
            layer.update_recurrent_state(torch.full((how.get("batch", 2), 4, 5), float(index), **tensor))
        if hasattr(layer, "keys") and type(layer).__name__ != "DummyLayer":
            updated(cache, index, **how)
    return cache


def windowed(**more: Any) -> MistralConfig:
    """Give a config of which every layer has a window."""
    return MistralConfig(**{**_SIZES, "num_hidden_layers": 2, "sliding_window": 4, **more})


_SIZES: dict[str, Any] = {
    "num_hidden_layers": 3,
    "hidden_size": 32,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 64,
    "vocab_size": 64,
}
MIXED = Gemma2Config(**{**_SIZES, "num_hidden_layers": 2, "head_dim": 8, "sliding_window": 4})


def static(config: Any) -> Any:
    """Build a static cache for 16 tokens."""
    return StaticCache(config=config, max_cache_len=16)


# Of full attention, as far as anything is there yet.
CACHES: dict[str, Callable[..., Any]] = {
    "no layers": lambda **how: filled(**how),
    "filled": lambda **how: filled(0, 1, 2, **how),
    "filled, from a config": lambda **how: filled(0, 1, 2, config=CONFIG, **how),
    "all empty": lambda **how: filled(config=CONFIG, **how),
    "first skipped": lambda **how: filled(1, 2, **how),
    "middle skipped": lambda **how: filled(0, 2, **how),
    "last empty": lambda **how: filled(0, 1, config=CONFIG, **how),
}

# Of every other kind of layer and of cache. Those that the installed release does not have are not in it.
KINDS: dict[str, Callable[..., Any]] = {
    "sliding": lambda **how: updated(DynamicCache(config=windowed()), 0, 1, **how),
    "sliding, past the window": lambda **how: updated(DynamicCache(config=windowed()), 0, 1, **{"length": 7, **how}),
    "sliding, empty": lambda **_: DynamicCache(config=windowed()),
    "sliding, one empty": lambda **how: updated(DynamicCache(config=windowed()), 1, **how),
    "sliding beside full": lambda **how: updated(DynamicCache(config=MIXED), 0, 1, **{"length": 7, **how}),
    "sliding beside full, out of step": lambda **how: updated(
        updated(DynamicCache(config=MIXED), 0, 1, **how), 0, **how
    ),
    "static": lambda **how: updated(static(CONFIG), 0, 1, 2, **how),
    "static, not initialized": lambda **_: static(CONFIG),
    "static sliding": lambda **how: updated(static(windowed()), 0, 1, **how),
    "static sliding beside static": lambda **how: updated(static(MIXED), 0, 1, **how),
    "encoder-decoder": lambda **how: EncoderDecoderCache(filled(0, 1, **how), filled(0, 1, **how)),
    "encoder-decoder, not updated": lambda **how: EncoderDecoderCache(filled(0, 1, **how), filled(config=CONFIG)),
    "encoder-decoder, static": lambda **how: EncoderDecoderCache(
        updated(static(CONFIG), 0, 1, 2, **how), filled(0, **how)
    ),
}
if hasattr(cache_utils.DynamicSlidingWindowLayer, "activate_past_recording"):

    def _recording(**how: Any) -> Any:
        cache: Any = DynamicCache(config=windowed())
        for layer in cache.layers:
            layer.activate_past_recording()
        return updated(cache, 0, 1, **{"length": 7, **how})

    KINDS["sliding, recording its past"] = _recording
for _names in (
    ("LinearAttentionLayer", "DynamicLayer"),
    ("LinearAttentionAndFullAttentionLayer",),
    ("LinearAttentionAndSlidingWindowAttentionLayer", "LinearAttentionAndSlidingWindowAttentionLayer"),
    ("LinearAttentionAndStaticFullAttentionLayer", "LinearAttentionLayer"),
    ("LinearAttentionAndStaticSlidingWindowAttentionLayer",),
    ("DummyLayer", "DynamicLayer"),
):
    if all(hasattr(cache_utils, _name) for _name in _names):
        KINDS[" and ".join(_names)] = lambda _names=_names, **how: with_layers(*_names, **how)


def state(cache: Any) -> Any:
    """Give all that a cache and its layers hold, tensors by identity."""
    if isinstance(cache, EncoderDecoderCache):
        return [state(cache.self_attention_cache), state(cache.cross_attention_cache), cache.is_updated]
    return [
        (type(layer), {name: _comparable(name, value) for name, value in vars(layer).items()}) for layer in cache.layers
    ]


def _comparable(name: str, value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _comparable(name, one) for key, one in value.items()}
    if name == "_sliding_window_tensor":
        return value.item()  # a constant that nothing writes to; a rebuilt layer has one with the same number
    # Whether a static layer with a window can be cropped follows from what it does not keep: a rebuilt one cannot.
    return id(value) if isinstance(value, torch.Tensor) else None if name == "_is_croppable" else value


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
