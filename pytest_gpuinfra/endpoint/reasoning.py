"""
Reasoning that stands inside the content, where no reasoning parser has taken it out.

Source: chat templates of DeepSeek-R1 and Qwen3 (<think>; R1's template opens it in the prompt,
so only the end is seen), Magistral ([THINK]), Seed-OSS (<seed:think>), gpt-oss (channels).
"""

from __future__ import annotations

import re

_PAIRS = (
    ("<think>", "</think>"),
    ("<thinking>", "</thinking>"),
    ("<reasoning>", "</reasoning>"),
    ("<seed:think>", "</seed:think>"),
    ("[THINK]", "[/THINK]"),
    ("<|begin_of_thought|>", "<|end_of_thought|>"),
)
_FINAL_CHANNEL = "<|channel|>final<|message|>"


def split_reasoning(content: str) -> tuple[str, str]:
    """
    Part a text into answer and reasoning.

    Returns:
        Answer and reasoning. A reasoning that was never closed leaves no answer.
    """
    if "<|channel|>" in content:
        before, found, after = content.rpartition(_FINAL_CHANNEL)
        answer = after if found else ""
        return re.split(r"<\|(?:end|return|start)\|>", answer)[0], before or content
    for opening, closing in _PAIRS:
        if closing in content:
            reasoning, _, answer = content.rpartition(closing)
            lead, _, reasoning = reasoning.partition(opening) if opening in reasoning else ("", "", reasoning)
            return lead + answer, reasoning.replace(closing, "").replace(opening, "")
        if opening in content:
            lead, _, reasoning = content.partition(opening)
            return lead, reasoning
    return content, ""
