"""A Slurm cluster on this machine: slurmctld, munge, and nodes with a slurmd each, on a network of their own."""

from __future__ import annotations

import contextlib
import os
import secrets
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from .image import Image, LabError, install_packages, require_root
from .keep import Command, Kept, run_inside
from .made import write_made

HERE = Path(__file__).parent
CONFIGURATION = """\
ClusterName=lab
SlurmctldHost=controller(10.79.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
CredType=cred/munge
StateSaveLocation=/run/slurmctld
SlurmctldPidFile=/run/slurmctld.pid
SlurmdSpoolDir=/run/slurmd
SlurmdPidFile=/run/slurmd.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
MpiDefault=none
SelectType=select/linear
SchedulerType=sched/builtin
SchedulerParameters=sched_interval=1,batch_sched_delay=0,nohold_on_prolog_fail
ReturnToService=1
SlurmdTimeout=300
MessageTimeout=60
KillWait=2
MailProg=/bin/true
NodeName={first}[{low}-{high}] NodeAddr=10.79.0.[{address_low}-{address_high}] CPUs=1
PartitionName=gpu Nodes=ALL Default=YES State=UP MaxTime=INFINITE
{more}
"""
NAME = "node"


class _ThisMachine(Image):
    """No image: the nodes see this machine's own files."""

    @contextlib.contextmanager
    def in_use(self) -> Iterator[None]:
        """Keep nothing."""
        yield


class SlurmCluster:
    """
    A controller and some nodes, `node1` ..., in the partition `gpu`.

    Nodes see this machine's own files, read-only, and the GPUs, IOMMU groups, command line and kernel log of the lab's
    booted hosts (made.py), each with a boot id of its own. Nothing is left when it stops, or when the process that
    started it dies in any way.

    Args:
        shared: A folder that all nodes can write to, at the same path.
        nodes: How many.
        more: Lines for slurm.conf.
        files: Executable files for /run/cluster, by their path below it.

    Example:
        with SlurmCluster(tmp_path, more="Prolog=/run/cluster/prolog") as cluster:
            cluster.run("srun -N2 hostname")
    """

    def __init__(self, shared: Path, *, nodes: int = 4, more: str = "", files: Mapping[str, str] | None = None) -> None:
        self.shared = shared
        self.names = [f"{NAME}{number}" for number in range(1, nodes + 1)]
        self._more = more
        self._files = files or {}
        self._kept: Kept | None = None
        self._inits: dict[str, int] = {}

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def folder(self) -> Path:
        """Files that every node has at /run/cluster."""
        return self._running.folder / "cluster"

    def start(self, *, timeout_s: float = 30) -> None:
        """
        Start all of it, and wait until every node is idle.

        Raises:
            LabError: Not root, packages cannot be had, or not up within `timeout_s`; the text has the logs' ends.
        """
        require_root()
        install_packages("controller", "controller-slurm")
        kept = self._kept = Kept(_ThisMachine(Path("/"), ""))
        try:
            self._write_files()
            kept.start(str(HERE / "slurm.sh"), str(kept.folder), str(self.shared), *self.names)
            self._wait(time.monotonic() + timeout_s)
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """End every process; mounts and networks go with them."""
        if self._kept is not None:
            self._kept.close()
            self._kept = None

    def run(self, command: Command, *, check: bool = True, timeout_s: float = 60) -> subprocess.CompletedProcess[str]:
        """Run a command on the controller, as root, with Slurm's commands at hand."""
        return self._run(self._inits[""], command, check, timeout_s)

    def run_on(self, node: str, command: Command, *, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run a command on a node, as root, past Slurm."""
        return self._run(self._inits[node], command, check, 30)

    def submit(self, script: Path, *arguments: str, options: Sequence[str] = ()) -> int:
        """Submit a batch job as root, and give its id."""
        words = ["sbatch", "--parsable", "--chdir=/run/tmp", *options, str(script), *arguments]
        return int(self.run(words).stdout.strip())

    def wait_for_job(self, job: int, *, timeout_s: float = 180) -> dict[str, str]:
        """
        Wait until a job has ended, and give what Slurm says of it: JobState, ExitCode, NodeList, ...

        Raises:
            LabError: It has not ended within `timeout_s`.
        """
        deadline = time.monotonic() + timeout_s
        while True:
            shown = self.run(["scontrol", "-o", "show", "job", str(job)]).stdout
            facts = dict(word.split("=", 1) for word in shown.split() if "=" in word)
            if facts["JobState"] not in ("PENDING", "RUNNING", "COMPLETING", "CONFIGURING"):
                return facts
            if time.monotonic() > deadline:
                raise LabError(f"job {job} has not ended after {timeout_s:.0f} s: {shown}")
            time.sleep(0.2)

    def states(self) -> dict[str, str]:
        """Give Slurm's word for the state of each node, without the sign behind it: "idle", "drained", "down"."""
        lines = self.run(["sinfo", "-h", "-N", "-o", "%N %t"]).stdout.splitlines()
        return {node: state.rstrip("*~#!%$@^-") for node, state in (line.split() for line in lines)}

    def wait_for(self, node: str, *states: str, timeout_s: float = 60) -> str:
        """
        Wait until a node is in one of some states.

        Raises:
            LabError: It is in none of them within `timeout_s`.
        """
        deadline = time.monotonic() + timeout_s
        while (state := self.states()[node]) not in states:
            if time.monotonic() > deadline:
                raise LabError(f"{node} is {state}, not {' or '.join(states)}, after {timeout_s:.0f} s")
            time.sleep(0.1)
        return state

    @property
    def _running(self) -> Kept:
        if self._kept is None:
            raise LabError("the cluster is not running")
        return self._kept

    @staticmethod
    def _run(leader: int, command: Command, check: bool, timeout_s: float) -> subprocess.CompletedProcess[str]:
        text = command if isinstance(command, str) else " ".join(f"'{word}'" for word in command)
        exports = "export SLURM_CONF=/run/cluster/slurm.conf TMPDIR=/run/tmp HOME=/run/tmp; "
        return run_inside(leader, exports + text, stdin="", check=check, timeout_s=timeout_s)

    def _write_files(self) -> None:
        folder = self.folder
        folder.mkdir()
        count = len(self.names)
        (folder / "slurm.conf").write_text(
            CONFIGURATION.format(
                first=NAME, low=1, high=count, address_low=11, address_high=10 + count, more=self._more
            )
        )
        key = folder / "munge.key"
        key.write_bytes(secrets.token_bytes(1024))
        key.chmod(0o400)
        hosts = [f"10.79.0.{10 + number} {name}" for number, name in enumerate(self.names, 1)]
        (folder / "hosts").write_text("\n".join(["127.0.0.1 localhost", "10.79.0.1 controller", *hosts]) + "\n")
        write_made(folder / "made")
        for name, text in self._files.items():
            file = folder / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
            file.chmod(0o755)
        self.shared.mkdir(parents=True, exist_ok=True)

    def _wait(self, deadline: float) -> None:
        kept = self._running
        while kept.alive and time.monotonic() < deadline:
            if (kept.folder / "cluster" / "started").exists():
                self._inits = self._find_inits()
                with contextlib.suppress(LabError, subprocess.TimeoutExpired):
                    if set(self.states().values()) == {"idle"} and len(self._inits) == len(self.names) + 1:
                        return
            time.sleep(0.1)
        raise LabError(f"the Slurm cluster is not up:\n{self._logs()}")

    def _find_inits(self) -> dict[str, int]:
        """Give PID 1 of the controller ("") and of each node, as numbered here."""
        found = dict.fromkeys([""], self._running.inits(1)[0])
        for pid in self._running.inits(2):
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                words = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
                if len(words) > 5 and words[1].endswith("slurm-node.sh"):
                    found[words[4]] = pid
        return found

    def _logs(self) -> str:
        folder = self._running.folder
        logs = [folder / "start.log", *(Path(f"/proc/{pid}/root/run/slurmd.log") for pid in self._inits.values())]
        logs += [Path(f"/proc/{pid}/root/run/slurmctld.log") for pid in self._inits.values()]
        return "\n".join(f"{log}:\n{log.read_text(errors='replace')[-1500:]}" for log in logs if os.path.exists(log))
