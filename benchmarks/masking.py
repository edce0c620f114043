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
from pytest_gpuinfra.on_target.probe.probe_names import WITHHELD

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
    "signs of URLs and users": "://@",
    "users in one URL": "://a:b@",
    "triggers of all kinds": "://a:b@c token=x --key y curl -u a:b sk-aaaaaaaaaaaa1 ",
    "headers in quotes on one line": '"authorization: x" ',
    "lists behind names on one line": "secret=[] ",
    "YAML blocks": "password: |\n  x\n",
    "options of one tool": "curl -u a:b -u a:c ",
    "JSON of strings": '"k9":"v",',
    "long names": "a" * 100 + "secret" + "a" * 100 + " ",
    "bearers": "Bearer aaaaa1 ",
    "hashes": "$6$aaaaaaaaa ",
    "rocommunity": "rocommunity x\n",
    "log lines": "6,1234,123456789,-;nvidia 0000:01:00.0: enabling device (0000 -> 0003) of the token ring\n",
}


def made(name: str, piece: str, size: int) -> str:
    """Repeat a piece up to a length; random log lines, and JSON, are made whole."""
    text = (piece * (size // len(piece) + 1))[:size]
    return f"[{{{text.rpartition(',')[0]}}}]" if name.startswith("JSON") else text


def took_s(text: str) -> float:
    """Mask a text, once; gives seconds of the processor."""
    started = time.process_time()
    mask_text(text)
    return time.process_time() - started


@click.command()
@click.option("--megabytes", default=10.0, show_default=True, help="Length of each text.")
def main(megabytes: float) -> None:
    """Print a row for each text."""
    table = Table("text", "n: CPU s", "4 n: CPU s", "ratio", "withheld")
    size = int(megabytes * 1e6)
    for name, piece in WORST.items():
        text = made(name, piece, size)
        quarter, whole = took_s(made(name, piece, size // 4)), took_s(text)
        withheld = "yes" if WITHHELD in mask_text(text) else ""
        table.add_row(name, f"{quarter:.2f}", f"{whole:.2f}", f"{whole / quarter:.1f}", withheld)
    Console(width=100).print(table)


if __name__ == "__main__":
    main()
