"""Finding the answer: whatever its mark-up, and never a wrong one."""

from __future__ import annotations

import pytest

from pytest_gpuinfra.endpoint.chat import ChatAnswer, Usage, assemble
from pytest_gpuinfra.endpoint.judge_answers import judge_answer
from pytest_gpuinfra.endpoint.match import compare
from pytest_gpuinfra.endpoint.prompts import AnswerKind, Prompt
from pytest_gpuinfra.endpoint.smoke import Asked

SMOKE = Prompt("15-times-23", "What is 15*23? Answer briefly.", "345")

RIGHT = """
345
345.
**345**
`345`
# 345
- 345
> 345
*345*
_345_
345!
345.0
345,00
15*23 = 345
15*23=345
**15*23 = 345**
15 × 23 = 345
15 x 23 = 345
15·23 = 345
15 * 23 = **345**
345 = 15*23
$15 \\times 23 = 345$
\\(15 \\times 23 = \\boxed{345}\\)
\\[345\\]
$$345$$
\\mathbf{345}
\\text{Answer: } 345
<b>345</b>
The answer is **345**.
The product of 15 and 23 is 345.
15 times 23 is 345
15 multiplied by 23 equals 345
15*23: 345
15*23 → 345
Answer: 345
| 15*23 | 345 |
345 units
345 ✓
“345”
1. 15*20 = 300\\n2. 15*3 = 45\\n3. 300 + 45 = 345
1) 15*20=300\\n2) 15*3=45\\n\\nAnswer: 345
345 (15*20 = 300, 15*3 = 45)
345, because 15*20 = 300 and 15*3 = 45
15×20=300, 15×3=45, so the total is 345.
Let me compute: 15*23 = 15*20 + 15*3 = 300 + 45 = 345
It's not 344, it's 345.
not 300 but 345
15*23 equals 345, which is not 355
It is not difficult to see that 15*23 = 345
The result is 345 - easy!
~~344~~ 345
３４５
""".strip().splitlines()  # noqa: RUF001

WRONG = """
3450
1345
0345
346
354
345345
34.5
345.5
-345
−345
345%
3,450
1,345
3 450
1 345
345 000
345,000
3\\,450
3{,}450
not 345
The answer is not 345
It isn't 345
I don't think it is 345
345 is wrong
rather than 345
neither 345 nor 355
≠ 345
~~345~~ 355
345, no wait, 354
345 or 355
355 or 345
\\boxed{346} (345)
The answer is 346, not 345
15*23
15 23
345*2
345 + 1
345/2
\\frac{345}{2}
345e2
A345
x345
0x345
34 5
3:45
15*23 = 355
I cannot compute that.
Three hundred and so on.
""".strip().splitlines()  # noqa: RUF001


@pytest.mark.parametrize("answer", RIGHT)
def test_right(answer: str):
    found = compare(SMOKE, answer.replace("\\n", "\n"))

    assert (found.right, found.found) == (True, "345"), found.reason


@pytest.mark.parametrize("answer", [*WRONG, ""])
def test_wrong(answer: str):
    found = compare(SMOKE, answer)

    assert not found.right
    assert found.reason


@pytest.mark.parametrize(
    ("kind", "expected", "answer", "right"),
    [
        ("exact", "Paris", "\n\n**Paris**.", True),
        ("exact", "Paris", "paris", False),
        ("exact", "Paris", "It is Paris", False),
        ("regex", r"\bParis\b", "The capital is *Paris*.", True),
        ("regex", r"^\d+$", "about 5", False),
        ("regex", "1, 2, 3", "1, 2, 3, 4", True),
        ("tolerance", "3.1416", "π ≈ 3.14", True),
        ("tolerance", "3.1416", "$\\pi \\approx 3.142$", True),
        ("tolerance", "3.1416", "3.2", False),
        ("tolerance", "-7", "3 - 10 = -7", True),
        ("integer", "-7", "−7", True),  # noqa: RUF001
        ("integer", "-7", "7", False),
        ("integer", "1000000", "1,000,000", True),
        ("integer", "1000000", "1 000 000", True),
        ("integer", "7", "The larger one is 7", True),
        ("integer", "7", "3", False),
    ],
)
def test_kinds(kind: AnswerKind, expected: str, answer: str, right: bool):
    prompt = Prompt("p", "Which is larger, 3 or 7?", expected, kind, tolerance=0.01)

    assert compare(prompt, answer).right is right


def _answer(content: str, *, reasoning: str = "", finish_reason: str | None = "stop") -> ChatAnswer:
    return assemble(content, reasoning, finish_reason, "m", Usage(20, 79, 99))


@pytest.mark.parametrize(
    ("answer", "ending", "says"),
    [
        (_answer("\n\n345", reasoning="15*23 is 345"), "ok", "'345'"),
        (_answer("<think>15*23... 355? no, 345</think>\n\n345"), "ok", "'345'"),
        (_answer("15*20 and so on</think>\n\n345"), "ok", "'345'"),
        (_answer("<|channel|>analysis<|message|>345<|end|><|start|>assistant<|channel|>final<|message|>345"), "ok", ""),
        (_answer("", reasoning="it is 345"), "wrong", "only inside the reasoning"),
        (_answer("<think>it is 345</think>"), "wrong", "only inside the reasoning"),
        (_answer("<think>it is 345"), "wrong", "only inside the reasoning"),
        (_answer("355", reasoning="it is 345"), "wrong", "it comes to 355; the right one stands only inside"),
        (_answer("345", finish_reason="length"), "wrong", "cut by length after 79 tokens"),
        (_answer("345", finish_reason="content_filter"), "wrong", "ended by 'content_filter'"),
        (_answer("345", finish_reason=None), "ok", ""),
        (_answer(""), "wrong", "the content is empty"),
        (_answer("!" * 30), "wrong", "one character ('!') 30 times"),
        (_answer("the the the " * 40), "wrong", "again and again"),
    ],
)
def test_whole_answers(answer: ChatAnswer, ending: str, says: str):
    verdict = judge_answer(Asked(SMOKE, answer))

    assert (verdict.ending, says in verdict.observed) == (ending, True), verdict.message


def test_a_missing_finish_reason_is_noted():
    assert "finish_reason is null" in judge_answer(Asked(SMOKE, _answer("345", finish_reason=None))).warnings[0]
