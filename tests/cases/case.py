"""
One real-world case as data: what a machine answers, and how the product's items must end on it.

A folder of cases holds a cases.json, a list of
    {"id": str, "topic": str, "verdict": str, "reason": str, "parsed": {...}, "hosts": [HOST, ...],
     "words": [str, ...], "unread": str, "input": str, "known": str}
where HOST is
    {"base": "reference" or "endpoint",
     "functions": {PCI address: {reading: text}},   PCI functions in place of the base's; absent: the base's
     "readings": [[request, entry, reading, {"t": text, "e": why there is none, "x": exit status, "s": stderr}], ...],
                                                    null in place of the last: the entry is not there
     "program": [event, ...],                       what the GPU program wrote; absent: it was not run
     "kmsg": str,                                   kernel records that fell into the program's run
     "answers": {path: [{"status": int, "body": str, "type": str}, ...]},   of the endpoint, in order, the last again
     "prompts": [{...}],                            the user's own questions
     "spec": {...},                                 keys of the inventory's host, beside the address
     "items": [pattern of "test_name[target]", ...]}
"words": what the messages of the items that failed must hold. "known": the product ends otherwise, and why.
"unread": no item reads what the case is about, and why; "input" keeps it for the one that will, in place of hosts.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
OWN = HERE / "data"
"""The published cases."""
MORE = HERE / "more"
"""Cases of our own making: other inputs of the same kinds."""
UNREAD = "no check reads this"


@dataclass(frozen=True)
class Case:
    """
    One case.

    Attributes:
        id: "C001".
        topic: Word of the index ("xid-log").
        verdict: "pass", "pass (warn)", "fail", "skip", "error". A warning is no ending of an item: it counts as "pass".
        reason: Why, by whoever made the case.
        hosts: Machines that show it; every one must end so, or, where the verdict is "fail", one of them.
        parsed: What is to be read from the input, by key.
        words: What the messages must hold where the verdict is "fail"; case does not matter.
        unread: Why no item reads it; "" if one does.
        input: What no item reads; "" if one does.
        known: Why the product ends otherwise today; "" if it does not.
    """

    id: str
    topic: str
    verdict: str
    reason: str = ""
    hosts: Sequence[Mapping[str, Any]] = ()
    parsed: Mapping[str, Any] = field(default_factory=dict)
    words: Sequence[str] = ()
    unread: str = ""
    input: str = ""
    known: str = ""

    def texts(self) -> list[str]:
        """Give every text that a machine of the case shows."""
        hosts = [host for host in self.hosts if host["base"] == "reference"]
        shown = [row[3]["t"] for host in hosts for row in host.get("readings", ()) if row[3] and row[3].get("t")]
        return [*shown, self.input] if self.input else shown

    def aliases(self) -> list[str]:
        """Name the hosts of the run that show this case."""
        return [f"{self.id.lower()}-{number}" for number in range(len(self.hosts))]


def read_cases(folder: Path) -> list[Case]:
    """Read a folder of cases, in this form or in the older one (topic, input, verdict), which is converted."""
    entries = json.loads((folder / "cases.json").read_text(encoding="utf-8"))
    if not all("hosts" in entry or "unread" in entry for entry in entries):
        from tests.cases.convert import convert  # noqa: PLC0415 (it imports this module)

        entries = [convert(entry, folder) for entry in entries]
    return [Case(**entry) for entry in entries]
