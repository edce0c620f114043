"""GPUs by nvidia-smi: CSV, XML, its failures; topology; what the CUDA samples say of peers."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_gpuinfra.capture.reading import Reading
from pytest_gpuinfra.errors import FactUnavailable, ParseError
from pytest_gpuinfra.subjects.gpu.gpu_value import GpuValue
from pytest_gpuinfra.subjects.gpu.nvidia_smi import find_smi_failure, smi_text
from pytest_gpuinfra.subjects.gpu.smi_query import parse_gpu_query
from pytest_gpuinfra.subjects.gpu.smi_xml import parse_gpu_xml
from pytest_gpuinfra.subjects.gpu.topology import parse_topology

H200 = Path(__file__).parents[1] / "recorded" / "h200"


def recorded(name: str) -> Reading:
    return Reading(name, (H200 / name).read_text(encoding="utf-8"), exit_status=0)


@pytest.mark.parametrize(
    ("text", "absent", "error", "number"),
    [
        ("[N/A]", True, None, None),
        ("N/A", True, None, None),
        ("[Not Supported]", True, None, None),
        ("Requested functionality has been deprecated", True, None, None),
        ("[Unknown Error]", False, "Unknown Error", None),
        ("[GPU requires reset]", False, "GPU requires reset", None),
        ("[Brand New Trouble]", False, "Brand New Trouble", None),
        ("ERR!", False, "ERR!", None),
        ("None", False, None, None),
        ("0 %", False, None, 0.0),
        ("433.78 W", False, None, 433.78),
        ("-8 C", False, None, -8.0),
        ("16x", False, None, 16.0),
        ("16", False, None, 16.0),
        ("Enabled", False, None, None),
    ],
)
def test_no_value_an_error_and_zero_are_three_things(
    text: str, absent: bool, error: str | None, number: float | None
) -> None:
    value = GpuValue(text)

    assert (value.absent, value.error, value.number) == (absent, error, number)


def test_csv_of_two_h200() -> None:
    table = parse_gpu_query(recorded("nvidia-smi-query.csv"))
    row = table.rows[1]

    assert (len(table), table.driver_version) == (2, "580.159.04")
    assert (row.pci_address, row.number("memory.total"), row.mig_enabled) == ("0000:00:07.0", 143771.0, False)
    assert row.text("retired_pages.pending") is None


def test_xml_of_two_h200_says_the_same() -> None:
    table, csv = parse_gpu_xml(recorded("nvidia-smi-q.xml")), parse_gpu_query(recorded("nvidia-smi-query.csv"))

    assert (len(table), table.driver_version, table.cuda_version) == (2, "580.159.04", "13.0")
    for row, line in zip(table, csv, strict=True):
        for name in ("uuid", "name", "memory.total", "pcie.link.width.max", "mig.mode.current", "ecc.mode.current"):
            assert (row.number(name) or row.text(name)) == (line.number(name) or line.text(name)), name
        assert row.pci_address == line.pci_address
        assert (row.mig_devices, row.processes, row.errors) == ((), (), ())


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("Failed to initialize NVML: Driver/library version mismatch\nNVML library version: 570.86", "mismatch"),
        ("Failed to initialize NVML: Unknown Error", "unknown"),
        ("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.", "no-driver"),
        ("No devices were found", "no-device"),
        ("Unable to determine the device handle for GPU0000:41:00.0: GPU is lost.  Reboot", "lost"),
        ("Unable to determine the device handle for GPU0: 0000:01:00.0: Unknown Error", "handle"),
        ('Option "-p2p" is missing its value.', "arguments"),
        ('Field "gpu_colour" is not a valid field to query.', "arguments"),
        ("bash: line 1: nvidia-smi: command not found", "no-program"),
    ],
)
def test_a_message_in_place_of_data_is_no_data(text: str, kind: str) -> None:
    failure = find_smi_failure(text)

    assert failure is not None
    assert failure.kind == kind
    with pytest.raises(FactUnavailable):
        smi_text(Reading("nvidia-smi", text, exit_status=0))


def test_an_error_in_a_cell_is_no_failure_of_the_whole() -> None:
    table = parse_gpu_query(Reading("q", "index, fan.speed [%]\n0, [GPU is lost]\n"))

    assert table.rows[0].errors == ("fan.speed: GPU is lost",)
    with pytest.raises(FactUnavailable):
        table.rows[0].number("fan.speed")
    with pytest.raises(FactUnavailable, match="no field"):
        table.rows[0].number("power.draw")


def test_columns_are_given_where_there_is_no_header() -> None:
    table = parse_gpu_query(Reading("q", "0, NVIDIA H200\n"), ["index", "name"])

    assert table.rows[0].text("name") == "NVIDIA H200"


@pytest.mark.parametrize(
    "text", ["0, NVIDIA H200\n", "index, name\n0\n", "index, memory.used [MiB]\n0, lots\n", "index, name\n0, a, b\n"]
)
def test_a_row_that_does_not_fit_is_refused(text: str) -> None:
    with pytest.raises(ParseError):
        parse_gpu_query(Reading("q", text))


@pytest.mark.parametrize("text", ["index, name\n", "", "\n"])
def test_no_gpu_is_unavailable(text: str) -> None:
    with pytest.raises(FactUnavailable):
        parse_gpu_query(Reading("q", text))


@pytest.mark.parametrize(
    "text", ["<?xml version='1.0'?><nvidia_smi_log><gpu", "<other/>", "plain", "<nvidia_smi_log><gpu id='1'/>"]
)
def test_what_is_no_document_of_nvidia_smi_is_refused(text: str) -> None:
    with pytest.raises(ParseError):
        parse_gpu_xml(Reading("q", text))


def test_a_document_without_gpus_is_unavailable() -> None:
    with pytest.raises(FactUnavailable):
        parse_gpu_xml(Reading("q", "<nvidia_smi_log></nvidia_smi_log>"))


def test_topology_of_two_h200() -> None:
    (links,) = parse_topology(recorded("nvidia-smi-topo-m.txt"))
    (grants,) = parse_topology(recorded("nvidia-smi-topo-p2p-p.txt"))

    assert (links.kind, links.gpus, links.cells["GPU0", "GPU1"]) == ("link", ("GPU0", "GPU1"), "NV18")
    assert (grants.kind, grants.cells["GPU1", "GPU0"]) == ("p2p", "NS")


def test_an_empty_cell_shifts_nothing() -> None:
    text = "\tGPU0\tGPU1\tCPU Affinity\tNUMA Affinity\nGPU0\t X \tPIX\t\t1\nGPU1\tPIX\t X \t\t1\n"
    (matrix,) = parse_topology(Reading("topo", text))

    assert (matrix.kind, matrix.gpu_pairs) == ("link", {("GPU0", "GPU1"): "PIX", ("GPU1", "GPU0"): "PIX"})


def test_a_matrix_that_is_cut_off_is_unavailable() -> None:
    with pytest.raises(FactUnavailable, match="GPU1"):
        parse_topology(Reading("topo", " \tGPU0\tGPU1\t\n GPU0\tX\tOK\t\n"))


def test_an_unknown_word_is_kept() -> None:
    text = " \tGPU0\tGPU1\t\n GPU0\tX\tZZ\t\n GPU1\tZZ\tX\t\n"

    assert parse_topology(Reading("topo", text))[0].cells["GPU0", "GPU1"] == "ZZ"
