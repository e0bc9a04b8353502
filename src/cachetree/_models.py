"""Tiny models of transformers with random weights, made from configs: nothing is downloaded."""

from __future__ import annotations

from typing import Any

import torch

__all__ = ["MODELS", "VOCABULARY", "tiny_model"]

VOCABULARY = 64

# By model type. Large enough weights that attention to a wrong token shows in the logits.
_LLAMA_LIKE: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "initializer_range": 0.2,
}
_TOKENS = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
MODELS: dict[str, dict[str, Any]] = {
    "llama": _LLAMA_LIKE,
    "mistral": {**_LLAMA_LIKE, "sliding_window": None},
    "qwen2": _LLAMA_LIKE,
    "phi3": _LLAMA_LIKE,
    "gpt2": {"n_embd": 32, "n_layer": 3, "n_head": 4, "n_positions": 64, "initializer_range": 0.2},
    "opt": {
        "hidden_size": 32,
        "ffn_dim": 64,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "max_position_embeddings": 64,
        "word_embed_proj_dim": 32,
        "init_std": 0.2,
    },
}


def tiny_model(name: str, **changes: Any) -> Any:
    """Build the model of type *name*, the same weights every time.

    Args:
        name: a key of `MODELS`.
        **changes: fields of the config to set otherwise.
    """
    import transformers

    upstream: Any = transformers

    config = upstream.AutoConfig.for_model(name, vocab_size=VOCABULARY, **{**_TOKENS, **MODELS[name], **changes})
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return upstream.AutoModelForCausalLM.from_config(config).eval()
