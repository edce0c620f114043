"""Fuzz by hand: `python -m tests.fuzz --minutes 30 [--only NAME]`; exit status 1 if anything was found."""

from __future__ import annotations

import argparse
import sys
import time
import traceback

from tests.fuzz import Target, all_targets

ROUND = 200
"""Inputs of one target before it is the next one's turn."""


def main() -> int:
    """Take turns over the targets until the time is up; a target that found something is left out from then on."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--minutes", type=float, default=1.0, help="how long (default: 1)")
    parser.add_argument("--only", default="", metavar="NAME", help="targets whose name holds this")
    asked = parser.parse_args()
    targets = [target for target in all_targets() if asked.only in target.name]
    if not targets:
        parser.error(f"no target is named {asked.only!r}: {', '.join(target.name for target in all_targets())}")
    tried = dict.fromkeys((target.name for target in targets), 0)
    found: list[Target] = []
    until = time.monotonic() + 60 * asked.minutes
    while time.monotonic() < until and len(found) < len(targets):
        for target in targets:
            if target in found or time.monotonic() >= until:
                continue
            try:
                target.run(min(ROUND, 4 * target.examples), fixed=False)
            except Exception:
                found.append(target)
                print(f"{target.name}: FOUND\n{traceback.format_exc()}", flush=True)
            tried[target.name] += min(ROUND, 4 * target.examples)
    for target in targets:
        print(f"{target.name:32} {tried[target.name]:8} inputs{', FOUND' if target in found else ''}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
