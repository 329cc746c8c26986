"""A Llama of 2 layers whose answers show with which weights they were computed: version n answers only tokens n.

The layers add nothing, so a token's logit is the product of the embedding and its row of the head. In version n both
have the sign of n's parity, and only row n of the head is not 0: if embedding and head are of two consecutive
versions, that logit is below 0, and the token is 0.
"""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import save_file

from understudy_rollout import Tensor

WIDTH, LAYERS, HEADS, VOCABULARY = 64, 2, 2, 64
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": WIDTH,
    "intermediate_size": WIDTH,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": HEADS,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-6,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "torch_dtype": "float32",
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def weights(version: int) -> dict[str, torch.Tensor]:
    sign = 1.0 if version % 2 else -1.0
    square, norm = torch.zeros(WIDTH, WIDTH), torch.ones(WIDTH)
    head = torch.zeros(VOCABULARY, WIDTH)
    head[version] = sign
    named = {"model.embed_tokens.weight": torch.full((VOCABULARY, WIDTH), sign)}
    for layer in range(LAYERS):
        at = f"model.layers.{layer}"
        for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
            named[f"{at}.self_attn.{name}.weight"] = square.clone()
        for name in ("gate_proj", "up_proj", "down_proj"):
            named[f"{at}.mlp.{name}.weight"] = square.clone()
        for name in ("input_layernorm", "post_attention_layernorm"):
            named[f"{at}.{name}.weight"] = norm.clone()
    return {**named, "model.norm.weight": norm.clone(), "lm_head.weight": head}


def tensors(version: int) -> list[Tensor]:
    return [Tensor(name, "float32", tuple(value.shape)) for name, value in weights(version).items()]


def write(folder: Path, version: int) -> Path:
    """As a checkpoint that vLLM loads."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(CONFIG))
    save_file(weights(version), folder / "model.safetensors", metadata={"format": "pt"})
    return folder
