"""What the GPU programs need of the running service to do as it does: its environment, its NCCL, its Python."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import PurePosixPath

from pytest_gpuinfra.errors import FactUnavailable, GpuInfraError
from pytest_gpuinfra.on_target.probe.probe_names import MASK
from pytest_gpuinfra.subjects.service.facts import ServiceFacts
from pytest_gpuinfra.subjects.service.python import NO_PYTHON_PROCESS

PASSED_ON = ("NCCL_", "CUDA_", "NVIDIA_", "LD_", "TORCH_", "PYTORCH_", "OMP_")
"""Beginnings of the variables that a rank gets from the service; what is read at all is in expect_service.py."""
UNSET = tuple(f"{beginning}*" for beginning in ("NCCL_", "TORCH_NCCL_"))
"""What the login of our own program may have set, and the service has not."""
_WRITES = re.compile(r"DUMP|TRACE|PROFIL|DEBUG_FILE|DEBUG_INFO")
"""Variables by which a library would leave files there: NCCL_TOPO_DUMP_FILE, CUDA_ENABLE_COREDUMP_ON_EXCEPTION."""
_NCCL_FILE = re.compile(r"/libnccl\.so(?:\.\d+)*$")
_ASKED = ("NCCL_P2P_DISABLE", "NCCL_P2P_LEVEL", "NCCL_SHM_DISABLE", "NCCL_ALGO", "NCCL_PROTO", "NCCL_SOCKET_IFNAME")


def environment_of_service(service: ServiceFacts) -> Mapping[str, str]:
    """
    Give the variables in effect in the service's main process, as far as they are read and passed on.

    Those that make a library write files are left out, and so are masked ones.

    Raises:
        FactUnavailable: It has no process, or its environment is not known whole: one variable more may be set.
    """
    main, witnesses = service.main, service.witnesses
    for name in _ASKED:
        for value in witnesses.of(name).values:
            if value.process == str(main) and not value.known:
                raise FactUnavailable(
                    service.unit_name,
                    f"the environment of its main process {main} is not known whole: {name} is unknown "
                    f"({value.witness})",
                    remedy="read as root (--gpu-sudo), or start the engine by a process that keeps its environment",
                )
    found: dict[str, str] = {}
    for beginning in PASSED_ON:
        found |= witnesses.known_in(main, beginning)
    return {name: value for name, value in found.items() if MASK not in value and not _WRITES.search(name)}


def loaded_nccl(service: ServiceFacts) -> tuple[str, ...]:
    """Give the files of libnccl that the service's processes have loaded; () where none is seen."""
    try:
        opened = {path for process in service.processes for path in process.opened or ()}
    except GpuInfraError:
        return ()
    return tuple(sorted(path for path in opened if _NCCL_FILE.search(path)))


def nccl_of_service(service: ServiceFacts) -> tuple[str, ...]:
    """
    Give the files of libnccl to try: those that its processes have loaded, else those that its Python would load.

    Shape (n,), the likeliest first; () where nothing tells.
    """
    loaded = loaded_nccl(service)
    if loaded:
        return loaded
    found = []
    try:
        environment = service.witnesses.known_in(service.main, "")
        found.append(environment.get("VLLM_NCCL_SO_PATH", ""))
        found += [f"{path}/libnccl.so.2" for path in environment.get("LD_LIBRARY_PATH", "").split(":") if path]
        start = service.python
        version = ".".join(start.version.split(".")[:2])
        for name in ("site-packages", "dist-packages"):
            found.append(f"{start.prefix}/lib/python{version}/{name}/nvidia/nccl/lib/libnccl.so.2")
    except GpuInfraError:
        pass  # the program's own Python and the loader come next
    return tuple(path for path in found if PurePosixPath(path).is_absolute())


def process_of_service(service: ServiceFacts) -> tuple[int, int] | None:
    """
    Give the process as which everything of the service's is run: that of its Python, else its main process.

    (number, start time in clock ticks since boot); None where no process is there.
    """
    try:
        pid = service.python.pid
    except GpuInfraError:
        pid = 0
    try:
        processes = service.processes
        found = next((process for process in processes if process.pid == pid), service.main)
    except FactUnavailable:
        return None
    return found.pid, found.started_ticks


def framework_of_service(service: ServiceFacts) -> tuple[int, int] | None:
    """
    Give the process in whose Python the framework's program runs; None where the service is no Python or not running.

    Raises:
        FactUnavailable: Its Python was not started as that process, so the program cannot be either.
    """
    process = process_of_service(service)
    if process is None:
        return None
    try:
        _ = service.python
    except FactUnavailable as error:
        if NO_PYTHON_PROCESS in error.reason:
            return None
        raise
    return process
