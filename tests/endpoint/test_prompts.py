"""Prompt files of users."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_gpuinfra.endpoint.prompts import parse_prompts, read_prompts
from pytest_gpuinfra.errors import InventoryError

GOOD = '[[prompts]]\nname = "a"\nprompt = "?"\nexpected = "1"\n'


def test_a_users_file_adds_and_replaces(tmp_path: Path):
    file = tmp_path / "mine.toml"
    file.write_text(
        GOOD + '[[prompts]]\nname = "15-times-23"\nprompt = "15*23, in words"\nexpected = "x"\nkind = "exact"\n'
    )
    prompts = {prompt.name: prompt for prompt in read_prompts(file)}

    assert prompts["a"].kind == "integer"
    assert prompts["15-times-23"].prompt == "15*23, in words"
    assert len(prompts) == len(read_prompts()) + 1


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("x = ", "is not TOML"),
        ("", "holds nothing"),
        ('[[prompt]]\nname = "a"', "holds prompt"),
        ("prompts = 1", "holds prompts"),
        ("prompts = [1]", "no table"),
        ('[[prompts]]\nname = "a"\nprompt = "?"', "`expected` is missing"),
        (GOOD + "kinds = 1", "unknown key 'kinds'"),
        (GOOD + 'kind = "fuzzy"', "legal are integer, exact, regex, tolerance"),
        (GOOD.replace('"1"', '"one"'), "does not fit kind 'integer'"),
        (GOOD.replace('"1"', '"("') + 'kind = "regex"', "does not fit kind 'regex'"),
        (GOOD + 'kind = "tolerance"', "needs `tolerance`"),
        (GOOD.replace('"a"', '"a b"'), "letters, digits"),
        (GOOD + "max_tokens = 0", "positive"),
        (GOOD + GOOD, "two prompts are named 'a'"),
    ],
)
def test_mistakes_are_named(text: str, says: str):
    with pytest.raises(InventoryError) as caught:
        parse_prompts(text, "mine.toml")

    assert says in str(caught.value)
    assert "mine.toml" in str(caught.value)


def test_a_missing_file_is_named(tmp_path: Path):
    with pytest.raises(InventoryError, match=r"none\.toml"):
        read_prompts(tmp_path / "none.toml")
