"""Tiny models of transformers with random weights, made from configs: nothing is downloaded."""

from __future__ import annotations

import inspect
from dataclasses import dataclass, field
from typing import Any, Literal

import torch

from cachetree import _select, access

__all__ = ["CASES", "VOCABULARY", "Case", "Start", "prefilled", "tiny_model"]

VOCABULARY = 64


@dataclass(frozen=True)
class Case:
    """A model, and the cache that it decodes with.

    Attributes:
        name: what the report calls it.
        model: the model type of transformers.
        config: fields of its config.
        cache: the one that the model makes itself, a static one, or one for an encoder-decoder model.
        kind: a kind of layer that the cache has; a release without it does not have the case.
        attention: the implementation of attention.
    """

    name: str
    model: str
    config: dict[str, Any]
    cache: Literal["dynamic", "static", "encoder-decoder"] = "dynamic"
    kind: str = "full"
    attention: Literal["sdpa", "eager"] = "sdpa"

    @property
    def exists(self) -> bool:
        """Whether the installed transformers has the model and the kind of layer."""
        from transformers import CONFIG_MAPPING

        kinds = _select.adapters().transformers.kinds().values()
        return self.model in CONFIG_MAPPING and self.kind in {kind.name for kind in kinds}


_TOKENS = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0, "vocab_size": VOCABULARY}
# Large enough weights that attention to a wrong token shows in the logits.
_LLAMA: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "initializer_range": 0.2,
}
_GPT2: dict[str, Any] = {"n_embd": 32, "n_layer": 3, "n_head": 4, "n_positions": 64, "initializer_range": 0.2}
_OPT: dict[str, Any] = {
    "hidden_size": 32,
    "ffn_dim": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
    "word_embed_proj_dim": 32,
    "init_std": 0.2,
}
_T5: dict[str, Any] = {
    "d_model": 32,
    "d_kv": 8,
    "d_ff": 64,
    "num_layers": 2,
    "num_heads": 4,
    "decoder_start_token_id": 0,
    "initializer_factor": 3.0,
}
_LFM2: dict[str, Any] = {**_LLAMA, "layer_types": ["conv", "full_attention", "conv"], "conv_L_cache": 3}

_GEMMA2: dict[str, Any] = {**_LLAMA, "sliding_window": 4, "head_dim": 8}

CASES = (
    Case("llama", "llama", _LLAMA),
    Case("mistral", "mistral", {**_LLAMA, "sliding_window": None}),
    Case("qwen2", "qwen2", _LLAMA),
    Case("phi3", "phi3", _LLAMA),
    Case("gpt2", "gpt2", _GPT2),
    Case("opt", "opt", _OPT),
    Case("mistral, window 4", "mistral", {**_LLAMA, "sliding_window": 4}, kind="sliding"),
    Case(
        "gemma2, window 4", "gemma2", {**_LLAMA, "sliding_window": 4, "head_dim": 8}, kind="sliding", attention="eager"
    ),
    Case("llama, static", "llama", _LLAMA, "static", "static"),
    Case("t5", "t5", _T5, "encoder-decoder", attention="eager"),
    Case("lfm2", "lfm2", _LFM2, kind="linear"),
)


def tiny_model(name: str, **changes: Any) -> Any:
    """Build the model of a case, the same weights every time.

    Args:
        name: the name of one of `CASES`.
        **changes: fields of the config to set otherwise, or ``attn_implementation``.
    """
    import transformers

    upstream: Any = transformers
    case = next(case for case in CASES if case.name == name)
    attention = changes.pop("attn_implementation", case.attention)
    config = upstream.AutoConfig.for_model(case.model, **{**_TOKENS, **case.config, **changes})
    auto = upstream.AutoModelForSeq2SeqLM if case.cache == "encoder-decoder" else upstream.AutoModelForCausalLM
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return auto.from_config(config, attn_implementation=attention).eval()


@dataclass
class Start:
    """Where decoding begins.

    Attributes:
        cache: what has been seen so far.
        steps: for each step the arguments of the model besides the cache.
        shapes: the dynamic shapes of these arguments.
    """

    cache: Any
    steps: list[dict[str, Any]]
    shapes: dict[str, Any] = field(default_factory=dict)


def prefilled(case: Case, model: Any, batch: int, length: int, steps: int) -> Start:
    """Have *model* see *length* random tokens in each of *batch* sequences, and pick those of the steps to come."""
    generator = torch.Generator().manual_seed(batch * 1000 + length)
    ids = torch.randint(3, VOCABULARY, (batch, length + steps), generator=generator)
    auto = torch.export.Dim.AUTO  # type: ignore[attr-defined]  # torch 2.7 types Dim as a function
    tokens = "decoder_input_ids" if case.cache == "encoder-decoder" else "input_ids"
    prompt: dict[str, Any] = {tokens: ids[:, :length], "use_cache": True}
    further: dict[str, Any] = {}
    shapes: dict[str, Any] = {tokens: {0: auto}}
    with torch.no_grad():
        if case.cache == "encoder-decoder":
            source = torch.randint(3, VOCABULARY, (batch, length + 2), generator=generator)
            further["encoder_outputs"] = (model.get_encoder()(input_ids=source).last_hidden_state,)
            shapes["encoder_outputs"] = ({0: auto, 1: auto},)
        positions = case.cache == "static" and "cache_position" in inspect.signature(model.forward).parameters
        if case.cache == "static":
            from transformers import StaticCache

            prompt[access.cache_argument(model)] = StaticCache(config=model.config, max_cache_len=32)
        if positions:
            # Below transformers 5.4 a model finds the position in a static cache only by looking at its data.
            prompt["cache_position"] = torch.arange(length)
            shapes["cache_position"] = {}
        cache = access.cache_of(model(**prompt, **further))
    calls = []
    for at in range(length, length + steps):
        position = {"cache_position": torch.arange(at, at + 1)} if positions else {}
        calls.append({tokens: ids[:, [at]], **further, **position})
    return Start(cache, calls, shapes)
