"""The one masker: what it masks and leaves, that it is idempotent, never raises, and keeps lines and JSON."""

from __future__ import annotations

import base64
import html
import json
from collections.abc import Callable
from urllib.parse import quote

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_gpuinfra.masking import Masker, encodings, mask_data, mask_text, secrets_of_address
from pytest_gpuinfra.on_target.probe import probe_environ, probe_mask
from pytest_gpuinfra.on_target.probe.probe_names import MASK, WITHHELD
from tests.recorded.reference.serving import probe_module
from tests.report.masked_forms import FORMS, NAMED, PLACED, READABLE

BODY = "\n".join(base64.b64encode(bytes((i * k) % 251 for i in range(48))).decode() for k in range(1, 8)) + "\nQUJDRA=="
KINDS = ("PRIVATE KEY", "RSA PRIVATE KEY", "OPENSSH PRIVATE KEY", "ENCRYPTED PRIVATE KEY", "PGP PRIVATE KEY BLOCK")
PREFIXES = ("", "[   12.345678] ", "Nov 30 12:00:00 host unit[12]: ", "6,1234,5678,-;", "    ", "> ")
JOINED = st.lists(
    st.one_of(
        st.sampled_from([*NAMED, *PLACED, *FORMS, *READABLE, *f"-----BEGIN PRIVATE KEY-----\n{BODY}".split("\n")]),
        st.sampled_from(
            ["'", '"', "\\", "\n", "=", ":", " ", "{", "}", "[", "]", MASK, "password", "://", "@", "|", "-p "]
        ),
        st.text(max_size=6),
    ),
    max_size=12,
).map("".join)


@pytest.mark.parametrize("text", [*NAMED, *PLACED])
@pytest.mark.parametrize("before", ["", "Nov 30 host unit[1]: "])
def test_value_behind_a_name_or_in_a_place_is_masked(text: str, before: str) -> None:
    """Known by name or place alone."""
    masked = mask_text(before + text)
    assert "Value77" not in masked
    assert mask_text(masked) == masked


@pytest.mark.parametrize("form", FORMS)
def test_form_is_masked_wherever_it_stands(form: str) -> None:
    """Known by its form alone."""
    assert form[-8:] not in mask_text(f"it was {form} there")
    assert form[-8:] not in mask_text(json.dumps({"x": f"it was {form}"}))


@pytest.mark.parametrize("text", READABLE)
def test_what_is_no_secret_stays_readable(text: str) -> None:
    """A mask in the wrong place hides a fact."""
    assert mask_text(text) == text


def test_there_are_enough_of_both() -> None:
    """So many kinds were planted, and so many texts are left alone."""
    assert len(NAMED) + len(PLACED) + len(FORMS) >= 60
    assert len(set(READABLE)) >= 200


@pytest.mark.parametrize("prefix", PREFIXES)
@pytest.mark.parametrize("kind", KINDS)
def test_key_is_withheld_whatever_stands_before_its_lines(kind: str, prefix: str) -> None:
    """Log lines, kernel records, indentation; what comes after the key is kept."""
    key = f"-----BEGIN {kind}-----\n{BODY}\n-----END {kind}-----"
    text = "\n".join(prefix + line for line in ["before", *key.split("\n"), "after it is well"])
    masked = mask_text(text)
    assert [line for line in BODY.split("\n") if line in masked] == []
    assert masked.count("\n") == text.count("\n")
    assert masked.endswith("after it is well")
    assert [line for line in BODY.split("\n") if line in mask_text(json.dumps({"x": text}))] == []
    lines = "\n".join(json.dumps({"MESSAGE": line, "PRIORITY": "6"}) for line in text.split("\n"))
    assert [line for line in BODY.split("\n") if line in mask_text(lines)] == []
    assert [json.loads(line)["PRIORITY"] for line in mask_text(lines).split("\n")] == ["6"] * (text.count("\n") + 1)


def test_key_over_many_entries_of_a_journal_is_withheld() -> None:
    """Every line is an entry of its own, others stand between; each message stays an entry's."""
    lines = [
        f"-----BEGIN PRIVATE KEY-----\n{BODY.split()[0]}",
        *BODY.split("\n")[1:],
        "-----END PRIVATE KEY-----",
        "CUDA error",
    ]
    entries = [{"message": line} for line in lines]
    probe_module("probe_service").mask_messages(entries)  # type: ignore[no-untyped-call]
    assert len(entries) == len(lines)
    assert [line for line in BODY.split("\n") if any(line in entry["message"] for entry in entries)] == []
    assert entries[-1]["message"] == "CUDA error"


@settings(max_examples=300, deadline=None)
@given(JOINED)
def test_masking_twice_is_masking_once(text: str) -> None:
    """Of a text, as JSON, as HTML, and cut anywhere; the number of lines stays."""
    masked = mask_text(text)
    assert mask_text(masked) == masked
    for other in (json.dumps({"x": masked}), json.dumps(masked), html.escape(masked), masked[: len(masked) // 2]):
        assert mask_text(mask_text(other)) == mask_text(other)
    if text.lstrip()[:1] not in ("{", "["):
        assert masked.count("\n") == text.count("\n")
    encoded = json.dumps({"a": [text], "password": text})
    json.loads(mask_text(encoded))


@settings(max_examples=200, deadline=None)
@given(st.lists(JOINED, max_size=6))
def test_masking_command_lines_and_environments_twice_is_once(words: list[str]) -> None:
    """Of argument lists, plain data and environment blocks."""
    masked = probe_mask.mask_argv(words)  # type: ignore[no-untyped-call]
    assert probe_mask.mask_argv(masked) == masked  # type: ignore[no-untyped-call]
    data = mask_data({"x": words, "password": words, "y": {"api_key": words}})
    assert mask_data(data) == data
    block = b"\0".join(f"NCCL_{n}={word}".encode("utf-8", "replace") for n, word in enumerate(words))
    values = probe_environ.filter_environ(block, ["NCCL_*"])["values"]  # type: ignore[no-untyped-call]
    again = b"\0".join(f"{name}={value}".encode() for name, value in values.items())
    assert probe_environ.filter_environ(again, ["NCCL_*"])["values"] == values  # type: ignore[no-untyped-call]


@pytest.mark.parametrize(
    "text",
    [
        "[" * 3000,
        "{" * 3000,
        '{"a":' * 3000,
        '["password",' * 3000,
        "\ud800password=\udfff",
        "\0" * 100,
        "password=" + "[" * 9000,
    ],
)
def test_odd_text_raises_nothing(text: str) -> None:
    """Brackets beyond any recursion limit, lone surrogates, NUL."""
    assert mask_text(mask_text(text)) == mask_text(text)


def test_deep_data_is_masked_without_recursion() -> None:
    """100,000 levels."""
    data: object = {"password": "hunter22"}
    for _ in range(100_000):
        data = [data]
    masked = mask_data(data)
    while isinstance(masked, list):
        masked = masked[0]
    assert masked == {"password": MASK}


def test_option_with_its_value_glued_on_takes_no_other_word() -> None:
    """What follows `-pVALUE` is an option of its own, with a value of its own."""
    argv = ["mysql", "-pmySECRET", "--api-key", "x y", "--port", "1"]
    masked = probe_mask.mask_argv(argv)  # type: ignore[no-untyped-call]
    assert masked == ["mysql", f"-p{MASK}", "--api-key", MASK, "--port", "1"]


def test_bytes_are_masked_too() -> None:
    """What is no UTF-8 is escaped."""
    assert probe_mask.mask_text(b"password=\xff\xfe\n") == f"password={MASK}\n"  # type: ignore[no-untyped-call]


def test_known_values_are_masked_in_every_encoding() -> None:
    """Percent-encoded, in JSON, HTML, base64 of "user:password" and within longer base64."""
    address = "https://user:p%40ss/w'rd%21x@[::1]:8000/v1"
    known = secrets_of_address(address)
    assert "user:p@ss/w'rd!x" in known
    masker = Masker([*known, 'plain "value" & more'])
    for secret in ("p@ss/w'rd!x", 'plain "value" & more'):
        for form in (secret, quote(secret, safe=""), json.dumps(secret)[1:-1], html.escape(secret), *encodings(secret)):
            assert form not in masker.text(f"said {form} there")
    for before in ("", "a", "ab"):
        inner = base64.b64encode(f"{before}user:p@ss/w'rd!x".encode()).decode()
        assert inner not in masker.text(f"sent {inner} there")
    assert masker.text(masker.text(f"x {MASK} mask")) == f"x {MASK} mask"


@pytest.mark.parametrize(
    "piece", ["secret", 'key="\n', "password=", "-----BEGIN PRIVATE KEY-----\n", "://", "--key ", '\\"']
)
def test_long_text_ends(piece: str) -> None:
    """A quadratic masker would take hours over a megabyte of these; benchmarks/masking.py has the figures."""
    text = piece * (1_000_000 // len(piece))
    assert mask_text(text).count("\n") == text.count("\n")


LOG = "".join(f"6,{n},{n},-;nvidia 0000:01:00.0: enabling device of the token ring, key: {n}\n" for n in range(60_000))


def test_log_with_some_hundred_secrets_is_masked_and_not_withheld() -> None:
    """Megabytes of ordinary lines."""
    lines = LOG.splitlines()
    lines[::200] = [f"{line} password=hunter{number}x" for number, line in enumerate(lines[::200])]
    masked = mask_text("\n".join(lines))
    assert masked.count(MASK) == 300
    assert "hunter" not in masked
    assert WITHHELD not in masked


@pytest.mark.parametrize(
    "piece",
    ["password=Value77\n", "mysql -pValue77 ", "http://u:Value77@h ", '"api_key": "Value77", ', "Bearer Value77x\n"],
)
def test_beyond_the_bound_nothing_is_shown(piece: str) -> None:
    """What was not looked at is withheld, for good; lines stay."""
    text = "first line\n" + piece * 200_000 + "last line"
    masked = mask_text(text)
    assert "Value77" not in masked
    assert masked.startswith("first line\n")
    assert masked.endswith(WITHHELD)
    assert masked.count("\n") == text.count("\n")
    assert mask_text(masked) == masked


def test_json_beyond_the_bound_stays_json() -> None:
    """One string says that it was withheld."""
    assert json.loads(mask_text(json.dumps(["x", *({"password": str(n)} for n in range(100_000))]))) == WITHHELD


def test_lines_around_a_change_are_enough_for_another_pass() -> None:
    """A long text gives the same as its pieces."""
    text = LOG[:200_000] + "password='a\nb' token=Zx9secret-Value77,x\n" + LOG[:200_000]
    assert mask_text(mask_text(text)) == mask_text(text)
    assert "Value77" not in mask_text(text)


ENCODED: dict[str, Callable[[str], str]] = {
    "repr": repr,
    "list": lambda text: repr([text]),
    "JSON": lambda text: json.dumps({"x": text}),
    "JSON's repr": lambda text: repr(json.dumps({"x": text})),
    "repr's JSON": lambda text: json.dumps(repr(text)),
    "repr's repr": lambda text: repr(repr(text)),
    "assertion": lambda text: f"E       AssertionError: assert {text!r} == ''",
}


@pytest.mark.parametrize("how", ENCODED)
def test_value_is_masked_however_its_text_is_quoted(how: str) -> None:
    """As it stands in messages, tracebacks and pages."""
    leaked = [text for text in [*NAMED, *PLACED] if "Value77" in mask_text(ENCODED[how](text))]
    assert leaked == []
