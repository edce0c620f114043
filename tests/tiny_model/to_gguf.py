"""
Converts the tiny model to GGUF, for llama.cpp.

    python to_gguf.py model tiny-times.gguf

Needs gguf 0.19, safetensors and numpy. The same input gives the same bytes.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from safetensors import safe_open

LAYER_TENSORS = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
TENSORS = {"model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight"}


def add_shape(writer: gguf.GGUFWriter, config: dict[str, Any]) -> None:
    """Write the model's shape."""
    rope = config.get("rope_parameters") or config
    writer.add_name("tiny-times")
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(rope["rope_theta"])
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)


def add_tokenizer(writer: gguf.GGUFWriter, tokenizer: dict[str, Any], size: int, template: str) -> None:
    """Write the tokens: added ones are control or user-defined, the padding up to size is unused."""
    words = {number: token for token, number in tokenizer["model"]["vocab"].items()}
    added = {token["id"]: token for token in tokenizer["added_tokens"]}
    tokens, types = [], []
    for number in range(size):
        if number in added:
            special = added[number]["special"]
            tokens.append(added[number]["content"])
            types.append(gguf.TokenType.CONTROL if special else gguf.TokenType.USER_DEFINED)
        else:
            tokens.append(words.get(number, f"[PAD{number}]"))
            types.append(gguf.TokenType.NORMAL if number in words else gguf.TokenType.UNUSED)
    number_of = {token["content"]: number for number, token in added.items()}
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in tokenizer["model"]["merges"]]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    writer.add_token_merges(merges)
    writer.add_eos_token_id(number_of["<|im_end|>"])
    writer.add_bos_token_id(number_of["<|endoftext|>"])
    writer.add_pad_token_id(number_of["<|endoftext|>"])
    writer.add_add_bos_token(False)
    writer.add_chat_template(template)


def gguf_name(name: str) -> str:
    """Give llama.cpp's name of a tensor."""
    if name in TENSORS:
        return TENSORS[name]
    _, _, layer, rest = name.split(".", 3)
    return f"blk.{layer}.{LAYER_TENSORS[rest.removesuffix('.weight')]}.weight"


def main(source: Path, target: Path) -> None:
    """Convert."""
    config = json.loads((source / "config.json").read_text())
    writer = gguf.GGUFWriter(target, "qwen3")
    add_shape(writer, config)
    tokenizer = json.loads((source / "tokenizer.json").read_text())
    add_tokenizer(writer, tokenizer, config["vocab_size"], (source / "chat_template.jinja").read_text())
    with safe_open(source / "model.safetensors", "np") as tensors:
        for name in tensors.keys():  # noqa: SIM118  it is no dictionary
            if name != "lm_head.weight":  # tied to the embedding
                writer.add_tensor(gguf_name(name), tensors.get_tensor(name).astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
