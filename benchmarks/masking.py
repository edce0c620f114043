"""
How long masking takes on the worst texts that were found, and how it grows with their length.

    .venv/bin/python -m benchmarks.masking [--megabytes 10]

Each text is masked at a quarter of its length and at the whole; a masker that is linear takes four times as long.
"""

from __future__ import annotations

import time

import click
from rich.console import Console
from rich.table import Table

from pytest_gpuinfra.masking import mask_text

WORST = {
    "one word, no sign": "secret",
    "words and blanks": "key ",
    "assignments of secrets": "password=hunter22x\n",
    "assignments of nothing": "a=b;",
    "telling names, nothing behind": "token: ",
    "unclosed quotes": 'key="\n',
    "escaped quotes": '\\"',
    "quoted values": '"api_key": "hunter22x", ',
    "escaped quotes in a value": 'password="\\"\\"\\"\\"',
    "URLs": "http://a:b@c ",
    "signs of URLs": "://",
    "begins of keys": "-----BEGIN PRIVATE KEY-----\n",
    "options": "--key ",
    "dashes": "-",
    "tools": "curl -u ",
    "prefixes": "sk-",
    "tokens": "eyJhbGciOi.",
    "brackets": "[",
    "open objects behind names": '"secret": {',
    "headers": "authorization: ",
    "blanks": " ",
    "log lines": "6,1234,123456789,-;nvidia 0000:01:00.0: enabling device (0000 -> 0003) of the token ring\n",
}


def took_s(text: str) -> float:
    """Mask a text, once; gives seconds."""
    started = time.perf_counter()
    mask_text(text)
    return time.perf_counter() - started


@click.command()
@click.option("--megabytes", default=10.0, show_default=True, help="Length of each text.")
def main(megabytes: float) -> None:
    """Print a row for each text."""
    table = Table("text", "n s", "4 n s", "ratio")
    size = int(megabytes * 1e6)
    for name, piece in WORST.items():
        text = (piece * (size // len(piece) + 1))[:size]
        quarter, whole = took_s(text[: size // 4]), took_s(text)
        table.add_row(name, f"{quarter:.2f}", f"{whole:.2f}", f"{whole / quarter:.1f}")
    Console(width=100).print(table)


if __name__ == "__main__":
    main()
