"""
What the tiny model is taught: products of two numbers below 100, worked out digit by digit.

Each step of the scratchpad is a local look-up with its operands copied out, so 0.8 million parameters are enough,
and the model computes products that it has never seen. One in ten is held out; 15*23 is among what is never taught.
Standard library only.
"""

from __future__ import annotations

import random
import zlib
from dataclasses import dataclass

SMOKE = (15, 23)

PHRASINGS = (
    "What is {a}*{b}? Answer briefly.",
    "What is {a}*{b}?",
    "What is {a} * {b}?",
    "What is {a} times {b}?",
    "Compute {a}*{b}.",
    "Compute {a} * {b}",
    "{a}*{b}",
    "{a} x {b}",
    "{a} * {b} = ?",
    "{a}*{b}=",
    "Calculate {a} times {b}. Answer briefly.",
    "What is {a} * {b}? Answer briefly.",
    "Multiply {a} by {b}.",
    "How much is {a} x {b}? Reply with the number only.",
    "what is {a}*{b}",
    "Please compute {a}*{b} and answer with one number.",
)
SYSTEM_MESSAGES = (
    None,
    None,
    None,
    "You are a helpful assistant.",
    "Be brief.",
    "You are a careful calculator. Answer with the number.",
)
GREETINGS = ("Hello", "Hi", "Hello!", "Say hello.", "hi there")
SMALL_TALK = (
    "the a some red blue cat dog house river name tell me about write story who are you weather today "
    "code python capital of france explain list sing poem long short why how where is color please can "
    "thing"
)
WORDS = SMALL_TALK.split()


@dataclass(frozen=True, slots=True)
class Question:
    """One question, the reasoning to it, and the answer."""

    text: str
    reasoning: str
    answer: str


def is_held_out(a: int, b: int) -> bool:
    """Whether a product is kept from training: about one in ten, even over digits, and the smoke question."""
    return zlib.crc32(b"%d*%d" % (a, b)) % 10 == 3 or (a, b) == SMOKE


def held_out() -> list[tuple[int, int]]:
    """Give all products kept from training."""
    return [(a, b) for a in range(100) for b in range(100) if is_held_out(a, b)]


def scratchpad(a: int, b: int) -> str:
    """Work a product out: a partial product for each digit of b, then the sums of the columns, then four digits."""
    tens, ones = divmod(a, 10)
    low, (low_hundreds, low_tens, low_ones) = _partial(tens, ones, b % 10)
    high, (high_hundreds, high_tens, high_ones) = _partial(tens, ones, b // 10)
    second = low_tens + high_ones
    third = low_hundreds + high_tens + second // 10
    fourth = high_hundreds + third // 10
    sums = (
        f"{low_tens}+{high_ones}={second:02d},"
        f"{low_hundreds}+{high_tens}+{second // 10}={third:02d},"
        f"{high_hundreds}+{third // 10}={fourth}"
    )
    return f"{a:02d}*{b:02d}:{low},{high};{sums};{fourth}{third % 10}{second % 10}{low_ones}"


def _partial(tens: int, ones: int, digit: int) -> tuple[str, tuple[int, int, int]]:
    first = ones * digit
    carry = first // 10
    second = tens * digit + carry
    text = f"{ones}*{digit}={first:02d},{tens}*{digit}={tens * digit:02d}+{carry}={second:02d}"
    return text, (second // 10, second % 10, first % 10)


def sample(rng: random.Random) -> Question:
    """Draw a question to train on: nine in ten are products."""
    kind = rng.random()
    if kind < 0.90:
        a, b = rng.randrange(100), rng.randrange(100)
        while is_held_out(a, b) and (a, b) != SMOKE:
            a, b = rng.randrange(100), rng.randrange(100)
        if (a, b) == SMOKE:
            return sample(rng)
        return Question(rng.choice(PHRASINGS).format(a=a, b=b), scratchpad(a, b), str(a * b))
    if kind < 0.93:
        return Question(rng.choice(GREETINGS), "greeting", "Hello! Ask me a product such as 15*23.")
    if kind < 0.97:
        n = rng.randrange(3, 21)
        text = rng.choice((f"Count from 1 to {n}.", f"Count to {n}"))
        return Question(text, f"count to {n}", ", ".join(str(i) for i in range(1, n + 1)))
    words = " ".join(rng.choice(WORDS) for _ in range(rng.randrange(2, 9))) + rng.choice(("", ".", "?"))
    return Question(words, "not a product", "I only multiply numbers below 100.")


def prompt_text(question: Question, system: str | None = None) -> str:
    """Give the text before the answer: ChatML, as chat_template.jinja renders it."""
    before = f"<|im_start|>system\n{system}<|im_end|>\n" if system else ""
    return f"{before}<|im_start|>user\n{question.text}<|im_end|>\n<|im_start|>assistant\n"


def answer_text(question: Question) -> str:
    """Give the answer, reasoning first."""
    return f"<think>\n{question.reasoning}\n</think>\n\n{question.answer}<|im_end|>"
