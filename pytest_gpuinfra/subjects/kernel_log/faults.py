"""Faults in a host's kernel log: weighed by what the inventory says of them, each with the one check that judges it."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from pytest_gpuinfra.errors import FactUnavailable, GpuInfraError
from pytest_gpuinfra.inventory.inventory import KernelLogExpectation
from pytest_gpuinfra.masking import first_of
from pytest_gpuinfra.pci_address import short_address
from pytest_gpuinfra.subjects.kernel_log.address import decode_address
from pytest_gpuinfra.subjects.kernel_log.aer import parse_aer_errors
from pytest_gpuinfra.subjects.kernel_log.amdgpu import parse_amd_gpu_faults
from pytest_gpuinfra.subjects.kernel_log.driver_lines import parse_driver_lines, speaker_of
from pytest_gpuinfra.subjects.kernel_log.fault import KernelFault
from pytest_gpuinfra.subjects.kernel_log.gpu_init import parse_gpu_init_faults, parse_unplaced_memory
from pytest_gpuinfra.subjects.kernel_log.iommu_faults import parse_iommu_faults
from pytest_gpuinfra.subjects.kernel_log.line import KernelLogEntry
from pytest_gpuinfra.subjects.kernel_log.log import KernelLog
from pytest_gpuinfra.subjects.kernel_log.machine import OomKill, parse_machine_faults
from pytest_gpuinfra.subjects.kernel_log.severity import root_xid, weigh
from pytest_gpuinfra.subjects.kernel_log.xid import Xid, parse_sxids, parse_xids
from pytest_gpuinfra.subjects.pci.functions import PciFunctions

Owner = Literal["gpu", "device", "nameless", "memory", "host"]
"""Whose check judges a fault: a GPU's, another device's, that of what names no device here, memory's, the host's."""
_PARSERS = (
    parse_iommu_faults,
    parse_xids,
    parse_sxids,
    parse_gpu_init_faults,
    parse_unplaced_memory,
    parse_aer_errors,
    parse_amd_gpu_faults,
    parse_machine_faults,
)
_OF_GPUS = frozenset({"iommu", "xid", "sxid", "off-bus", "init", "mismatch", "ras", "driver", "lockup"})
_TOLD_BY = {"iommu": "iommu", "aer": "port", "link": "port", "bar": "bus"}
"""Family of the driver that tells of a kind of fault, though another driver's name may stand in front of the line."""
_MANAGED = re.compile(r"^(?:machine-|systemd-nspawn@|lxc\.(?:payload|monitor)\.)")
"""What systemd and LXC put in front of a container's name in the name of its control group."""
_SHOWN = 3
_NEAR = 40


def parse_kernel_faults(entries: Iterable[KernelLogEntry]) -> tuple[KernelFault, ...]:
    """
    Pick every fault that an inference host cares about out of the kernel log.

    Args:
        entries: Entries in log order: a KernelLog, or its entries after some record.

    Returns:
        Faults in log order; () if there are none, which says nothing unless the log was readable. Shape (n,).
    """
    entries = tuple(entries)
    place = {id(entry): index for index, entry in enumerate(entries)}
    faults = [fault for parse in _PARSERS for fault in parse(entries)]
    faults += parse_driver_lines(entries, frozenset(place[id(fault.entry)] for fault in faults))
    return tuple(sorted(faults, key=lambda fault: place[id(fault.entry)]))


@dataclass(frozen=True)
class KernelFaults:
    """
    What the kernel logged about GPUs, the IOMMU, PCIe and memory since boot.

    Attributes:
        log: The log.
        functions: PCI functions of the host, to tell whose address a fault is about.
        expect: What the inventory says of the log.
        gpus: PCI addresses of the GPUs that have checks of their own, expected or seen. Shape (n,).
        service: Words by which a control group is the service's, such as its unit's name; one that ends in "-" begins
            the name of any container's group, the service's among them. Shape (n,).
    """

    log: KernelLog
    functions: PciFunctions
    expect: KernelLogExpectation
    gpus: tuple[str, ...] = ()
    service: tuple[str, ...] = ()

    @cached_property
    def all(self) -> tuple[KernelFault, ...]:
        """Every fault and every unknown line, in log order, those included that do not count. Shape (n,)."""
        return parse_kernel_faults(self.log)

    @cached_property
    def counting(self) -> tuple[KernelFault, ...]:
        """The faults that count against the host: not of a harmless class, not allowed by the inventory. Shape (n,)."""
        overrides = {int(code): verdict for code, verdict in self.expect.xid_class.items()}
        return tuple(fault for fault in self._kept if weigh(fault, overrides).counts and self._concerns(fault))

    @cached_property
    def unknown(self) -> tuple[KernelFault, ...]:
        """
        Errors by drivers that nothing recognises and the inventory does not allow. Shape (n,).

        Those that stand close to a fault of the same driver that counts are words on that fault.
        """
        place = {id(entry): index for index, entry in enumerate(self.log)}
        counts = set(map(id, self.counting))
        told: dict[str, list[int]] = {}
        for fault in self.all:
            if id(fault) in counts or fault.kind == "mce":
                family = _TOLD_BY.get(fault.kind) or speaker_of(fault.entry.message)
                told.setdefault(family, []).append(place[id(fault.entry)])
        return tuple(
            fault
            for fault in self._kept
            if fault.kind == "unknown"
            and (fault.code != "bus" or self.owner(fault) == "gpu")
            and not _near(told.get(str(fault.code), ()), place[id(fault.entry)])
        )

    @cached_property
    def _kept(self) -> tuple[KernelFault, ...]:
        allowed = [re.compile(pattern) for pattern in self.expect.allow]
        return tuple(fault for fault in self.all if not any(pattern.search(fault.message) for pattern in allowed))

    @cached_property
    def _unreadable(self) -> tuple[KernelFault, ...]:
        return tuple(fault for fault in self._kept if fault.kind == "unreadable")

    @cached_property
    def _above(self) -> dict[str, str]:
        """The first GPU below each bridge that stands over one, by the bridge's address."""
        found: dict[str, str] = {}
        for address in self.gpus:
            try:
                bridges: Sequence[str] = self.functions[address].upstream
            except GpuInfraError:
                continue
            for bridge in bridges:
                found.setdefault(bridge, address)
        return found

    @cached_property
    def _cards(self) -> dict[str, str]:
        """The first GPU of each card."""
        return {_card(address): address for address in reversed(self.gpus)}

    @cached_property
    def _present(self) -> frozenset[str]:
        return frozenset(_card(function.address) for function in self.functions)

    def gpu_of(self, fault: KernelFault) -> str | None:
        """
        Give the GPU whose checks judge a fault; None if it is none's.

        Faults by any function of its card are its own, and those by a port or switch above it; of a switch above
        several GPUs, the first one's.
        """
        if fault.device is None or fault.kind in ("mce", "oom"):
            return None
        return self._cards.get(_card(fault.device)) or self._above.get(fault.device)

    def owner(self, fault: KernelFault) -> Owner:
        """Say which check judges a fault: there is one for each."""
        if fault.kind in ("mce", "oom"):
            return "memory"
        if self.gpu_of(fault):
            return "gpu"
        if fault.device is None:
            kind = fault.code if fault.kind == "unreadable" else fault.kind
            return "nameless" if kind in _OF_GPUS else "host"
        return "device" if _card(fault.device) in self._present else "nameless"

    def describe(self, kinds: Collection[str], gpu: str) -> str:
        """
        Put the faults of a GPU into words; "" if there are none.

        Args:
            kinds: As in KernelFault.kind.
            gpu: PCI address, one of `gpus`.

        Raises:
            FactUnavailable: There are none in what is left of the log, and its beginning or a piece is missing;
                or a line speaks of such a fault in a form that this version does not know.
        """
        unreadable = [f for f in self._unreadable if f.code in kinds and (f.device is None or self.gpu_of(f) == gpu)]
        return self._words([f for f in self.counting if f.kind in kinds and self.gpu_of(f) == gpu], unreadable)

    def describe_all(self, without: Collection[str] = ()) -> str:
        """
        Put into words the faults of all owners, but for some kinds; "" if there are none.

        Raises:
            FactUnavailable: As `describe`, and as `describe_unknown`.
        """
        return self._words([f for f in self.counting if f.kind not in without], ()) or self.describe_unknown()

    def describe_owned(self, owner: Owner) -> str:
        """
        Put into words the faults that the check of one owner judges; "" if there are none.

        Raises:
            FactUnavailable: As `describe`; or it cannot be told whether one is a fault of this host's GPUs or service.
        """
        faults = [fault for fault in self.counting if self.owner(fault) == owner]
        doubtful = [fault for fault in faults if self._doubtful(fault)]
        sure = [fault for fault in faults if not self._doubtful(fault)]
        if doubtful and not sure:
            raise FactUnavailable(
                self.log.source,
                f"nobody can tell whose it is: {self._one(doubtful[0])!r}",
                remedy="read the log around it; expect.kernel_log.allow takes a pattern for it",
            )
        return self._words(sure + doubtful, [fault for fault in self._unreadable if self.owner(fault) == owner])

    def describe_unknown(self) -> str:
        """
        Give "" if the log holds no error by a driver that nothing recognises.

        Raises:
            FactUnavailable: It holds some: each line, how often, and what to write in the inventory; or as `describe`.
        """
        kinds: dict[str, list[KernelFault]] = {}
        for fault in self.unknown:
            kinds.setdefault(re.sub(r"0x[0-9a-fA-F]+|\d+", "0", fault.message), []).append(fault)
        if not kinds:
            return self._words(())
        told = [
            f"{first_of(same[0].message, 200)!r}" + (f" ({len(same)} times)" if len(same) > 1 else "")
            for same in kinds.values()
        ]
        more = f"; and {len(told) - _SHOWN} other lines" if len(told) > _SHOWN else ""
        raise FactUnavailable(
            self.log.source,
            f"errors by drivers that are not known here: {'; '.join(told[:_SHOWN])}{more}",
            remedy="judge each by hand; what is harmless here goes into expect.kernel_log.allow, "
            f"such as allow = ['{_allowing(next(iter(kinds.values()))[0].message)}']",
        )

    def as_text(self, device: str | None) -> str:
        """Give the evidence: what was read, and the faults found in it, those that do not count marked."""
        first = self.log.entries[0]
        lines = [
            f"{len(self.log)} entries of {self.log.source}"
            + (f"; incomplete: {self.log.gap}" if self.log.gap else ", complete since boot"),
            f"first: {first_of(first.message, 100)}",
        ]
        shown = [f for f in self.all if device is None or f.device is None or self.gpu_of(f) == device]
        lines.append(
            f"{len(shown)} reports of faults" + (f" by {short_address(device)} or by no named device" if device else "")
        )
        marks = {id(fault): "  " for fault in self.counting} | {id(fault): "  (unknown) " for fault in self.unknown}
        lines += [marks.get(id(f), "  (does not count) ") + f.message for f in shown]
        return "\n".join(lines)

    def _concerns(self, fault: KernelFault) -> bool:
        """Whether a fault that would count concerns this host: a kill by a group's own limit, a region of no GPU."""
        if fault.kind == "bar":
            return fault.device is not None and (
                _card(fault.device) in self._cards or _is_gpu(self.functions, fault.device)
            )
        if isinstance(fault, OomKill) and fault.cgroup:
            return bool(self.service) and (fault.group is None or _of_service(fault.group, self.service))
        return True

    def _doubtful(self, fault: KernelFault) -> bool:
        """Whether nobody can tell whose a fault is: a refused access without a device, a kill in an unknown group."""
        if isinstance(fault, OomKill):
            named = [word for word in self.service if not word.endswith("-")]
            return fault.cgroup and (fault.group is None or not _of_service(fault.group, named))
        return fault.kind == "iommu" and fault.device is None

    def _words(self, faults: Sequence[KernelFault], unreadable: Sequence[KernelFault] = ()) -> str:
        if faults:
            total = sum(fault.count for fault in faults)
            shown = "; ".join(self._one(fault) for fault in faults[:_SHOWN])
            more = f"; and {len(faults) - _SHOWN} more reports" if len(faults) > _SHOWN else ""
            root = root_xid(faults)
            several = len({fault.code for fault in faults if isinstance(fault, Xid)}) > 1
            began = f"; it began with Xid {root.number}" if root and several else ""
            return f"{total}: {shown}{more}{began}"
        if unreadable:
            raise FactUnavailable(
                self.log.source,
                f"a line speaks of a fault in a form that is not known here: {first_of(unreadable[0].message, 160)!r}",
                remedy="judge it by hand; expect.kernel_log.allow takes a pattern for it; and report it",
            )
        if self.log.gap:
            raise FactUnavailable(
                self.log.source,
                f"no such fault in what is left of it, but {self.log.gap}",
                remedy="keep the journal (Storage=persistent) or enlarge the ring buffer (log_buf_len=), then reboot",
            )
        return ""

    def _one(self, fault: KernelFault) -> str:
        target = self._reached(fault)
        return f"{first_of(fault.message, 200)}{f' [{target}]' if target else ''}"

    def _reached(self, fault: KernelFault) -> str:
        """Say whose memory a refused access was for, or which GPU a port is above; "" if there is nothing to say."""
        above = None if fault.device is None else self._above.get(fault.device)
        if above and _card(fault.device) != _card(above):
            return f"{short_address(fault.device or '')} is above GPU {short_address(above)}"
        if fault.kind != "iommu" or fault.address is None:
            return ""
        try:
            owner = decode_address(fault.address, self.functions)
        except GpuInfraError:
            return ""
        if owner is None:
            return ""
        who = short_address(fault.device) if fault.device else "a device"
        return f"{who} tried to reach {owner.bar_name} of {short_address(owner.function)}"


def _card(address: str | None) -> str:
    return "" if address is None else address.rpartition(".")[0]


def _near(places: Sequence[int], place: int) -> bool:
    """Whether one of some places, in rising order, is close to a place."""
    index = bisect_left(places, place - _NEAR)
    return index < len(places) and places[index] <= place + _NEAR


def _is_gpu(functions: PciFunctions, address: str) -> bool:
    try:
        return functions[address].is_gpu
    except GpuInfraError:
        return False


def _of_service(group: str, words: Collection[str]) -> bool:
    """Whether a control group is the service's or within it: one of its words is a part of the path, or begins one."""
    for part in group.replace("\\x2d", "-").split("/"):
        name = _MANAGED.sub("", part)
        if any(name == word or name.startswith((f"{word}.", f"{word}@")) for word in words):
            return True
        if any(word.endswith("-") and part.startswith(word) for word in words):
            return True
    return False


def _allowing(message: str) -> str:
    """Give a pattern that allows a line with any numbers, as text for a literal string of TOML."""
    text = re.escape(first_of(message, 80).rstrip("….")).replace("\\ ", " ").replace("'", ".")
    return re.sub(r"(?:0x)?[0-9a-f]*\d[0-9a-f]*", r"\\w+", text)
