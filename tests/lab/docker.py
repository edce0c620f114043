"""A real docker daemon of this machine's own, with one container made from the lab's container tree; no registry."""

from __future__ import annotations

import contextlib
import os
import subprocess
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Self

from .host_files import INNER
from .image import LabError, ensure_image, install_packages, require_root
from .leftovers import note, remove_leftovers

NAME = "gpuinfra-ct1"


class DockerHost:
    """
    This machine as a host with docker: `docker exec` and `docker inspect` reach the container `NAME`.

    Attributes:
        environment: DOCKER_HOST for whoever calls the client.
    """

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="gpuinfra-docker-"))
        self.environment = {"DOCKER_HOST": f"unix://{self.folder}/socket"}
        self._daemon: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        require_root()
        install_packages("controller-docker")
        remove_leftovers()
        self._note = note(self.folder)
        try:
            self._start()
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop()

    def docker(self, *argv: str, check: bool = True) -> str:
        """Call the client."""
        done = subprocess.run(
            ["docker", *argv], env={**os.environ, **self.environment}, capture_output=True, text=True, check=False
        )
        if check and done.returncode:
            raise LabError(f"docker {' '.join(argv)}: {done.stdout}{done.stderr}")
        return done.stdout.strip()

    def _start(self) -> None:
        folder, log = self.folder, self.folder / "log"
        root = ensure_image().root / INNER
        with log.open("wb") as output:
            self._daemon = subprocess.Popen(
                ["dockerd", "--data-root", f"{folder}/data", "--exec-root", f"{folder}/exec",
                 "--pidfile", f"{folder}/pid", "-H", self.environment["DOCKER_HOST"],
                 "--iptables=false", "--bridge=none", "--storage-driver=vfs"],
                stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True,
            )  # fmt: skip
        self._note = note(folder, self._daemon.pid)
        limit = time.monotonic() + 30
        while not (folder / "socket").exists() or "Server" not in self.docker("version", check=False):
            if self._daemon.poll() is not None or time.monotonic() > limit:
                raise LabError(f"dockerd did not start:\n{log.read_text()[-2000:]}")
            time.sleep(0.1)
        pack = ["tar", "--create", "--numeric-owner", "--owner=0", "--group=0", "--exclude=./var/cache", "."]
        with subprocess.Popen(pack, cwd=root, stdout=subprocess.PIPE) as packed:
            subprocess.run(
                ["docker", "import", "-", "ct:1"],
                stdin=packed.stdout,
                env={**os.environ, **self.environment},
                check=True,
                capture_output=True,
            )
        self.docker("run", "-d", "--name", NAME, "--network", "none", "--shm-size", "64m", "ct:1", "sleep", "100000")

    def _stop(self) -> None:
        if self._daemon is not None:
            with contextlib.suppress(LabError):
                self.docker("rm", "-f", NAME, check=False)
            self._daemon.terminate()
            try:
                self._daemon.wait(20)
            except subprocess.TimeoutExpired:
                self._daemon.kill()
                self._daemon.wait()
            self._daemon = None
        self._note.remove()
