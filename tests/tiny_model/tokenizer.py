"""
Trains the tokenizer: byte-level BPE of 507 tokens behind Qwen2's own splitting, digits one by one.

The splitting is Qwen2's exactly, so llama.cpp's "qwen2" pre-tokenizer, vLLM, SGLang and transformers count the same
tokens. All 256 bytes are in the alphabet: any prompt can be encoded.
"""

from __future__ import annotations

import random
from pathlib import Path

from questions import SYSTEM_MESSAGES, sample
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

VOCABULARY = 507
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
REASONING = ("<think>", "</think>")
QWEN2_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def train_tokenizer(template: Path, *, seed: int = 1, texts: int = 4000) -> PreTrainedTokenizerFast:
    """Train on questions as the model will see them."""
    rng = random.Random(seed)
    corpus = []
    for _ in range(texts):
        question = sample(rng)
        system = rng.choice(SYSTEM_MESSAGES) or ""
        corpus.append(f"system\nuser\nassistant\n{question.text} {system}\n{question.reasoning}\n\n{question.answer}")
    bpe = Tokenizer(models.BPE())
    bpe.normalizer = normalizers.NFC()
    bpe.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(QWEN2_SPLIT), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=[],
        show_progress=False,
    )
    bpe.train_from_iterator(corpus, trainer)
    bpe.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in SPECIAL])
    bpe.add_tokens([AddedToken(text, special=False, normalized=False) for text in REASONING])
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        bos_token=None,
        unk_token=None,
        model_max_length=512,
        clean_up_tokenization_spaces=False,
    )
    tokenizer.chat_template = template.read_text()
    return tokenizer
