"""The service's own all-reduce arm beside a real systemd unit in a real container, over the sham driver."""

from __future__ import annotations

import base64
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from pytest_gpuinfra.connection.container import parse_container
from pytest_gpuinfra.connection.nested import connect_container
from pytest_gpuinfra.connection.ssh import SshConnection
from pytest_gpuinfra.errors import FactUnavailable
from pytest_gpuinfra.host.capture import capture_host
from pytest_gpuinfra.inventory.inventory import parse_inventory
from pytest_gpuinfra.on_target.plan import ArmPlan, GpuPlan, program_text
from pytest_gpuinfra.subjects.service.as_it_runs import (
    UNSET,
    environment_of_service,
    nccl_of_service,
    process_of_service,
)
from pytest_gpuinfra.subjects.service.facts import ServiceFacts
from pytest_gpuinfra.subjects.transfers.program import parse_gpu_program_events
from tests.gpu.conftest import SMALL, sham_libraries

from .nspawn import NspawnHost

pytestmark = pytest.mark.lab
__all__ = ["sham_libraries"]

UNIT = """
[Service]
Environment=NCCL_PROTO=LL
ExecStart=/usr/bin/python3 /opt/serve/serve.py {arguments}
"""
# Renamed as setproctitle does it: the title runs over the arguments into the environment.
SERVE = """
import ctypes, sys, time
held = ctypes.CDLL("/opt/serve/libnccl.so.2.28.9")
if "renamed" in sys.argv:
    with open("/proc/self/stat") as file:
        start = int(file.read().rpartition(")")[2].split()[45])
    with open("/proc/self/mem", "r+b", buffering=0) as memory:
        memory.seek(start)
        memory.write(b"serve::main".ljust(160, b"\\0"))
time.sleep(3600)
"""
SPEC = parse_inventory({"hosts": {"lab": {"container": "pct:101", "service": "serve"}}}, "lab").hosts["lab"]


class Serving:
    """The container with a unit that has NCCL loaded."""

    def __init__(self, host: NspawnHost) -> None:
        self.host = host
        self.connection = SshConnection(host.alias, host.destination, config=str(host.ssh_config))

    def put(self, path: str, data: bytes) -> None:
        """Write a file in the container."""
        text = base64.b64encode(data).decode()
        self.host.container_shell(f"mkdir -p $(dirname {path}); base64 -d >{path}", stdin=text)

    def start(self, arguments: str = "", drop_in: str = "[Service]\n") -> ServiceFacts:
        """Start the unit afresh, and read its facts."""
        self.put("/etc/systemd/system/serve.service", UNIT.format(arguments=arguments).encode())
        self.put("/etc/systemd/system/serve.service.d/10-p2p.conf", drop_in.encode())
        self.host.container_shell("systemctl daemon-reload; systemctl restart serve")
        limit = time.monotonic() + 10
        while True:
            capture = capture_host(self.connection, SPEC, [], reached_by="lab", timeout_s=30)
            facts = ServiceFacts(capture, "serve.service")
            if nccl_of_service(facts)[:1] == ("/opt/serve/libnccl.so.2.28.9",) and (
                not arguments or facts.main.renamed
            ):
                return facts
            assert time.monotonic() < limit, self.host.container_shell("systemctl status serve", check=False).stdout


@pytest.fixture
def serving(lab_host: NspawnHost, sham_libraries: Path) -> Iterator[Serving]:
    """The service over the sham driver, whose NCCL lies where only the service knows it."""
    made = Serving(lab_host)
    made.put("/opt/serve/serve.py", SERVE.encode())
    made.put("/opt/serve/libnccl.so.2.28.9", (sham_libraries / "libnccl.so.2").read_bytes())
    for name in ("libcuda.so.1", "libnvidia-ml.so.1"):
        made.put(f"/usr/lib/x86_64-linux-gnu/{name}", (sham_libraries / name).read_bytes())
    yield made
    made.connection.close()


def test_arm_runs_with_what_the_unit_set_and_with_its_nccl(serving: Serving) -> None:
    """Unit and drop-in set one variable each; its processes have the library mapped; nothing else is taken from it."""
    facts = serving.start(drop_in="[Service]\nEnvironment=NCCL_P2P_DISABLE=1 HF_TOKEN=hf_secretsecret\n")
    environment = environment_of_service(facts)
    assert environment == {"NCCL_P2P_DISABLE": "1", "NCCL_PROTO": "LL"}
    process = process_of_service(facts)
    assert process is not None
    assert process[0] == facts.main.pid

    container = parse_container("pct:101")
    inside = connect_container(serving.connection, container)
    arm = ArmPlan("service", environment, UNSET)
    plan = GpuPlan(
        **{**SMALL, "mechanisms": (), "simultaneous": (), "arms": (arm,)},
        nccl_paths=nccl_of_service(facts),
        process=process,
    )
    answer = inside.run_program(program_text("cuda"), plan.document(), timeout_s=60, site=False)
    run = parse_gpu_program_events(answer.stdout.splitlines()).runs[0]

    assert (run.ending, run.transports) == ("right", {"SHM"}), run.reason
    assert run.library is not None
    assert run.library.path == "/opt/serve/libnccl.so.2.28.9"


def test_overwritten_environment_of_the_only_process_is_unknown(serving: Serving) -> None:
    """Its title ran over what says whether peer-to-peer is off: ERROR, and not "not set"."""
    facts = serving.start("renamed")

    with pytest.raises(FactUnavailable, match="is not known whole"):
        environment_of_service(facts)
