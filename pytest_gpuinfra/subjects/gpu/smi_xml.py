"""
`nvidia-smi -q -x`: all that NVML reports, as XML.

Source: nvsmi_device_v9.dtd to v13.dtd (drivers 384 to 610); the DTD is named in the document and never fetched.
Elements come and go with driver and board; "N/A" stands where another board has a table.
"""

from __future__ import annotations

from xml.etree import ElementTree

from pytest_gpuinfra.capture.reading import Reading
from pytest_gpuinfra.errors import FactUnavailable, ParseError
from pytest_gpuinfra.subjects.gpu.gpu_value import GpuValue
from pytest_gpuinfra.subjects.gpu.nvidia_smi import smi_text
from pytest_gpuinfra.subjects.gpu.table import GpuProcess, GpuRow, GpuTable, MigDevice
from pytest_gpuinfra.wire import integer, text_lines

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
    Read the XML that nvidia-smi prints.

    Raises:
        FactUnavailable: nvidia-smi printed a message in place of data, or no GPU.
        ParseError: The text is no XML of nvidia-smi's.
    """
    text = smi_text(reading)
    begin = text.find("<")
    try:
        root = ElementTree.fromstring(text[begin:] if begin >= 0 else text)
    except ElementTree.ParseError as error:
        line = text_lines(text)[min(error.position[0], len(text_lines(text))) - 1]
        raise ParseError(reading.source, error.position[0], line, f"no XML ({error})") from None
    if root.tag != "nvidia_smi_log":
        raise ParseError(reading.source, 1, root.tag, "not nvidia-smi's document")
    rows = tuple(_row(gpu, reading.source) for gpu in root.findall("gpu"))
    if not rows:
        raise FactUnavailable(reading.source, "it lists no GPU", remedy="read the kernel log for NVRM")
    return GpuTable(rows, driver_version=_text(root, "driver_version"), cuda_version=_text(root, "cuda_version"))


def _row(gpu: ElementTree.Element, source: str) -> GpuRow:
    values: dict[str, GpuValue] = {}
    for name, paths in _FIELDS.items():
        found = [GpuValue(text) for path in paths if (text := _text(gpu, path)) is not None]
        if found:
            values[name] = next((value for value in found if value.known), found[0])
    values.setdefault("pci.bus_id", GpuValue(gpu.get("id", "")))
    for element in (gpu.find("clocks_event_reasons"), gpu.find("clocks_throttle_reasons")):
        for reason in element if element is not None else ():
            name = reason.tag.replace("clocks_throttle_reason", "clocks_event_reason")
            values[name] = GpuValue((reason.text or "").strip())
    return GpuRow(values, source, _mig_devices(gpu), _processes(gpu))


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
