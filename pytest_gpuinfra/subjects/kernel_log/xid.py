"""
Xid reports of the NVIDIA driver, and SXid reports of NVSwitches, in the kernel log.

Source: NVIDIA open-gpu-kernel-modules, src/nvidia/src/kernel/diagnostics and nverror.h (drivers 515 to 610);
"NVRM: Xid (PCI:0000:01:00): CODE, pid=P, name=N, TEXT", without "PCI:" in old drivers, without the colon
after NVRM in the first open ones; "GPU-I:05" behind the address names a MIG instance.
NVLink 5 (144 to 150): "UNIT Fatal|Nonfatal XCn in Link NN (register values)".

SXid: src/common/nvswitch/kernel/inc/error_nvswitch.h there: "nvidia-nvswitchN: SXid (PCI:0000:c1:00.0): CODE,
Fatal|Non-fatal, TEXT"; lines with "Severity" or "Data" in that place give more of the report above. NVIDIA Fabric
Manager User Guide, appendix D, for the words.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from pytest_gpuinfra.pci_address import normalise_pci_address
from pytest_gpuinfra.subjects.kernel_log.driver_lines import device_of
from pytest_gpuinfra.subjects.kernel_log.fault import KernelFault
from pytest_gpuinfra.subjects.kernel_log.line import KernelLogEntry
from pytest_gpuinfra.wire import integer

_XID = re.compile(r"NVRM:?\s*(?:GPU\d+ )?Xid \((?P<where>[^)]*)\): (?P<code>\d{1,18})(?:,\s*(?P<rest>.*))?$")
_WHERE = re.compile(r"(?:PCI:)?(?P<pci>[0-9a-fA-F:.]+)(?:\s+GPU-I:(?P<mig>\w+))?")
_MENTIONED = re.compile(r"NVRM:?\s*(?:GPU\d+ )?Xid\b")
_PID = re.compile(r"pid='?(?P<pid>\d{1,18}|<unknown>|-\d+)'?(?:,\s*name=(?P<name>.*?))?(?:,\s+|$)")
_NVLINK = re.compile(
    r"(?P<unit>[A-Z][A-Z0-9_]+(?:\s+[A-Z]\w+)?)\s+(?P<severity>Fatal|Non-?fatal)\s+XC\d+\s+i\d+\s+"
    r"Link\s+(?P<link>-?\d+)(?:\s+\((?P<values>[^)]*)\))?",
    re.IGNORECASE,
)
_RECOVERY = re.compile(r"recovery action changed from (?:0x\w+ )?\((?P<old>[^)]*)\)\s+to (?:0x\w+ )?\((?P<new>[^)]*)\)")
_CAUSE = re.compile(r"\bcaused by previous Xid (?P<code>\d{1,18})\b")
_FSP = re.compile(r"Error status (?P<status>0x\w+) while polling for FSP boot complete(?P<values>(?:, 0x\w+)*)")
_LIMITED = re.compile(r"NVRM:?.*Rate limiting .* prints for GPU at (?:PCI:)?(?P<pci>[0-9a-fA-F:.]+)")
_RPC_TIMEOUT = 119


@dataclass(frozen=True, slots=True, kw_only=True)
class Xid(KernelFault):
    """
    One Xid line.

    Attributes:
        text: What follows the code, process and name taken off.
        pid: Process that the driver names; None if it names none. Often not the culprit.
        process: Its name; None if the driver names none.
        mig_instance: GPU instance under MIG; None without one.
        unit: NVLink 5's unit ("RLW_REMAP"); None elsewhere.
        severity: NVLink 5's word, verbatim ("Fatal", "Nonfatal"); None elsewhere.
        link: NVLink number, -1 for none in particular; None elsewhere.
        recovery_from: Xid 154: action that was asked for before ("None"); None elsewhere.
        recovery_to: Xid 154: action that is asked for now ("GPU Reset Required"); None elsewhere.
        status: Xid 143: status of the wait for the security processor ("0x65"); None elsewhere.
        cause: Xid that this one follows from, by the driver's own word ("caused by previous Xid 149"); None without.
        registers: Values that the line shows, verbatim. Shape (n,), in the line's order.
        rate_limited: Whether the driver says that it prints only some of these.
    """

    text: str
    pid: int | None = None
    process: str | None = None
    mig_instance: str | None = None
    unit: str | None = None
    severity: str | None = None
    link: int | None = None
    recovery_from: str | None = None
    recovery_to: str | None = None
    status: str | None = None
    cause: int | None = None
    registers: tuple[str, ...] = ()
    rate_limited: bool = False

    @property
    def number(self) -> int:
        """Xid code as a number."""
        return int(self.code or 0)


def parse_xids(entries: Sequence[KernelLogEntry]) -> tuple[KernelFault, ...]:
    """
    Pick the Xid reports out of the kernel log.

    Returns:
        One Xid for each line, in log order; a line that says Xid and is no report has kind "unreadable".
        Shape (n,).
    """
    limited = {
        _address(match["pci"])
        for entry in entries
        if (match := _LIMITED.search(" ".join(entry.message.split())))
    }  # fmt: skip
    faults: list[KernelFault] = []
    for entry in entries:
        fault = _read(entry)
        if isinstance(fault, Xid) and fault.code == _RPC_TIMEOUT and fault.device in limited:
            fault = replace(fault, rate_limited=True)
        if fault:
            faults.append(fault)
    return tuple(faults)


def _read(entry: KernelLogEntry) -> KernelFault | None:
    message = re.sub(r"\s+(?:NVRM:\s+)?", " ", entry.message) if "\n" in entry.message else entry.message
    match = _XID.search(message)
    where = _WHERE.fullmatch(match["where"]) if match else None
    device = _address(where["pci"]) if where else None
    if not match or not where or not device:
        return _unreadable(entry, "xid") if _MENTIONED.search(message) else None
    rest = (match["rest"] or "").strip()
    process = _PID.match(rest)
    text = rest[process.end() :] if process else rest
    nvlink, recovery, fsp = _NVLINK.match(text), _RECOVERY.search(text), _FSP.search(text)
    cause = _CAUSE.search(text)
    values = (nvlink and nvlink["values"]) or (fsp and fsp["values"]) or ""
    return Xid(
        kind="xid",
        entry=entry,
        device=device,
        code=int(match["code"]),
        text=text,
        pid=integer(process["pid"]) if process else None,
        process=process["name"] if process and process["name"] not in (None, "<unknown>") else None,
        mig_instance=where["mig"],
        unit=nvlink["unit"] if nvlink else None,
        severity=nvlink["severity"] if nvlink else None,
        link=int(nvlink["link"]) if nvlink else None,
        recovery_from=recovery["old"] if recovery else None,
        recovery_to=recovery["new"] if recovery else None,
        status=fsp["status"] if fsp else None,
        cause=int(cause["code"]) if cause else None,
        registers=tuple(re.findall(r"0x[0-9a-fA-F]+", values)),
    )


def _address(text: str) -> str | None:
    try:
        return normalise_pci_address(text)
    except ValueError:
        return None


_SXID = re.compile(
    r"(?<![\w-])(?P<switch>[\w-]*nvswitch\d*):? SXid \((?:PCI:)?(?P<pci>[0-9a-fA-F:.]+)\): "
    r"(?P<code>\d{1,18})(?:,\s*(?P<rest>.*))?$"
)
_MORE = re.compile(r"(?:Severity \d|Data \{)")
_LINK = re.compile(r"\bLink (-?\d+)\b")


@dataclass(frozen=True, slots=True, kw_only=True)
class SXid(KernelFault):
    """
    One report of an NVSwitch.

    Attributes:
        switch: The driver's name for the switch ("nvidia-nvswitch0").
        severity: The driver's word, verbatim ("Fatal", "Non-fatal"); None if the line has none.
        link: Link of the switch; None if the line names none.
        text: The rest of the line.
    """

    switch: str
    severity: str | None
    link: int | None
    text: str


def parse_sxids(entries: Sequence[KernelLogEntry]) -> tuple[KernelFault, ...]:
    """
    Pick the SXid reports out of the kernel log.

    Returns:
        One SXid for each report, in log order; a line that says SXid and is no report has kind "unreadable".
        Shape (n,).
    """
    return tuple(fault for entry in entries if "SXid" in entry.message and (fault := _read_sxid(entry)))


def _read_sxid(entry: KernelLogEntry) -> KernelFault | None:
    match = _SXID.search(" ".join(entry.message.split()))
    if not match:
        return _unreadable(entry, "sxid") if "nvswitch" in entry.message else None
    rest = match["rest"] or ""
    if _MORE.match(rest):
        return None
    word, _, text = rest.partition(",")
    severity = word.strip() if word.strip().lower().replace("-", "") in ("fatal", "nonfatal") else None
    link = _LINK.search(rest)
    try:
        device = normalise_pci_address(match["pci"])
    except ValueError:
        return _unreadable(entry, "sxid")
    return SXid(
        kind="sxid",
        entry=entry,
        device=device,
        code=int(match["code"]),
        switch=match["switch"],
        severity=severity,
        link=int(link[1]) if link else None,
        text=text.strip() if severity else rest,
    )


def _unreadable(entry: KernelLogEntry, family: str) -> KernelFault:
    return KernelFault(kind="unreadable", entry=entry, device=device_of(entry.message), code=family)
