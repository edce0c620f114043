"""The plans that GPU programs and the sampler are given, and the programs' texts."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cache
from typing import Any, Literal

from pytest_gpuinfra.on_target.bundle import HERE, packed

SCHEMA = 1
MEBIBYTE = 1 << 20
MECHANISMS = ("copy_engine", "kernel_store", "kernel_load", "ipc_store", "ipc_load")
LOCAL_MECHANISMS = ("host_memory", "kernel_copy")


def program_text(program: Literal["cuda", "torch", "hosts"]) -> str:
    """Give a GPU program as one Python source, for `Connection.run_program`."""
    return packed(f"{program}_program")


@cache
def kernels_ptx() -> str:
    """Give the kernels as PTX text."""
    return (HERE / "kernels" / "kernels.ptx").read_text(encoding="utf-8")


@dataclass(frozen=True, slots=True)
class ArmPlan:
    """
    One all-reduce arm.

    Attributes:
        name: "service", "shm", "p2p", or any other word.
        environment: Variables for the ranks; CUDA_VISIBLE_DEVICES and NCCL_DEBUG* of it have no effect.
        unset: Variables to take away first, "NAME" or "PREFIX*".
        devices: PCI addresses, shape (world_size,), by rank; all of the plan's if empty.
    """

    name: str
    environment: Mapping[str, str] = field(default_factory=dict)
    unset: tuple[str, ...] = ()
    devices: tuple[str, ...] = ()

    def document(self) -> dict[str, Any]:
        """Give the arm as the programs read it."""
        return {
            "name": self.name,
            "environment": dict(self.environment),
            "unset": list(self.unset),
            "devices": list(self.devices),
        }


@dataclass(frozen=True, slots=True)
class Deadlines:
    """
    Seconds until something counts as hanging.

    Attributes:
        prepare_s: Driver, contexts, libraries (torch's import is not in it).
        task_s: One pair by one mechanism, all sizes and repeats.
        stall_s: No rank of an arm says anything.
        arm_s: One arm.
        total_s: The program.
    """

    prepare_s: float = 30.0
    task_s: float = 20.0
    stall_s: float = 20.0
    arm_s: float = 60.0
    total_s: float = 600.0


@dataclass(frozen=True, slots=True)
class Memory:
    """
    What the programs may take of each GPU's memory, in bytes.

    Attributes:
        budget_bytes: Our buffers at most, contexts not counted.
        keep_free_bytes: What must stay free for whatever runs there.
        context_bytes: What one context is reckoned with.
    """

    budget_bytes: int = 1024 * MEBIBYTE
    keep_free_bytes: int = 1024 * MEBIBYTE
    context_bytes: int = 640 * MEBIBYTE


@dataclass(frozen=True, slots=True)
class OddCase:
    """A copy whose size or place is not aligned, in bytes."""

    size: int
    src_offset: int
    dst_offset: int


SHM = ArmPlan("shm", {"NCCL_P2P_DISABLE": "1"})
P2P = ArmPlan("p2p", {}, ("NCCL_P2P_DISABLE", "NCCL_P2P_LEVEL"))


@dataclass(frozen=True, slots=True)
class GpuPlan:
    """
    What a GPU program is to do.

    Attributes:
        devices: PCI addresses ("0000:01:00.0", lower case); None for every device that CUDA shows.
        visible_devices: CUDA_VISIBLE_DEVICES for the program (MIG: the instance's UUID); None leaves it alone.
        local: Mechanisms on each device alone: "host_memory", "kernel_copy"; torch_program has one, "torch_copy".
        mechanisms: Of MECHANISMS; empty for no peer transfers. torch_program has one, "torch_copy".
        simultaneous: Mechanisms to try in both directions at once.
        chains: Mechanisms for chains of three.
        sizes: Bytes of the copies; cut down to what memory allows.
        odd_cases: Unaligned copies.
        chain_sizes: Bytes of the chains' copies.
        repeats: Rounds of each case, each with new bytes and a newly poisoned destination.
        timed_copies: Copies in the timed round of the largest size; 0 for no bandwidth.
        arms: All-reduce arms, one after the other, each in processes of its own.
        messages: (type, bytes) of the sums, types "int32", "float32", "bfloat16".
        timed_sums: All-reduces in the timed round of the largest message; 0 for no busbw.
        nccl_paths: Files of libnccl to try first; of effect only with `process`.
        process: (number, start time in clock ticks) of the service's process that every rank is like; None for ranks
            with the program's own rights, which load nothing of a service's.
        restarts: How often a new process takes over from one that hung or died.
        lock_wait_s: Seconds to wait for another run on the target.
        seed: Of all bytes and sums; drawn anew for every plan.
    """

    devices: tuple[str, ...] | None = None
    visible_devices: str | None = None
    local: tuple[str, ...] = LOCAL_MECHANISMS
    mechanisms: tuple[str, ...] = MECHANISMS
    simultaneous: tuple[str, ...] = ("copy_engine", "kernel_store", "kernel_load")
    chains: tuple[str, ...] = ("copy_engine", "kernel_store")
    sizes: tuple[int, ...] = (4096, 64 * 1024, MEBIBYTE, 16 * MEBIBYTE, 256 * MEBIBYTE)
    odd_cases: tuple[OddCase, ...] = (
        OddCase(1, 3, 1),
        OddCase(4093, 1, 2),
        OddCase(65536 + 17, 16, 32),
        OddCase(MEBIBYTE + 13, 7, 4),
    )
    chain_sizes: tuple[int, ...] = (4099, MEBIBYTE)
    repeats: int = 2
    timed_copies: int = 8
    arms: tuple[ArmPlan, ...] = (SHM, P2P)
    messages: tuple[tuple[str, int], ...] = (
        ("int32", 4),
        ("int32", 4100),
        ("int32", MEBIBYTE),
        ("int32", 256 * MEBIBYTE),
        ("float32", 4100),
        ("float32", 256 * MEBIBYTE),
        ("bfloat16", 4098),
        ("bfloat16", 64 * MEBIBYTE),
    )
    timed_sums: int = 10
    nccl_paths: tuple[str, ...] = ()
    process: tuple[int, int] | None = None
    restarts: int = 8
    lock_wait_s: float = 60.0
    deadlines: Deadlines = field(default_factory=Deadlines)
    memory: Memory = field(default_factory=Memory)
    seed: int = field(default_factory=lambda: secrets.randbits(31))

    def document(self, program: Literal["cuda", "torch"] = "cuda") -> dict[str, Any]:
        """Give the plan as the program reads it, one JSON object."""
        return {
            "schema": SCHEMA,
            "devices": None if self.devices is None else list(self.devices),
            "visible_devices": self.visible_devices,
            "local": list(self.local),
            "mechanisms": list(self.mechanisms),
            "simultaneous": list(self.simultaneous),
            "chains": list(self.chains),
            "sizes": list(self.sizes),
            "odd_cases": [
                {"size": case.size, "src_offset": case.src_offset, "dst_offset": case.dst_offset}
                for case in self.odd_cases
            ],
            "chain_sizes": list(self.chain_sizes),
            "repeats": self.repeats,
            "timed_copies": self.timed_copies,
            "arms": [arm.document() for arm in self.arms],
            "messages": [{"type": name, "size_bytes": size} for name, size in self.messages],
            "timed_sums": self.timed_sums,
            "nccl_paths": list(self.nccl_paths) if self.process else [],
            "process": None if self.process is None else list(self.process),
            "restarts": self.restarts,
            "lock_wait_s": self.lock_wait_s,
            "deadlines": {
                name: getattr(self.deadlines, name) for name in ("prepare_s", "task_s", "stall_s", "arm_s", "total_s")
            },
            "memory": {
                name: getattr(self.memory, name) for name in ("budget_bytes", "keep_free_bytes", "context_bytes")
            },
            "seed": self.seed,
            **({"ptx": kernels_ptx()} if program == "cuda" else {}),
        }


ON_GPUS = (
    ("int32", 4),
    ("int32", MEBIBYTE),
    ("float32", 4100),
    ("float32", 64 * MEBIBYTE),
    ("bfloat16", 4098),
)
"""Messages of sums over hosts."""
ON_CPU = (("int32", 4), ("int32", MEBIBYTE), ("float32", 4100), ("float32", 4 * MEBIBYTE), ("bfloat16", 4098))
"""The same for ranks on the CPU, which makes and compares them itself."""


@dataclass(frozen=True, slots=True)
class Rendezvous:
    """
    Where the hosts of a group meet.

    Attributes:
        address: Of the first host, as the others reach it.
        port: TCP port there.
        id: Word that only this run has.
        hosts: How many come.
        join_s: Seconds until all must have come, their import of torch included.
    """

    address: str
    port: int
    hosts: int
    join_s: float
    id: str = field(default_factory=lambda: secrets.token_hex(8))


@dataclass(frozen=True, slots=True)
class HostsPlan:
    """
    What the hosts of a group are to do together; each gets its own document of it.

    Attributes:
        rendezvous: Where they meet.
        backend: "nccl", or "gloo" for ranks on the CPU.
        environment: Variables for the ranks; "{host}" in a value stands for the host's alias.
        unset: Variables to take away first, "NAME" or "PREFIX*".
        messages: (type, bytes) of the sums.
        repeats: Rounds of each.
        timed_sums: All-reduces in the timed round of the largest message; 0 for no busbw.
        lock_wait_s: Seconds to wait for another run on a host.
        deadlines: As in GpuPlan; `prepare_s` until the ranks of a host are ready.
        memory: As in GpuPlan.
        seed: Of all sums; drawn anew for every plan.
    """

    rendezvous: Rendezvous
    backend: Literal["nccl", "gloo"] = "nccl"
    environment: Mapping[str, str] = field(default_factory=dict)
    unset: tuple[str, ...] = ()
    messages: tuple[tuple[str, int], ...] = ON_GPUS
    repeats: int = 2
    timed_sums: int = 5
    lock_wait_s: float = 60.0
    deadlines: Deadlines = field(default_factory=Deadlines)
    memory: Memory = field(default_factory=Memory)
    seed: int = field(default_factory=lambda: secrets.randbits(31))

    def document(self, host: str, devices: Sequence[str], *, first: bool, lock: bool = True) -> dict[str, Any]:
        """
        Give one host's part of the plan, one JSON object.

        Args:
            host: Its alias.
            devices: PCI addresses of its ranks' GPUs, shape (ranks,); any words for ranks on the CPU.
            first: Whether the rendezvous is there.
            lock: Whether it takes the target's lock; two hosts of a group may be one machine.
        """
        return {
            "schema": SCHEMA,
            "host": host,
            "devices": list(devices),
            "lock": lock,
            "rendezvous": {
                "address": self.rendezvous.address,
                "port": self.rendezvous.port,
                "id": self.rendezvous.id,
                "here": first,
                "hosts": self.rendezvous.hosts,
                "join_s": self.rendezvous.join_s,
            },
            "backend": self.backend,
            "environment": {name: value.replace("{host}", host) for name, value in self.environment.items()},
            "unset": list(self.unset),
            "messages": [{"type": name, "size_bytes": size} for name, size in self.messages],
            "repeats": self.repeats,
            "timed_sums": self.timed_sums,
            "lock_wait_s": self.lock_wait_s,
            "deadlines": {
                name: getattr(self.deadlines, name) for name in ("prepare_s", "task_s", "stall_s", "arm_s", "total_s")
            },
            "memory": {
                name: getattr(self.memory, name) for name in ("budget_bytes", "keep_free_bytes", "context_bytes")
            },
            "seed": self.seed,
        }


@dataclass(frozen=True, slots=True)
class Estimate:
    """
    What a plan comes to, before it runs.

    Attributes:
        tasks: Copies on each device alone, directed pairs by mechanism, pairs in both directions at once, and chains.
        bytes: Bytes that these copy, memory allowing.
        seconds: About how long the run takes, from what two H200s needed; torch's import included.
    """

    tasks: int
    bytes: int
    seconds: float


def estimate(plan: GpuPlan, gpus: int, program: Literal["cuda", "torch"] = "cuda") -> Estimate:
    """Reckon a plan for so many GPUs."""
    pairs = gpus * (gpus - 1) * len(plan.mechanisms)
    both = gpus * (gpus - 1) // 2 * len(plan.simultaneous)
    chains = gpus * (gpus - 1) * (gpus - 2) * len(plan.chains)
    local = gpus * len(plan.local)
    sizes = sum(plan.sizes) + sum(case.size for case in plan.odd_cases)
    one_way = sizes * plan.repeats + max(plan.sizes) * plan.timed_copies
    tasks = local + pairs + both + chains
    return Estimate(
        tasks,
        one_way * (local + pairs + 2 * both) + chains * 2 * sum(plan.chain_sizes) * plan.repeats,
        round(1.5 + 0.03 * tasks + 1.4 * len(plan.arms) + (5.0 if program == "torch" else 0.0), 1),
    )


@dataclass(frozen=True, slots=True)
class SamplingPlan:
    """
    What the sampler is to do.

    Attributes:
        duration_s: Seconds from its first sample to its last.
        interval_s: Seconds between two samples. The driver's own activity counter moves every 1/6 s to 1 s.
        port: Port that the service listens on; a process is the service's if it, or one above it, listens there.
            None where the service is known by its unit alone.
    """

    duration_s: float = 6.0
    interval_s: float = 0.25
    port: int | None = None

    def document(self) -> dict[str, Any]:
        """Give the plan as the sampler reads it."""
        return asdict(self)
