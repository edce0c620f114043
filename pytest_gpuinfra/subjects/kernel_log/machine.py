"""
Faults of the machine itself in the kernel log: memory that ran out, errors of processor and memory.

Source: Linux mm/oom_kill.c ("Kill process ... or sacrifice child" up to 5.0, "Killed process" since; the group stands
in "oom-kill:constraint=" above it, up to 4.18 in "Task in ... killed as a result of limit of"),
arch/x86/kernel/cpu/mce and drivers/edac (mce, EDAC), drivers/firmware/efi/cper.c and acpi/apei/ghes.c (APEI).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from pytest_gpuinfra.subjects.kernel_log.fault import KernelFault
from pytest_gpuinfra.subjects.kernel_log.line import KernelLogEntry

_OOM = re.compile(
    r"(?P<scope>Memory cgroup out|Out) of memory(?: \(oom_kill_allocating_task\))?: "
    r"Kill(?:ed)? process (?P<pid>\d{1,18}) \((?P<name>.*?)\)"
)
_NEEDLES = ("emory", "oom", "limit of", "Hardware Error", "EDAC")
"""One of these is in every such line; most entries hold none, and are not searched."""
_GROUP = re.compile(
    r"\boom-kill:constraint=[^ ]{0,400}?,oom_memcg=(?P<new>[^, ]{1,400})"
    r"|killed as a result of limit of (?P<old>\S{1,400})"
)
_APEI = re.compile(r"\[Hardware Error\]: event severity: (?P<severity>\w+)")
_EDAC = re.compile(r"EDAC \S+: (?P<count>\d{1,18}) (?P<what>CE|UE) ")
_MCE = re.compile(
    r"\[Hardware Error\]: (?:CPU \d+: Machine Check(?: Exception)?: "
    r"|(?P<word>Corrected|Uncorrected|Deferred) error, )"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class OomKill(KernelFault):
    """
    One process that the kernel killed since memory had run out.

    Attributes:
        pid: Process that was killed.
        process: Its name, at most 15 characters.
        cgroup: Whether a control group's limit was reached rather than the machine's memory.
        group: Path of the group whose limit it was; None where the log does not tell, or it was none's.
    """

    pid: int
    process: str
    cgroup: bool
    group: str | None = None


def parse_machine_faults(entries: Sequence[KernelLogEntry]) -> tuple[KernelFault, ...]:
    """
    Pick OOM kills and hardware errors of the machine out of the kernel log.

    Returns:
        One fault for each line, in log order; kind "oom", or kind "mce" with code "corrected", "uncorrected",
        or the firmware's own word ("recoverable", "fatal", "info"). Shape (n,).
    """
    faults = []
    group: str | None = None
    for entry in entries:
        if not any(needle in entry.message for needle in _NEEDLES):
            continue
        told = _GROUP.search(entry.message) if "oom" in entry.message or "limit of" in entry.message else None
        if told:
            group = told["new"] or told["old"]
        fault = _read(entry)
        if isinstance(fault, OomKill) and fault.cgroup:
            fault = replace(fault, group=group)
        if isinstance(fault, OomKill):
            group = None
        if fault:
            faults.append(fault)
    return tuple(faults)


def _read(entry: KernelLogEntry) -> KernelFault | None:
    message = entry.message
    match = _OOM.search(message)
    if match:
        return OomKill(
            kind="oom",
            entry=entry,
            pid=int(match["pid"]),
            process=match["name"],
            cgroup=match["scope"].startswith("Memory cgroup"),
        )
    match = _APEI.search(message)
    if match:
        return KernelFault(kind="mce", entry=entry, code=match["severity"])
    match = _EDAC.search(message)
    if match:
        code = "corrected" if match["what"] == "CE" else "uncorrected"
        return KernelFault(kind="mce", entry=entry, code=code, count=int(match["count"]))
    match = _MCE.search(message)
    if match:
        word = (match["word"] or "uncorrected").lower()
        return KernelFault(kind="mce", entry=entry, code=word)
    return None
