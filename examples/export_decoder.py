"""Export the decode step of a model with its cache, save it, load it, and generate with it."""

from __future__ import annotations

import sys

import torch
from transformers import LlamaConfig, LlamaForCausalLM

import cachetree

torch.manual_seed(0)
torch.set_grad_enabled(False)
path = sys.argv[1] if len(sys.argv) > 1 else "decoder.pt2"
config = LlamaConfig(vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4)
model: torch.nn.Module = LlamaForCausalLM(config)
model.train(mode=False)

cachetree.register()
argument = cachetree.cache_argument(model)  # "cache" in the newest transformers, else "past_key_values"
cache = cachetree.cache_of(model(input_ids=torch.randint(64, (2, 5)), use_cache=True))
auto = torch.export.Dim.AUTO  # type: ignore[attr-defined]  # torch 2.7 types Dim as a function
dims = {"batch": auto, "length": auto}
with cachetree.exportable(model):
    program = torch.export.export(
        model,
        (),
        {"input_ids": torch.randint(64, (2, 1)), argument: cache},
        dynamic_shapes={"input_ids": {0: dims["batch"]}, argument: cachetree.dynamic_shapes(cache, **dims)},
        strict=False,
    )
cachetree.save(program, path)

# Any process: this one call is all that it needs before it runs the program.
step = cachetree.load(path).module()
ids = torch.randint(64, (3, 8))
eager, exported = (cachetree.cache_of(model(input_ids=ids, use_cache=True)) for _ in range(2))
for _ in range(4):
    token = torch.randint(64, (3, 1))
    expected = model(**{"input_ids": token, argument: eager})
    found = step(**{"input_ids": token, argument: exported})
    torch.testing.assert_close(found["logits"], expected["logits"])
    eager, exported = cachetree.cache_of(expected), cachetree.cache_of(found)
print(f"{exported.get_seq_length()} tokens for a batch of 3: exact")
