"""
Trains the tiny model with a multi-token-prediction head, for SGLang's NEXTN speculation.

    python train_nextn.py OUT [--steps 760] [--head-steps 250]

SGLang's MiMo architecture is Qwen2 with one such layer: at position t it sees the last hidden state h_t, after the
final norm, and the embedding of token t+1, zeroed at position 0, and says token t+2.
The model is trained first, then the head alone. Needs what train.py needs; about 6 minutes on one thread.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizer import train_tokenizer
from train import IGNORED, RATE, TEMPLATE, accuracy, batch, train
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM
from transformers.models.qwen2.modeling_qwen2 import Qwen2DecoderLayer, Qwen2RMSNorm


class Head(torch.nn.Module):
    """The layer that says the token after the next one; its parameters carry MiMo's names."""

    def __init__(self, model: Qwen2ForCausalLM) -> None:
        super().__init__()
        config = model.config
        size, epsilon = config.hidden_size, config.rms_norm_eps
        self.token_layernorm = Qwen2RMSNorm(size, eps=epsilon)
        self.hidden_layernorm = Qwen2RMSNorm(size, eps=epsilon)
        self.input_proj = torch.nn.Linear(2 * size, size, bias=False)
        self.block = Qwen2DecoderLayer(config, 0)
        self.final_layernorm = Qwen2RMSNorm(size, eps=epsilon)
        self._rotary = [model.model.rotary_emb]  # in a list: it is the model's, not a part of the head
        for weights in self.parameters():
            if weights.dim() > 1:
                torch.nn.init.normal_(weights, std=0.05)

    def forward(self, hidden: torch.Tensor, embedded: torch.Tensor) -> torch.Tensor:
        """Give the state before the output matrix. All of shape (batch, length, hidden size)."""
        rows, length = hidden.shape[:2]
        positions = torch.arange(length)[None].expand(rows, length)
        mask = torch.full((length, length), float("-inf")).triu(1)[None, None]
        embedded = embedded * (positions > 0)[..., None]
        state = self.input_proj(torch.cat((self.hidden_layernorm(hidden), self.token_layernorm(embedded)), -1))
        rotary = self._rotary[0](state, positions)
        state = self.block(state, attention_mask=mask, position_ids=positions, position_embeddings=rotary)
        return self.final_layernorm(state[0] if isinstance(state, tuple) else state)


def new_model(tokenizer: PreTrainedTokenizerFast) -> Qwen2ForCausalLM:
    """Give the untrained model: 2 heads of 64 and 2 KV heads, so that TP 2 divides them."""
    end, padding = (tokenizer.convert_tokens_to_ids(token) for token in ("<|im_end|>", "<|endoftext|>"))
    config = Qwen2Config(
        vocab_size=math.ceil(len(tokenizer) / 64) * 64,
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=3,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=512,
        rope_theta=10000.0,
        tie_word_embeddings=True,
        bos_token_id=padding,
        eos_token_id=end,
        pad_token_id=padding,
        attention_dropout=0.0,
        use_sliding_window=False,
        initializer_range=0.05,
    )
    model = Qwen2ForCausalLM(config)
    generation = model.generation_config
    generation.do_sample = False
    generation.eos_token_id, generation.pad_token_id, generation.bos_token_id = [end, padding], padding, padding
    return model


def train_head(model: Qwen2ForCausalLM, head: Head, tokenizer: PreTrainedTokenizerFast, steps: int) -> float:
    """Train the head with the model frozen, and give the accuracy of its last batch on answer tokens."""
    optimizer = torch.optim.AdamW(head.parameters(), lr=RATE, betas=(0.9, 0.98), weight_decay=0.05)
    rng, right = random.Random(4), 0.0
    head.train()
    for step in range(steps):
        for group in optimizer.param_groups:
            cosine = 0.485 * (1 + math.cos(math.pi * step / steps)) + 0.03
            group["lr"] = RATE * min(1, (step + 1) / 20) * cosine
        tokens, labels = batch(tokenizer, rng)
        with torch.no_grad():
            hidden = model.model(input_ids=tokens).last_hidden_state
            embedded = model.model.embed_tokens(tokens[:, 1:])
        counted = labels[:, 2:] != IGNORED
        state = head(hidden[:, :-1], embedded)[:, :-1][counted]
        logits = torch.nn.functional.linear(state, model.model.embed_tokens.weight)
        loss = torch.nn.functional.cross_entropy(logits, labels[:, 2:][counted])
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(head.parameters(), 1.0)
        optimizer.step()
        right = (logits.argmax(-1) == labels[:, 2:][counted]).float().mean().item()
        if step % 25 == 0 or step == steps - 1:
            print(f"head step {step}: loss {loss.item():.4f}, right {right:.3f}", flush=True)
    return right


def save(model: Qwen2ForCausalLM, head: Head, tokenizer: PreTrainedTokenizerFast, out: Path) -> None:
    """Save both as one MiMo model."""
    model.save_pretrained(out)
    tokenizer.save_pretrained(out)
    tensors = {name: weights.contiguous() for name, weights in model.state_dict().items() if name != "lm_head.weight"}
    for name, weights in head.state_dict().items():
        tensors[f"model.mtp_layers.0.{name.replace('block.', '')}"] = weights.contiguous()
    save_file(tensors, out / "model.safetensors", metadata={"format": "pt"})
    (out / "model.safetensors").chmod(0o644)
    config = json.loads((out / "config.json").read_text())
    config |= {"architectures": ["MiMoForCausalLM"], "num_nextn_predict_layers": 1}
    (out / "config.json").write_text(json.dumps(config, indent=1) + "\n")


def main() -> int:
    """Train both, save, and report."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[1])
    parser.add_argument("out", type=Path)
    parser.add_argument("--steps", type=int, default=760)
    parser.add_argument("--head-steps", type=int, default=250)
    arguments = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    tokenizer = train_tokenizer(TEMPLATE)
    model = new_model(tokenizer)
    seen = train(model, tokenizer, arguments.steps)
    model.eval()
    head = Head(model)
    head_right = train_head(model, head, tokenizer, arguments.head_steps)
    save(model, head, tokenizer, arguments.out)
    right, asked = accuracy(model, tokenizer)
    params = sum(weights.numel() for weights in model.parameters())
    figures = {"params": params, "tokens": seen, "heldout": [right, asked], "head": head_right}
    (arguments.out / "train.json").write_text(json.dumps(figures) + "\n")
    print(json.dumps(figures))
    return 0


if __name__ == "__main__":
    sys.exit(main())
