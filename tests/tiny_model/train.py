"""
Trains the tiny model: Qwen3 of 0.8 million parameters, 760 steps of 32, about 5 minutes on one thread.

    python train.py OUT [--steps 760]

Needs torch 2.13, transformers 5.24, tokenizers. Use one thread: with two, OpenMP's waiting makes a step ten times
as long once anything else runs. The same script gives the same accuracy on another machine, not the same bytes.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import sys
import time
from pathlib import Path

import torch
from questions import SYSTEM_MESSAGES, Question, answer_text, held_out, prompt_text, sample
from tokenizer import train_tokenizer
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

TEMPLATE = Path(__file__).parent / "model" / "chat_template.jinja"
BATCH = 32
RATE = 4e-3
WARM_UP = 40
IGNORED = -100


def new_model(tokenizer: PreTrainedTokenizerFast) -> Qwen3ForCausalLM:
    """Give the untrained model: head_dim 64 for the engines' kernels, two KV heads so that TP 2 divides them."""
    end, padding = (tokenizer.convert_tokens_to_ids(token) for token in ("<|im_end|>", "<|endoftext|>"))
    config = Qwen3Config(
        vocab_size=math.ceil(len(tokenizer) / 64) * 64,
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=64,
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
    model = Qwen3ForCausalLM(config)
    generation = model.generation_config
    generation.do_sample = False
    generation.eos_token_id, generation.pad_token_id, generation.bos_token_id = [end, padding], padding, padding
    return model


def batch(tokenizer: PreTrainedTokenizerFast, rng: random.Random) -> tuple[torch.Tensor, torch.Tensor]:
    """Draw token ids and labels, both of shape (BATCH, length); only answers carry labels."""

    def ids(text: str) -> list[int]:
        return tokenizer(text, add_special_tokens=False)["input_ids"]

    rows = []
    for _ in range(BATCH):
        question = sample(rng)
        rows.append((ids(prompt_text(question, rng.choice(SYSTEM_MESSAGES))), ids(answer_text(question))))
    length = max(len(prompt) + len(answer) for prompt, answer in rows)
    tokens = torch.full((BATCH, length), tokenizer.pad_token_id)
    labels = torch.full((BATCH, length), IGNORED)
    for row, (prompt, answer) in enumerate(rows):
        whole = len(prompt) + len(answer)
        tokens[row, :whole] = torch.tensor(prompt + answer)
        labels[row, len(prompt) : whole] = torch.tensor(answer)
    return tokens, labels


def rate_at(step: int, steps: int) -> float:
    """Give the learning rate: a linear start, then a cosine down to 3 %."""
    return RATE * min(1, (step + 1) / WARM_UP) * (0.485 * (1 + math.cos(math.pi * min(1, step / steps))) + 0.03)


def train(model: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerFast, steps: int) -> int:
    """Train in fp32, and give the number of tokens seen."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, betas=(0.9, 0.98), weight_decay=0.05)
    rng, seen, started = random.Random(2), 0, time.monotonic()
    model.train()
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = rate_at(step, steps)
        tokens, labels = batch(tokenizer, rng)
        seen += tokens.numel()
        hidden = model.model(input_ids=tokens).last_hidden_state
        counted = labels[:, 1:] != IGNORED
        logits = model.lm_head(hidden[:, :-1][counted])
        loss = torch.nn.functional.cross_entropy(logits, labels[:, 1:][counted])
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step % 25 == 0 or step == steps - 1:
            print(f"step {step}: loss {loss.item():.4f}, {time.monotonic() - started:.0f} s", flush=True)
    return seen


@torch.no_grad()
def accuracy(model: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerFast, count: int = 400) -> tuple[int, int]:
    """Ask products that were held out, and give how many were right, and of how many."""
    model.eval()
    pairs = held_out()
    random.Random(3).shuffle(pairs)
    pairs, right = pairs[:count], 0
    tokenizer.padding_side = "left"
    for start in range(0, len(pairs), 200):
        some = pairs[start : start + 200]
        texts = [prompt_text(Question(f"What is {a}*{b}? Answer briefly.", "", "")) for a, b in some]
        inputs = tokenizer(texts, return_tensors="pt", padding=True, add_special_tokens=False)
        inputs.pop("token_type_ids", None)
        outputs = model.generate(**inputs, max_new_tokens=110, do_sample=False)
        for (a, b), output in zip(some, outputs, strict=True):
            text = tokenizer.decode(output[inputs["input_ids"].shape[1] :], skip_special_tokens=True)
            right += text.split("</think>")[-1].strip() == str(a * b)
    return right, len(pairs)


def main() -> int:
    """Train, save, and report."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[1])
    parser.add_argument("out", type=Path)
    parser.add_argument("--steps", type=int, default=760)
    arguments = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    tokenizer = train_tokenizer(TEMPLATE)
    model = new_model(tokenizer)
    started = time.monotonic()
    seen = train(model, tokenizer, arguments.steps)
    took_s = time.monotonic() - started
    model.save_pretrained(arguments.out)
    tokenizer.save_pretrained(arguments.out)
    (arguments.out / "model.safetensors").chmod(0o644)  # torch leaves it at 0600
    right, asked = accuracy(model, tokenizer)
    figures = {
        "params": sum(weights.numel() for weights in model.parameters()),
        "train_s": took_s,
        "steps": arguments.steps,
        "tokens": seen,
        "heldout": [right, asked],
    }
    (arguments.out / "train.json").write_text(json.dumps(figures) + "\n")
    print(json.dumps(figures))
    return 0


if __name__ == "__main__":
    sys.exit(main())
