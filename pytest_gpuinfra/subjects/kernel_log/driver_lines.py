"""
Lines of drivers that have no parser of their own: distress by a table, harmless by a table, and what is neither.

A speaker is who writes a line. Of the speakers that a GPU host depends on, a line of level error (KERN_ERR) or worse
is unknown unless something recognises it. NVIDIA's core prints without a level (nv_printf() gives KERN_CONT), and text
of dmesg shows none: there the driver's words decide.

Source: known_lines.toml beside this file, which names its own; for tasks and processors that hang, and for the kernel's
own faults, Linux kernel/hung_task.c, kernel/watchdog.c, kernel/rcu/tree_stall.h, arch/x86/kernel/dumpstack.c.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Sequence
from functools import cache
from importlib import resources

from pytest_gpuinfra.pci_address import normalise_pci_address
from pytest_gpuinfra.subjects.kernel_log.fault import KernelFault
from pytest_gpuinfra.subjects.kernel_log.line import READ, KernelLogEntry

_ERROR = 3
_WARNING = 4
_STACK = 80
_PCI = re.compile(r"\b[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[01][0-9a-fA-F](?:\.[0-7]\b|(?![.0-9a-fA-F]|:[0-9a-fA-F]))")
_DEVICE = r"[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7]"
_SPEAKER = re.compile(
    rf"""
    (?P<nvidia>NVRM\b|nvidia\b|nvidia[-_]\w+|\[drm[^\]]*\]\ .*\[nvidia-drm\]|\[drm:nv_drm_)
    |(?P<amd>amdgpu\b|kfd\ kfd:|amdkfd\b|\[drm:(?:\w*amdgpu|amdgpu_|[^\]]*\[amdgpu\])|\[drm\]\ \*ERROR\*)
    |(?P<vfio>vfio[-_]pci\b|vfio\b)
    |(?P<iommu>DMAR\b|Intel-IOMMU:|dmar\b|AMD-Vi\b|\S+\ \S+:\ AMD-Vi:|arm-smmu|iommu\b
        |\(XEN\)\ (?:\[VT-D\]|AMD-Vi|AMD_IOV))
    |(?P<port>pcieport\b|pciehp\b|AER\b|DPC\b|\S+\ {_DEVICE}:\ (?:AER|DPC|pciehp|PCIe\ Bus\ Error)\b)
    |(?P<machine>mce:|Memory\ failure:|MCE\b|EDAC\b|RAS:|(?:\{{\d+\}})?\[Hardware\ Error\])
    |(?P<secure>ccp\b|psp\b|SEV(?:-ES|-SNP)?\b|SNP\b|kvm_amd\b|tdx\b|virt/tdx\b)
    |(?P<bus>pci\ {_DEVICE}:)
    """,
    re.VERBOSE,
)
_WORDS = re.compile(
    r"fail|\berr(?:or)?s?\b|\bfault|fatal|\bcan(?:no|')t\b|\bcan not\b|\bcould(?: not|n't)\b|\bunable\b|timed? ?-?out\b"
    r"|\bhang|\bhung\b|\bstuck\b|\block(?:ed)?(?: ?up|\b)|\bhalt(?:ed)?\b|\bdead\b|\bdied\b|\blost\b|invalid(?!ation)"
    r"|unexpected|corrupt|uncorrect|unrecover|\bnot (?:respond|ready|done|set|present|cleared|recovered|trained|found)"
    r"|unresponsive|\bno (?:response|longer)\b|giving up|abort|panic|assert|\bbug\b|broken|expired|\breset required\b"
    r"|\b(?:needs?|requires?|required) .{0,12}\breset|link down|overflow|exception|poison|degraded|inaccessible"
    r"|unreachable|mismatch|missing|crash|violation|illegal|unhandled|wedged|\brefus|\breject|exceed|\bserious\b|retrain"
    r"|surprise removal|\bbad (?:page|gpu|state|register|status)|nobody cared|detected!|disabling psp|catastroph"
    r"|denied|is full\b|malfunction|doubtful|nv_err_|vt-d detected|blacklist|replace th|double.bit|uncontained|errevent"
)
"""Words by which a line without a level is an error."""
_LETTERS = re.compile(r"[a-z]{2,}")
_STEMS = frozenset({
    "abor", "asse", "bad", "blac", "brok", "bug", "can", "cann", "cata", "corr", "coul", "cras", "dead", "degr",
    "deni", "dete", "died", "disa", "doub", "down", "err", "erre", "erro", "exce", "expi", "fail", "fata", "faul",
    "full", "givi", "halt", "hang", "hung", "ille", "inac", "inva", "lock", "lost", "malf",
    "mism", "miss", "no", "nobo", "not", "over", "pani", "pois", "refu", "reje", "repl", "rese", "retr", "seri",
    "stuc", "surp", "time", "unab", "unco", "unex", "unha", "unre", "viol", "wedg",
})  # fmt: skip
"""Beginnings, of at most four letters, of which a word of every such line has one; sought first, since that is fast."""
_HANGS = re.compile(
    r"INFO: task (?P<task>.{1,64}?):\d+ (?:<[^>]*> )?(?:is )?blocked (?:on |for more than )"
    r"|BUG: soft lockup - CPU#\d+ stuck for \d+s! \[(?P<soft>[^\]]*?):\d+\]"
    r"|(?:hard LOCKUP on cpu|NMI watchdog: Watchdog detected hard)"
    r"|rcu: INFO: \w+ (?:self-)?detected (?:expedited )?stalls?"
    r"|BUG: unable to handle|general protection fault|\bOops: |kernel BUG at|Kernel panic - |BUG: kernel NULL pointer"
    r"|BUG: scheduling while atomic|invalid opcode: |Internal error: Oops"
)
_HANG_NEEDLES = ("INFO: ", "BUG", "LOCKUP", "Watchdog", "Oops", "protection fault", "panic", "invalid opcode")
_IN_DRIVER = re.compile(
    r"^\s*(?:\? |RIP: [0-9a-f]{4}:|pc : |lr : )?[\w.$]+\+0x[0-9a-f]+/0x[0-9a-f]+ "
    r"\[(?P<module>nvidia\w*|amdgpu|amdkfd|amdttm|vfio\w*|ccp|gdrdrv|nv_peer_mem)\b",
    re.MULTILINE,
)
"""A line of a stack that is in a driver."""
_ENDS = re.compile(r"</TASK>|---\[ end ")
_OF_DRIVER = re.compile(r"(?:^|[:/+-])(?:nv_|nvidia|UVM |amdgpu|kfd|vfio)|\[(?:nvidia\w*|amdgpu)\]", re.IGNORECASE)


def parse_driver_lines(entries: Sequence[KernelLogEntry], claimed: frozenset[int]) -> tuple[KernelFault, ...]:
    """
    Pick distress, hangs and unknown errors of drivers out of the kernel log.

    Args:
        entries: In log order.
        claimed: Places of entries, by number, that a parser has recognised already.

    Returns:
        Faults of the table's kinds ("driver", "init", "link", "machine"), of kind "lockup" where a driver's code hangs
        or breaks, and of kind "unknown", whose code is the speaker's family. Shape (n,).
    """
    faults = []
    for place, entry in enumerate(entries):
        if place in claimed:
            continue
        fault = _hang(entries, place) or _line(entry)
        if fault:
            faults.append(fault)
    return tuple(faults)


def speaker_of(message: str) -> str:
    """Give the family of drivers that writes a line; "" for one that no GPU host depends on."""
    match = _SPEAKER.match(message)
    return match.lastgroup or "" if match else ""


def device_of(message: str) -> str | None:
    """Give the first PCI address that a line names; None without one."""
    match = _PCI.search(message, 0, READ)
    return normalise_pci_address(match[0]) if match else None


def _line(entry: KernelLogEntry) -> KernelFault | None:
    speaker = speaker_of(entry.message)
    if not speaker and "; giving up" not in entry.message:
        return None
    message = " ".join(entry.message[:READ].split())
    loud = entry.priority is not None and entry.priority <= _ERROR
    low = message.lower()
    worded = not _STEMS.isdisjoint([word[:4] for word in _LETTERS.findall(low)]) and _WORDS.search(low) is not None
    if not (loud or worded):
        return None
    for kind, code, pattern in _distress(speaker):
        if pattern.search(message):
            return KernelFault(kind=kind, entry=entry, device=device_of(message), code=code)
    without_level = entry.priority is None or (speaker == "nvidia" and entry.priority == _WARNING)
    if not speaker or not (loud or (worded and without_level)) or _harmless().match(message):
        return None
    return KernelFault(kind="unknown", entry=entry, device=device_of(message), code=speaker)


def _hang(entries: Sequence[KernelLogEntry], place: int) -> KernelFault | None:
    """Read a report of a task or processor that hangs, or of a fault of the kernel, if a driver's code is in it."""
    entry = entries[place]
    if not any(needle in entry.message for needle in _HANG_NEEDLES):
        return None
    match = _HANGS.search(entry.message[:READ])
    if not match:
        return None
    task = match["task"] or match["soft"] or ""
    if _OF_DRIVER.search(task) or _IN_DRIVER.search(entry.message[:READ]):
        return KernelFault(kind="lockup", entry=entry, code=task or "in a driver")
    for later in entries[place + 1 : place + _STACK]:
        text = later.message[:READ]
        if _HANGS.search(text) and "Oops" not in text and "opcode" not in text:
            return None
        found = _IN_DRIVER.search(text)
        if found:
            return KernelFault(kind="lockup", entry=entry, code=found["module"])
        if _ENDS.search(text):
            return None
    return None


@cache
def _table() -> dict[str, list[dict[str, object]]]:
    return tomllib.loads(resources.files(__package__).joinpath("known_lines.toml").read_text(encoding="utf-8"))


@cache
def _distress(speaker: str) -> tuple[tuple[str, str, re.Pattern[str]], ...]:
    """Give (kind, code, expression) of the table's rows for a family of speakers."""
    return tuple(
        (
            str(row["kind"]),
            str(row["code"]),
            re.compile(str(row["pattern"]).replace("\u2026", ".{0,80}?"), re.IGNORECASE),
        )
        for row in _table()["distress"]
        if {speaker, "any"} & set(row["by"])  # type: ignore[call-overload]
    )


@cache
def _harmless() -> re.Pattern[str]:
    lines = [str(line) for row in _table()["harmless"] for line in row["lines"]]  # type: ignore[attr-defined]
    return re.compile("|".join(f"(?:{_sentence(line)})" for line in lines), re.IGNORECASE)


def _sentence(line: str) -> str:
    """Make an expression of a sentence in which * stands for any words; each piece is sought once."""
    pieces = [re.escape(piece) for piece in re.split(r"(?<!\\)\*", line)]
    pieces = [piece.replace(r"\\\*", r"\*") for piece in pieces]
    middle = "".join(f"(?>.*?{piece})" for piece in pieces[1:-1])
    if len(pieces) == 1:
        return f"{pieces[0]}$"
    return f"{pieces[0]}{middle}.*{pieces[-1]}$"
