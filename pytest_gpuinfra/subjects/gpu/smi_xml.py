"""
`nvidia-smi -q -x`: all that NVML reports, as XML.

Source: nvsmi_device_v9.dtd to v13.dtd (drivers 384 to 610); the DTD is named in the document and never fetched.
Elements come and go with driver and board; "N/A" stands where another board has a table.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from xml.etree import ElementTree

from pytest_gpuinfra.capture.reading import Reading
from pytest_gpuinfra.errors import FactUnavailable, ParseError
from pytest_gpuinfra.pci_address import normalise_pci_address
from pytest_gpuinfra.subjects.gpu.gpu_value import GpuValue
from pytest_gpuinfra.subjects.gpu.nvidia_smi import find_smi_failure, smi_text
from pytest_gpuinfra.subjects.gpu.table import GpuProcess, GpuRow, GpuTable, MigDevice
from pytest_gpuinfra.wire import integer, text_lines

_ROOT = "nvidia_smi_log"
_LOST = ("gpu is lost", "gpu requires reset", "gpu is inaccessible")
_LISTS = ("processes", "accounted_processes", "supported_clocks")
_DEEPEST = 12

# Field of --query-gpu: element of the XML, older places behind newer ones.
_FIELDS: dict[str, tuple[str, ...]] = {
    "name": ("product_name",),
    "uuid": ("uuid",),
    "serial": ("serial",),
    "vbios_version": ("vbios_version",),
    "gsp_firmware_version": ("gsp_firmware_version",),
    "clocks.max.graphics": ("max_clocks/graphics_clock",),
    "clocks.max.memory": ("max_clocks/mem_clock",),
    "clocks.applications.graphics": ("applications_clocks/graphics_clock",),
    "clocks.applications.memory": ("applications_clocks/mem_clock",),
    "pci.bus_id": ("pci/pci_bus_id",),
    "persistence_mode": ("persistence_mode",),
    "compute_mode": ("compute_mode",),
    "pstate": ("performance_state",),
    "mig.mode.current": ("mig_mode/current_mig",),
    "mig.mode.pending": ("mig_mode/pending_mig",),
    "memory.total": ("fb_memory_usage/total",),
    "memory.used": ("fb_memory_usage/used",),
    "memory.free": ("fb_memory_usage/free",),
    "bar1.total": ("bar1_memory_usage/total",),
    "utilization.gpu": ("utilization/gpu_util",),
    "utilization.memory": ("utilization/memory_util",),
    "temperature.gpu": ("temperature/gpu_temp",),
    "temperature.gpu.tlimit": ("temperature/gpu_temp_tlimit",),
    "temperature.memory": ("temperature/memory_temp",),
    "fan.speed": ("fan_speed",),
    "power.draw": (
        "gpu_power_readings/instant_power_draw",
        "gpu_power_readings/power_draw",
        "gpu_power_readings/average_power_draw",
        "power_readings/power_draw",
    ),
    "power.limit": (
        "gpu_power_readings/current_power_limit",
        "gpu_power_readings/power_limit",
        "power_readings/power_limit",
    ),
    "pcie.link.gen.current": ("pci/pci_gpu_link_info/pcie_gen/current_link_gen",),
    "pcie.link.gen.max": ("pci/pci_gpu_link_info/pcie_gen/max_link_gen",),
    "pcie.link.width.current": ("pci/pci_gpu_link_info/link_widths/current_link_width",),
    "pcie.link.width.max": ("pci/pci_gpu_link_info/link_widths/max_link_width",),
    "pcie.replay_counter": ("pci/replay_counter",),
    "ecc.mode.current": ("ecc_mode/current_ecc",),
    "ecc.errors.uncorrected.volatile.dram": ("ecc_errors/volatile/dram_uncorrectable",),
    "ecc.errors.uncorrected.volatile.sram": ("ecc_errors/volatile/sram_uncorrectable_secded",),
    "ecc.errors.uncorrected.volatile.total": ("ecc_errors/volatile/double_bit/total",),
    "retired_pages.pending": ("retired_pages/pending_retirement",),
    "remapped_rows.pending": ("remapped_rows/remapped_row_pending",),
    "remapped_rows.failure": ("remapped_rows/remapped_row_failure",),
    "remapped_rows": ("remapped_rows",),
    "gpu_recovery_action": ("gpu_recovery_action",),
    "fabric.state": ("fabric/state",),
    "fabric.status": ("fabric/status",),
}  # fmt: skip


def parse_gpu_xml(reading: Reading) -> GpuTable:
    """
    Read the XML that nvidia-smi prints. What it says before, behind or beside a whole document hides none of it.

    Raises:
        FactUnavailable: nvidia-smi printed a message in place of data, or no GPU.
        ParseError: The text is no XML of nvidia-smi's.
    """
    printed = reading.text or ""
    begin, end = printed.find(f"<{_ROOT}>"), printed.rfind(f"</{_ROOT}>")
    whole = 0 <= begin < end
    text = printed[begin : end + len(_ROOT) + 3] if whole else smi_text(reading)
    try:
        root = ElementTree.fromstring(text[max(text.find("<"), 0) :])
    except ElementTree.ParseError as error:
        line = text_lines(text)[min(error.position[0], len(text_lines(text))) - 1]
        raise ParseError(reading.source, error.position[0], line, f"no XML ({error})") from None
    if root.tag != _ROOT:
        raise ParseError(reading.source, 1, root.tag, "not nvidia-smi's document")
    rows = tuple(_row(gpu, reading.source) for gpu in root.findall("gpu"))
    if not rows:
        smi_text(reading)
        raise FactUnavailable(reading.source, "it lists no GPU", remedy="read the kernel log for NVRM")
    beside = printed[:begin] + printed[end + len(_ROOT) + 3 :] if whole else ""
    return GpuTable(
        rows,
        driver_version=_text(root, "driver_version"),
        cuda_version=_text(root, "cuda_version"),
        failure="" if any(_lost(row) for row in rows) else _failure(reading, beside, rows),
    )


def _failure(reading: Reading, beside: str, rows: Sequence[GpuRow]) -> str:
    """Give what went wrong beside the document: nvidia-smi's words, or its exit status; "" if a missing GPU did."""
    failure = find_smi_failure(beside) or find_smi_failure(reading.stderr)
    if failure is None:
        return "" if reading.exit_status in (None, 0) else f"exit status {reading.exit_status}"
    if failure.device is None:
        return failure.message
    shown = any(row.pci_address == normalise_pci_address(failure.device) for row in rows)
    return failure.message if shown else ""


def _lost(row: GpuRow) -> bool:
    return any(value.bare.lower() in _LOST for value in row.leaves.values())


def _row(gpu: ElementTree.Element, source: str) -> GpuRow:
    values: dict[str, GpuValue] = {}
    for name, paths in _FIELDS.items():
        found = [GpuValue(text) for path in paths if (text := _text(gpu, path)) is not None]
        if found:
            values[name] = next((value for value in found if value.known), found[0])
    if "pci.bus_id" not in values or not values["pci.bus_id"].known:
        values["pci.bus_id"] = GpuValue(gpu.get("id", ""))
    leaves = {path: GpuValue(text) for path, text in _leaves(gpu, source)}
    return GpuRow(values, source, _mig_devices(gpu), _processes(gpu), leaves)


def _leaves(gpu: ElementTree.Element, source: str) -> Iterator[tuple[str, str]]:
    """Give path and text of everything below a GPU that has no elements of its own."""
    todo = [(gpu, "")]
    while todo:
        element, path = todo.pop()
        if path.count("/") > _DEEPEST:
            raise ParseError(source, 0, path, "nested deeper than any document of nvidia-smi's")
        seen = Counter(child.tag for child in element)
        place: Counter[str] = Counter()
        for child in element:
            place[child.tag] += 1
            name = f"{child.tag}[{place[child.tag]}]" if seen[child.tag] > 1 else child.tag
            if not path and child.tag in _LISTS:
                continue
            if len(child):
                todo.append((child, f"{path}{name}/"))
            else:
                yield f"{path}{name}", (child.text or "").strip()


def _mig_devices(gpu: ElementTree.Element) -> tuple[MigDevice, ...] | None:
    element = gpu.find("mig_devices")
    if element is None:
        return None
    return tuple(
        MigDevice(
            index=_integer(device, "index"),
            gpu_instance_id=_integer(device, "gpu_instance_id"),
            memory_total_mib=GpuValue(_text(device, "fb_memory_usage/total") or "").number,
        )
        for device in element.findall("mig_device")
    )


def _processes(gpu: ElementTree.Element) -> tuple[GpuProcess, ...] | None:
    element = gpu.find("processes")
    if element is None or GpuValue((element.text or "").strip()).bare.lower() in ("n/a", "not supported"):
        return None
    return tuple(
        GpuProcess(
            pid=_integer(process, "pid"),
            name=_text(process, "process_name") or "",
            kind=_text(process, "type") or "",
            used_mib=GpuValue(_text(process, "used_memory") or "").number,
        )
        for process in element.findall("process_info")
    )


def _text(element: ElementTree.Element, path: str) -> str | None:
    found = element.find(path)
    if found is None or (len(found) and not (found.text or "").strip()):
        return None
    return (found.text or "").strip()


def _integer(element: ElementTree.Element, path: str) -> int:
    text = _text(element, path) or ""
    number = integer(text)
    if number is None:
        raise ParseError("nvidia-smi -q -x", 0, f"{path}: {text}", "not a number")
    return number
