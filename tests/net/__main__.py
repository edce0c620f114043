"""
The net below changes of structure.

    python -m tests.net keep MADE [TEST...]         run tests that make recordings, and keep those
    python -m tests.net write OUT [MADE]            judge every committed recording, and the kept ones
    python -m tests.net compare BEFORE AFTER        what came, went, or ended otherwise; status 1 if anything did

`write` replays each recording by the command line, two at a time, and gives one JSON line an item: recording, id,
ending in pytest's words, message. What the terminal says of the hosts is an item too, its ending the exit status.
Nothing in OUT depends on time, machine or path, so the same code gives the same file.
Keep the recordings once, before the change: the same inputs are then judged by both.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory

from .kept import ROOT, Replay, committed, keep, made

TERMINAL = "(terminal)"
LONGEST_S = 600
_UNSTEADY = re.compile(r"recording: \S+ \(sha256 \w+\)|\d+(?:\.\d+)? ?s(?=\W*$)|0x[0-9a-f]{12}\b")


def items_of(replay: Replay) -> list[dict[str, str]]:
    """Judge one recording, and give its items and what the terminal says of its hosts."""
    with TemporaryDirectory() as temporary:
        directory, lines = Path(temporary) / "run", Path(temporary) / "items.jsonl"
        directory.mkdir()
        for name, text in replay.files.items():
            (directory / name).write_text(text)
        for folder in replay.folders:
            shutil.copytree(folder, directory / folder.name)
        ended = _pytest(directory, lines, replay.arguments)
        if not lines.exists():
            raise SystemExit(f"{replay.name}: {ended.stdout}{ended.stderr}")
        items = [json.loads(line) for line in lines.read_text().splitlines()]
        items.append({"id": TERMINAL, "ending": str(ended.returncode), "message": _of_hosts(ended.stdout)})
        return [{"recording": replay.name, **item, "message": _steady(item["message"], directory)} for item in items]


def _pytest(directory: Path, lines: Path, arguments: Sequence[str]) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    environment |= {"NET_ITEMS": str(lines), "PYTHONPATH": str(ROOT), "COLUMNS": "200"}
    plain = ("--gpu-recording=none", "-q", "-p", "no:cacheprovider", "-p", "tests.net.plugin")
    return subprocess.run(
        [sys.executable, "-m", "pytest", "--gpu-host=replay:hosts.json", *plain, *arguments],
        cwd=directory,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=LONGEST_S,
        check=False,
    )


def _of_hosts(output: str) -> str:
    """Give the terminal's part on hosts: everything after its heading up to pytest's own summary."""
    found = re.search(r"^=+ GPU hosts =+\n(.*?)(?=^=+ |\Z)", output, re.MULTILINE | re.DOTALL)
    return found[1] if found else ""


def _steady(text: str, directory: Path) -> str:
    """Take out what differs between two runs of the same code."""
    for path, name in ((directory, "RUN"), (ROOT, "ROOT")):
        text = text.replace(str(path), name)
    return _UNSTEADY.sub("~", text)


def write(out: Path, kept: Path | None) -> int:
    """Write the items of all recordings, sorted, and give their number."""
    replays = [*committed(), *(made(kept) if kept else ())]
    with ThreadPoolExecutor(2) as pool:
        items = [item for found in pool.map(items_of, replays) for item in found]
    rows = sorted(json.dumps(item, sort_keys=True, ensure_ascii=False) for item in items)
    out.write_text("".join(f"{row}\n" for row in rows))
    endings = Counter(item["ending"] for item in items if item["id"] != TERMINAL)
    print(f"{len(replays)} recordings, {sum(endings.values())} items: {dict(sorted(endings.items()))}")
    return len(items)


def differences(before: Iterable[str], after: Iterable[str]) -> Iterator[str]:
    """Give what came, went, or ended otherwise, in lines for people."""
    old, new = _by_id(before), _by_id(after)
    for key in sorted(old.keys() | new.keys()):
        was, is_ = old.get(key, []), new.get(key, [])
        if was == is_:
            continue
        yield f"{'came' if not was else 'went' if not is_ else 'changed'}: {key[0]}: {key[1]}"
        yield from (f"  - {ending}: {message}" for ending, message in was if (ending, message) not in is_)
        yield from (f"  + {ending}: {message}" for ending, message in is_ if (ending, message) not in was)


def _by_id(rows: Iterable[str]) -> Mapping[tuple[str, str], list[tuple[str, str]]]:
    found: dict[tuple[str, str], list[tuple[str, str]]] = {}
    for row in map(json.loads, rows):
        found.setdefault((row["recording"], row["id"]), []).append((row["ending"], row["message"]))
    return found


def main(arguments: Sequence[str]) -> int:
    """Run one of the commands."""
    match arguments:
        case ["keep", directory, *tests]:
            print(f"{keep(Path(directory), tests)} recordings kept")
        case ["write", out, *rest] if len(rest) < 2:
            write(Path(out), Path(rest[0]) if rest else None)
        case ["compare", before, after]:
            lines = list(differences(Path(before).read_text().splitlines(), Path(after).read_text().splitlines()))
            print("\n".join(lines) or "the same")
            return 1 if lines else 0
        case _:
            print(__doc__)
            return 2
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
