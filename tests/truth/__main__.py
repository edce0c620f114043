"""Every kind of reading of every recording: `python -m tests.truth [SEED]`."""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

from tests.truth.rules import broken
from tests.truth.spoil import chosen, judged
from tests.truth.test_truth import RECORDINGS

AT_ONCE = 10
"""Readings that are spoilt in one run, so that it ends within its time on any machine."""

if __name__ == "__main__":
    seed = int(sys.argv[1]) if len(sys.argv) > 1 else 0
    wrong = items = 0
    for recording in RECORDINGS:
        answers = next(iter(json.loads(recording.read_text())["hosts"].values()))["capture"]["answers"]
        spoilt, found = chosen(answers, seed), {}
        for begin in range(0, len(spoilt), AT_ONCE):
            with tempfile.TemporaryDirectory() as directory:
                found.update(judged(Path(directory), recording, spoilt[begin : begin + AT_ONCE]))
        faults = list(broken(found))
        wrong, items = wrong + len(faults), items + sum(map(len, found.values()))
        print(f"{recording.parent.name}/{recording.name}: {len(found)} hosts, {len(faults)} rules broken")
        print("".join(f"  {fault}\n" for fault in faults), end="", flush=True)
    print(f"{items} items judged, {wrong} rules broken, seed {seed}")
    sys.exit(wrong > 0)
