"""
The embedded endpoint: llama.cpp's own HTTP server with a model of 0.8 million parameters, on this machine.

It answers products of two numbers below 100, by computing them (tests/tiny_model/), so the endpoint suites
can be seen at work without a GPU. Ready in under a second, 50 MB.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Literal, TypeAlias

from pytest_gpuinfra.errors import EndpointError

MODEL_ID = "tiny-times"
MODEL_FILE = Path(__file__).with_name("tiny-times.gguf")
MODEL_SHA256 = "4db7e5aa66c1490cc65aab19b14f856544d38acd8d2272871b5b1386fc59febe"
INSTALL = "python -m pip install 'pytest-gpuinfra[demo]'"

Speculation: TypeAlias = Literal["none", "draft", "ngram"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """
    How to start the server.

    Attributes:
        model: GGUF file.
        model_id: Id in the model list.
        context: Tokens of all slots together; each slot gets context / slots.
        slots: Requests served at the same time.
        threads: Threads that compute; more only wait for each other with a model of this size.
        port: Port on 127.0.0.1; 0 for a free one.
        speculation: "draft" drafts with the model itself, "ngram" with what the context holds.
        api_key: Key that the server demands under /v1; "" for none.
    """

    model: str = str(MODEL_FILE)
    model_id: str = MODEL_ID
    context: int = 4096
    slots: int = 8
    threads: int = 1
    port: int = 0
    speculation: Speculation = "none"
    api_key: str = ""


class EmbeddedServer:
    """
    A llama.cpp server in a child process; ends with close(), with the with block, or with this process.

    Attributes:
        base_url: Where it listens; "" until it is ready, unless a port was given.
        ready_s: Seconds from start to ready; None until then.

    Example:
        >>> with EmbeddedServer() as server:                 # doctest: +SKIP
        ...     InferenceEndpoint(server.base_url).ask("15*23").answer
        '345'
    """

    def __init__(self, settings: ServerSettings | None = None) -> None:
        self.settings = settings or ServerSettings()
        self.base_url = f"http://127.0.0.1:{self.settings.port}" if self.settings.port else ""
        self.ready_s: float | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._log: IO[bytes] | None = None
        self._started = 0.0

    def __enter__(self) -> EmbeddedServer:
        self.start()
        try:
            self.wait()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def pid(self) -> int | None:
        """Process id of the server; None if it was not started."""
        return self._process.pid if self._process else None

    def start(self) -> None:
        """
        Start the child process; does not wait for it.

        Raises:
            EndpointError: xllamacpp is not installed, or the model file is damaged.
        """
        _check_installed()
        if self.settings.model == str(MODEL_FILE):
            check_model()
        self._log = tempfile.TemporaryFile(prefix="gpuinfra-embedded-")  # noqa: SIM115  closed by close()
        self._started = time.monotonic()
        child = Path(__file__).with_name("llamacpp_child.py")
        self._process = subprocess.Popen(
            [sys.executable, str(child), json.dumps(asdict(self.settings))],
            stdin=subprocess.PIPE,  # its end tells the child that we are gone, however we went
            stdout=subprocess.PIPE,
            stderr=self._log,
            start_new_session=True,
            cwd="/",
        )

    def wait(self, timeout_s: float = 60.0) -> float:
        """
        Wait until it listens and the model is loaded.

        Returns:
            Seconds from start to ready.

        Raises:
            EndpointError: It died, or was not ready within timeout_s; with the end of its log.
        """
        process = self._process
        if process is None or process.stdout is None:
            raise EndpointError("the embedded server was not started", remedy="call start() first")
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            line = process.stdout.readline() if selector.select(timeout_s) else b""
        if not line:
            process.poll()
            ended = f"ended with status {process.returncode}" if process.returncode is not None else "is not ready"
            self.close(keep_log=True)
            raise EndpointError(
                f"the embedded server {ended} after {time.monotonic() - self._started:.1f} s; "
                f"the end of its log:\n{self.log_tail()}"
            )
        self.base_url = json.loads(line)["base_url"]
        self.ready_s = time.monotonic() - self._started
        return self.ready_s

    def log_tail(self, size: int = 2000) -> str:
        """Give the end of what the server has logged."""
        if self._log is None:
            return ""
        self._log.seek(0)
        return self._log.read().decode(errors="replace")[-size:]

    def close(self, *, keep_log: bool = False) -> None:
        """End the server and everything that it started; harmless if it has ended already."""
        process = self._process
        if process is not None:
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    pipe.close()
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # it holds no state that a gentler end would save
            process.wait()
            self._process = None
        if self._log is not None and not keep_log:
            self._log.close()
            self._log = None


def check_model(path: Path = MODEL_FILE) -> None:
    """
    Compare the committed model with its SHA-256.

    Raises:
        EndpointError: It is missing or differs.
    """
    remedy = "install pytest-gpuinfra again: its files are damaged"
    try:
        found = hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        raise EndpointError(f"{path}: {error}", remedy=remedy) from None
    if found != MODEL_SHA256:
        raise EndpointError(f"{path}: SHA-256 is {found}, expected {MODEL_SHA256}", remedy=remedy)


def _check_installed() -> None:
    if importlib.util.find_spec("xllamacpp") is None:
        raise EndpointError("the embedded endpoint needs xllamacpp, which is not installed", remedy=INSTALL)
