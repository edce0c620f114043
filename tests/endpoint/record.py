"""
Records the bodies of a running server, for replay().

    python -m tests.endpoint.record http://127.0.0.1:8000 tests/recorded/endpoint/NAME

The server's path of the model becomes /opt/model; nothing else is changed.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path

from pytest_gpuinfra.endpoint.bad_requests import send_bad_requests
from pytest_gpuinfra.endpoint.client import InferenceEndpoint
from pytest_gpuinfra.endpoint.prompts import read_prompts

PAGES = {"v1_models.json": "/v1/models", "metrics.txt": "/metrics", "version.json": "/version", "props.json": "/props"}


def main(base_url: str, directory: Path) -> None:
    """Record."""
    model = str(Path(__file__).parent.parent / "tiny_model" / "model")

    def keep(name: str, text: str) -> None:
        (directory / name).write_text(text.replace(model, "/opt/model"))

    directory.mkdir(parents=True, exist_ok=True)
    with InferenceEndpoint(base_url) as endpoint:
        endpoint.warm_up()
        question = read_prompts()[0].prompt
        keep("chat.json", endpoint.ask(question).raw)
        keep("stream.sse", endpoint.stream(question).answer.raw)
        refusals = [asdict(refusal) | {"failure": None} for refusal in send_bad_requests(endpoint)]
        keep("bad_requests.json", json.dumps(refusals, indent=1) + "\n")
        for name, path in PAGES.items():
            answer = endpoint.get(path)
            if answer.status == 200:
                keep(name, answer.text)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
