"""The GPUs themselves: lost, not started, without a fitting library, without a device node."""

from __future__ import annotations

import re

from pytest_gpuinfra.diagnosis.finding import Confidence, Finding, Step, some
from pytest_gpuinfra.diagnosis.observations import Observations, Unknown, known, reasons
from pytest_gpuinfra.masking import first_of
from pytest_gpuinfra.pci_address import short_address
from pytest_gpuinfra.subjects.kernel_log.xid import Xid

_OFF_BUS = 79
_LOST = re.compile(r"GPU is lost|fallen off the bus|Unable to determine the device handle", re.IGNORECASE)
_MISMATCH = re.compile(r"Driver/library version mismatch", re.IGNORECASE)
_YOUNG_S = 3600.0


def gpu_lost(seen: Observations) -> Finding | None:
    """Find GPUs that went away, or that never came."""
    gpus = known(seen.gpus) or ()
    off = [
        fault
        for fault in known(seen.faults) or ()
        if fault.kind == "off-bus" or (isinstance(fault, Xid) and fault.number == _OFF_BUS)
    ]
    absent = [gpu.address for gpu in gpus if known(gpu.present) is False]
    hidden = [
        gpu.address
        for gpu in gpus
        if known(gpu.in_driver) is False and known(gpu.driver) == "nvidia" and gpu.address not in absent
    ]
    started = {
        fault.device
        for fault in known(seen.faults) or ()
        if (fault.kind == "init" and fault.code != "none") or (isinstance(fault, Xid) and fault.status is not None)
    }
    hidden = [address for address in hidden if address not in started]
    said = [seen.smi_error] if _LOST.search(seen.smi_error) else []
    if not (off or absent or hidden or said):
        return None
    devices = sorted({*absent, *hidden, *(fault.device for fault in off if fault.device)})
    who = ", ".join(short_address(address) for address in devices) or "a GPU"
    sure = bool(off) and bool(absent or hidden or said)
    confidence: Confidence = "certain" if sure else "likely" if off or absent or said else "possible"
    evidence = some([first_of(fault.message, 200) for fault in off])
    evidence += [f"{short_address(address)} is not on the PCI bus" for address in absent]
    evidence += [f"{short_address(address)} is bound to nvidia, and nvidia-smi does not show it" for address in hidden]
    evidence += [f"nvidia-smi: {first_of(line, 160)}" for line in said]
    return Finding(
        key="gpu-lost",
        title=f"GPU {who} is lost" if off or said else f"GPU {who} is not there",
        rung="topology" if off or absent else "binding",
        confidence=confidence,
        evidence=tuple(evidence),
        unseen=reasons(kernel_log=seen.faults) + ((f"kernel log: {seen.log_gap}",) if seen.log_gap and not off else ()),
        steps=(
            Step(
                "take the host out of traffic and power it off and on (a warm reboot often leaves the card away)",
                "the host for the minutes of a cold start and of loading the model",
            ),
            Step(
                "if it goes again: power cables, riser, seating, heat; look for AER errors of its port before the loss",
                "a visit to the machine",
            ),
        ),
    )


def not_initialised(seen: Observations) -> Finding | None:
    """Find GPUs that the driver could not start, for another reason than the FSP under identity."""
    faults = [fault for fault in known(seen.faults) or () if fault.kind == "init" and fault.code != "fsp"]
    named = any(isinstance(fault, Xid) and fault.status is not None for fault in known(seen.faults) or ())
    if not faults or named:
        return None
    devices = sorted({fault.device for fault in faults if fault.device})
    who = ", ".join(short_address(address) for address in devices) or "a GPU"
    absent = [gpu.address for gpu in known(seen.gpus) or () if gpu.address in devices and known(gpu.in_driver) is False]
    return Finding(
        key="gpu-not-started",
        title=f"the driver could not start {who}",
        rung="binding",
        confidence="certain" if absent else "likely",
        evidence=tuple(
            some([first_of(fault.message, 200) for fault in faults])
            + [f"nvidia-smi does not show {short_address(address)}" for address in absent]
        ),
        unseen=reasons(GPUs_in_nvidia_smi=Unknown(seen.smi_error) if seen.smi_error else None),
        steps=(
            Step(
                "read the lines around these in the kernel's log: firmware, BAR, VBIOS and FSP have words of their own",
                "nothing",
            ),
            Step("reboot; if it comes back, power off and on", "the minutes of a reboot and of loading the model"),
        ),
    )


def driver_mismatch(seen: Observations) -> Finding | None:
    """Find libraries of another version than the loaded kernel module."""
    said = [seen.smi_error] if _MISMATCH.search(seen.smi_error) else []
    logged = [first_of(fault.message, 200) for fault in known(seen.faults) or () if fault.kind == "mismatch"]
    version = known(seen.driver_version)
    libraries = known(seen.container.libraries) if seen.container else None
    differs = version is not None and libraries is not None and version not in libraries
    if not (said or logged or differs):
        return None
    evidence = [f"nvidia-smi: {first_of(line, 160)}" for line in said]
    evidence += [f"loaded module {version}, libraries in the container {', '.join(libraries or ())}"] if differs else []
    evidence += some(logged, 2)
    inside = seen.container is not None and differs and not said
    return Finding(
        key="driver-mismatch",
        title="the NVIDIA libraries are of another version than the loaded driver: CUDA does not start",
        rung="binding",
        confidence="certain" if said or differs else "possible",
        evidence=tuple(evidence),
        unseen=reasons(loaded_module=seen.driver_version)
        + (reasons(libraries_in_the_container=seen.container.libraries) if seen.container else ()),
        steps=(
            Step(
                f"install the libraries of {version or 'the loaded driver'} in {seen.container.name}",
                "a restart of the service",
            )
            if inside and seen.container
            else Step(
                "reboot, so that the installed module is loaded", "the minutes of a reboot and of loading the model"
            ),
            Step(
                "or unload and load the module (rmmod nvidia_uvm nvidia_drm nvidia_modeset nvidia; modprobe nvidia)",
                "everything that uses a GPU must be stopped first",
            ),
        ),
    )


def nodes_missing(seen: Observations) -> Finding | None:
    """Find device nodes that the container lacks, or whose major is an older boot's."""
    if seen.container is None:
        return None
    missing = known(seen.container.missing_nodes) or ()
    stale = known(seen.container.stale_nodes) or ()
    if not (missing or stale):
        return None
    uptime = known(seen.uptime_s)
    started = known(seen.container.started_s)
    evidence = [f"missing in {seen.container.name}: {', '.join(missing)}"] if missing else []
    evidence += list(stale)
    fresh = uptime is not None and uptime < _YOUNG_S
    if uptime is not None:
        evidence.append(f"the host booted {_span(uptime)} ago")
    if started is not None:
        evidence.append(f"the container started {_span(started)} after it")
    title = (
        "device nodes are missing in the container" if missing else "device nodes in the container have an old major"
    )
    harmless = all("nvidia-uvm-tools" in word for word in (*missing, *stale))
    harm = ": profilers do not work there" if harmless else ": CUDA does not start there, though nvidia-smi may"
    return Finding(
        key="device-nodes",
        title=f"{title}{' since the reboot' if fresh else ''}{harm}",
        rung="binding",
        confidence="certain",
        evidence=tuple(evidence),
        unseen=reasons(uptime=seen.uptime_s),
        steps=(
            Step("on the host: nvidia-modprobe -u -c=0; then restart the container", "a restart of the service"),
            Step(
                "for the next boot: a unit that does it before containers start, and nodes passed by Proxmox's devN "
                "entries (or the runtime's own), which follow the majors",
                "one reboot to prove it",
            ),
        ),
    )


def _span(seconds: float) -> str:
    return (
        f"{seconds:.0f} s"
        if seconds < 600
        else f"{seconds / 60:.0f} min"
        if seconds < 7200
        else f"{seconds / 3600:.0f} h"
    )
