"""PCI functions: identity, binding, link, BARs, bridges, access control; and whose memory an address is."""

from __future__ import annotations

import pytest

from pytest_gpuinfra.capture.reading import Reading
from pytest_gpuinfra.errors import FactUnavailable, ParseError
from pytest_gpuinfra.pci_address import normalise_pci_address
from pytest_gpuinfra.subjects.kernel_log.address import decode_address
from pytest_gpuinfra.subjects.pci.config_space import AcsControl, parse_config_space
from pytest_gpuinfra.subjects.pci.functions import PciFunction, parse_pci_functions

ENOENT = "ENOENT: No such file or directory"
EMPTY = "0x0000000000000000 0x0000000000000000 0x0000000000000000"
H200_RESOURCE = "\n".join(
    [
        "0x0000104002000000 0x0000104002ffffff 0x000000000014220c",
        EMPTY,
        "0x0000100000000000 0x0000103fffffffff 0x000000000014220c",
        EMPTY,
        "0x0000104000000000 0x0000104001ffffff 0x000000000014220c",
        EMPTY,
        EMPTY,
    ]
)


def gpu(address: str = "0000:41:00.0", **changes: str | None) -> PciFunction:
    texts: dict[str, str | None] = {
        ".": f"../../../devices/pci0000:40/0000:40:01.1/{address}",
        "vendor": "0x10de\n",
        "device": "0x2335\n",
        "class": "0x030200\n",
        "driver": "../../../../bus/pci/drivers/nvidia",
        "driver_override": "(null)\n",
        "iommu_group": "../../../../kernel/iommu_groups/29",
        "numa_node": "0\n",
        "current_link_speed": "2.5 GT/s PCIe\n",
        "current_link_width": "16\n",
        "max_link_speed": "32.0 GT/s PCIe\n",
        "max_link_width": "16\n",
        "resource": H200_RESOURCE,
    }
    texts |= changes
    node = {name: Reading(name, text, None if text is not None else ENOENT) for name, text in texts.items()}
    return parse_pci_functions({address: node}).functions[0]


def config(*capabilities: tuple[int, bytes], size: int = 4096) -> str:
    content = bytearray(size)
    for index, (identity, body) in enumerate(capabilities):
        offset = 0x100 + index * 0x40
        following = offset + 0x40 if index + 1 < len(capabilities) else 0
        content[offset : offset + 4] = (identity | 1 << 16 | following << 20).to_bytes(4, "little")
        content[offset + 4 : offset + 4 + len(body)] = body
    return bytes(content).hex()


def test_a_bound_gpu_tells_what_it_is() -> None:
    function = gpu()

    assert (function.vendor_id, function.device_id, function.class_code) == (0x10DE, 0x2335, 0x030200)
    assert (function.is_gpu, function.driver, function.driver_override) == (True, "nvidia", None)
    assert (function.iommu_group, function.numa_node, function.upstream) == (29, 0, ("0000:40:01.1",))


def test_idle_speed_and_full_width_are_told_apart() -> None:
    function = gpu()

    assert (function.link_speed_gt_s, function.max_link_speed_gt_s) == (2.5, 32.0)
    assert (function.link_width, function.max_link_width) == (16, 16)


def test_what_is_absent_is_none() -> None:
    function = gpu(
        driver=None, iommu_group=None, numa_node="-1\n", current_link_speed="Unknown\n", max_link_width="0\n"
    )

    assert (function.driver, function.iommu_group, function.numa_node) == (None, None, None)
    assert (function.link_speed_gt_s, function.max_link_width) == (None, None)


def test_what_was_not_asked_for_is_unavailable() -> None:
    with pytest.raises(FactUnavailable, match="not asked for"):
        _ = gpu().config


@pytest.mark.parametrize(
    ("name", "text", "attribute"),
    [
        ("vendor", "NVIDIA", "vendor_id"),
        ("numa_node", "", "numa_node"),
        ("current_link_speed", "fast", "link_speed_gt_s"),
        ("current_link_width", "x16 lanes", "link_width"),
        ("resource", "0x0 0x0", "bars"),
        ("resource", "", "bars"),
        (".", "../../../devices/pci0000:40/0000:40:01.1", "upstream"),
        ("driver", "", "driver"),
    ],
)
def test_another_shape_is_refused(name: str, text: str, attribute: str) -> None:
    with pytest.raises(ParseError):
        getattr(gpu(**{name: text}), attribute)


@pytest.mark.parametrize(
    ("vendor", "kind", "expected"),
    [
        ("0x10de", "0x030000", True),
        ("0x10de", "0x040300", False),
        ("0x1002", "0x038000", True),
        ("0x1002", "0x120000", True),
        ("0x1a03", "0x030000", False),
    ],
)
def test_a_gpu_is_a_display_or_accelerator_of_a_gpu_vendor(vendor: str, kind: str, expected: bool) -> None:
    assert gpu(vendor=vendor, **{"class": kind}).is_gpu is expected


def test_bars_keep_their_numbers() -> None:
    bars = gpu().bars

    assert [(bar.index, bar.size_bytes) for bar in bars] == [(0, 1 << 24), (2, 1 << 38), (4, 1 << 25)]


def test_bridges_stand_root_first() -> None:
    path = "../../../devices/pci0000:00/0000:00:01.1/0000:01:00.0/0000:02:04.0/0000:41:00.0"

    assert gpu(**{".": path}).upstream == ("0000:00:01.1", "0000:01:00.0", "0000:02:04.0")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("01:00.0", "0000:01:00.0"),
        ("00000000:C1:00.0", "0000:c1:00.0"),
        ("PCI:0000:05:00", "0000:05:00.0"),
        ("10001:01:00.0", "10001:01:00.0"),
    ],
)
def test_an_address_has_one_spelling(text: str, expected: str) -> None:
    assert normalise_pci_address(text) == expected


@pytest.mark.parametrize("text", ["", "1:0.0", "gpu0", "0000:01:40.0", "0000:01:00.8"])
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not a PCI address"):
        normalise_pci_address(text)


def test_acs_control_is_read_from_the_control_register() -> None:
    space = parse_config_space(Reading("config", config((0x0001, b""), (0x000D, b"\x5f\x00\x1d\x00"))))

    assert space.acs == AcsControl(capability=0x5F, control=0x1D)
    assert space.acs.redirects_peers
    assert space.acs.enabled == (
        "source_validation",
        "request_redirect",
        "completion_redirect",
        "upstream_forwarding",
    )


def test_source_validation_alone_redirects_nothing() -> None:
    assert not AcsControl(capability=0x5F, control=0x01).redirects_peers


def test_without_the_capability_there_is_no_acs() -> None:
    assert parse_config_space(Reading("config", config((0x0001, b"")))).acs is None
    assert parse_config_space(Reading("config", config(size=256))).acs is None


def test_without_root_nothing_is_known_of_acs() -> None:
    with pytest.raises(FactUnavailable, match="root"):
        _ = parse_config_space(Reading("config", config(size=64))).acs


def test_a_circle_of_capabilities_ends() -> None:
    content = bytearray(4096)
    content[0x100:0x104] = (0x0001 | 0x100 << 20).to_bytes(4, "little")

    with pytest.raises(ParseError, match="broken chain"):
        _ = parse_config_space(Reading("config", bytes(content).hex())).acs


def test_a_function_off_the_bus_has_no_readable_capability() -> None:
    with pytest.raises(FactUnavailable, match="all ones"):
        _ = parse_config_space(Reading("config", "ff" * 4096)).acs


@pytest.mark.parametrize("text", ["zz", "", "00" * 63])
def test_a_config_space_of_another_shape_is_refused(text: str) -> None:
    with pytest.raises(ParseError):
        parse_config_space(Reading("config", text))


def test_functions_are_found_in_any_spelling() -> None:
    functions = parse_pci_functions({"0000:01:00.0": {}, "0000:00:01.0": {}})

    assert [function.address for function in functions] == ["0000:00:01.0", "0000:01:00.0"]
    assert functions["01:00.0"].address == "0000:01:00.0"
    assert "0000:01:00.0" in functions
    with pytest.raises(FactUnavailable):
        _ = functions["0000:99:00.0"]


def test_a_fault_address_is_decoded_to_its_owner() -> None:
    bridge = gpu("0000:40:01.1", **{"class": "0x060400", "resource": H200_RESOURCE})
    owner = decode_address(0x102400000000, [bridge, gpu()])

    assert owner is not None
    assert (owner.function, owner.bar_name) == ("0000:41:00.0", "BAR1")
    assert decode_address(0x80000040, [bridge, gpu()]) is None


def test_what_was_not_read_hides_no_owner() -> None:
    unread = parse_pci_functions({"0000:00:00.0": {"class": Reading("class", "0x060000")}}).functions[0]

    assert decode_address(0x102400000000, [unread, gpu()]) is not None
    with pytest.raises(FactUnavailable):
        decode_address(0x80000040, [unread, gpu()])
