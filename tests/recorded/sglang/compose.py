"""
Makes this folder of what tests/gpu/sglang_on_device.sh left behind.

    python -m tests.recorded.sglang.compose RESULTS        RESULTS: results.tar.gz, unpacked

All recordings go into one, each server a host of its own. Identities are replaced; left out are what no endpoint item
reads: the kernel's log, nvidia-smi's and the PCI functions' details, metrics that are none of speculation's and token
counts, and the streams that the speed was measured with, which a replay does not measure again.
"""

from __future__ import annotations

import json
import re
import sys
from datetime import datetime
from pathlib import Path
from typing import Any

from tests.recorded.sanitise import sanitise

HERE = Path(__file__).parent
SERVERS = ("plain", "nextn", "nextn-spoiled", "standalone", "ngram", "two-ranks", "idle-rank")
LEFT_OUT = ("nvidia_smi", "kernel_log", "pci_detail")
_METRIC = re.compile(
    r"(?:# (?:HELP|TYPE) )?sglang:\w*(?:spec|(?:generation|prompt)_tokens_total|num_requests_total|num_running_reqs)"
)
_GROUP = re.compile(r"/process_api/[0-9a-f]{32}")


def slim(host: dict[str, Any]) -> dict[str, Any]:
    """Cut a host's part down."""
    capture = host["capture"]
    capture["answers"] = {name: answer for name, answer in capture["answers"].items() if name not in LEFT_OUT}
    capture["requests"] = [one for one in capture["requests"] if one["id"] not in LEFT_OUT]
    kept: list[dict[str, Any]] = []
    streams = 0
    for exchange in host["gathered"].get("endpoint", {}).get("exchanges", []):
        if '"stream": true' in exchange["request"]:
            streams += 1
            if streams > 1:  # the first is the one that is compared with a whole answer
                continue
        if exchange["path"] == "/metrics" and "sglang:" in "".join(exchange["pieces"]):
            lines = "".join(exchange["pieces"]).splitlines(keepends=True)
            exchange["pieces"] = ["".join(line for line in lines if _METRIC.match(line) and "_bucket" not in line)]
        kept.append(exchange)
    if kept:
        endpoint = host["gathered"]["endpoint"]
        endpoint["exchanges"] = kept  # that run did not note when it asked for the models: a minute later at most
        endpoint.setdefault("models_at", datetime.fromisoformat(capture["taken_at"]).timestamp())
    return host


def clean(text: str) -> str:
    """Take identities out."""
    return _GROUP.sub("/machine", sanitise(text))


def main(results: Path) -> None:
    """Compose."""
    joined: dict[str, Any] = {}
    for file in [*(f"ready-{name}" for name in SERVERS[:5]), *SERVERS]:
        document = json.loads((results / f"{file}.json").read_text())
        (old,) = document["order"]
        if not joined:
            joined = {**document, "hosts": {}, "order": [], "results": []}
        joined["order"].append(file)
        joined["hosts"][file] = slim(document["hosts"][old])
        for result in document["results"]:
            identity = result["id"].replace(f"[{old}", f"[{file}")
            joined["results"].append({**result, "host": file, "id": identity})
    text = json.dumps(joined, sort_keys=True, indent=1, ensure_ascii=False) + "\n"
    (HERE / "recording.json").write_text(clean(text))
    for name in SERVERS[:5]:
        (HERE / f"proc-{name}.json").write_text(clean((results / f"proc-{name}.json").read_text()))
    beside = json.loads((results / "beside.json").read_text())["hosts"]["beside"]["gathered"]["gpu"]["cuda"]["lines"]
    (HERE / "beside-cuda.jsonl").write_text(clean("\n".join(beside) + "\n"))
    (HERE / "beside-load.json").write_text((results / "beside-load.json").read_text() + "\n")
    samples = [line for line in (results / "beside.jsonl").read_text().splitlines() if line.strip()]
    some = [line for number, line in enumerate(samples) if '"sample"' not in line or number % 5 == 0]
    (HERE / "beside-samples.jsonl").write_text(clean("\n".join(some) + "\n"))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
