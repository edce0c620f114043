"""Starts inference servers that are too big for the repository's own virtual environment."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

from pytest_gpuinfra.endpoint.client import InferenceEndpoint
from pytest_gpuinfra.endpoint.judge_readiness import judge_readiness
from pytest_gpuinfra.endpoint.readiness import UnitState
from tests.endpoint.servers import unused_port

MODEL = Path(__file__).parent.parent / "tiny_model" / "model"


@contextlib.contextmanager
def started(
    argv: list[str], model: str, environment: dict[str, str], wait_s: float = 300
) -> Iterator[InferenceEndpoint]:
    """
    Start a server, wait for it by the ladder, and end it with all its processes.

    Args:
        argv: Command; "PORT" is replaced by a free port.
        model: Id that it must list.
        environment: Variables beside our own.
        wait_s: How long it may take, in seconds.
    """
    port = unused_port()
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(
            [str(port) if word == "PORT" else word for word in argv],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=os.environ | {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"} | environment,
            start_new_session=True,
        )

        def tail() -> str:
            log.seek(0)
            return log.read().decode(errors="replace")[-3000:]

        def state() -> UnitState:
            ended = process.poll()
            return UnitState("active", "running") if ended is None else UnitState("failed", str(ended), None, tail())

        try:
            with InferenceEndpoint(f"http://127.0.0.1:{port}", model=model) as endpoint:
                verdict = judge_readiness(endpoint.readiness(wait_s=wait_s, unit_state=state, on_progress=print))
                assert verdict.ok, f"{verdict.message}\n{tail()}"
                print(verdict.observed)
                endpoint.warm_up()
                yield endpoint
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(20)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
