"""IOMMU groups."""

from __future__ import annotations

import pytest

from pytest_gpuinfra.capture.reading import Node, Reading
from pytest_gpuinfra.errors import FactUnavailable, ParseError
from pytest_gpuinfra.subjects.pci.iommu import IommuGroup, parse_group_type, parse_iommu_groups

MISSING = Reading("/sys/kernel/iommu_groups/29/type", None, "ENOENT: No such file or directory")


def node(kind: str | None, devices: str = "0000:41:00.0\n0000:41:00.1\n") -> Node:
    path = "/sys/kernel/iommu_groups/29"
    read = MISSING if kind is None else Reading(f"{path}/type", kind)
    return {"type": read, "devices/": Reading(f"{path}/devices", devices)}


def group(kind: str | None) -> IommuGroup:
    return parse_iommu_groups({"29": node(kind)}).groups[0]


@pytest.mark.parametrize(
    ("word", "translated", "strict"), [("identity", False, None), ("DMA", True, True), ("DMA-FQ", True, False)]
)
def test_the_type_says_whether_dma_is_translated(word: str, translated: bool, strict: bool | None) -> None:
    found = group(word + "\n")

    assert (found.type, found.translated, found.strict, found.type_known) == (word, translated, strict, True)


@pytest.mark.parametrize("word", ["blocked", "unmanaged", "unknown", "hyperdrive"])
def test_a_type_that_does_not_decide_it_is_kept_and_not_judged(word: str) -> None:
    found = group(word)

    assert found.type == word
    assert found.type_known is (word != "hyperdrive")
    with pytest.raises(FactUnavailable):
        _ = found.translated


@pytest.mark.parametrize("text", ["auto\n", "", "DMA DMA"])
def test_what_the_kernel_never_shows_is_refused(text: str) -> None:
    with pytest.raises(ParseError):
        parse_group_type(Reading("type", text))


def test_a_missing_type_hurts_only_who_asks_for_it() -> None:
    found = group(None)

    assert found.members == ("0000:41:00.0", "0000:41:00.1")
    with pytest.raises(FactUnavailable, match=r"5\.11"):
        _ = found.type


def test_groups_are_sorted_by_number_and_found_by_member() -> None:
    groups = parse_iommu_groups({"101": node("DMA", "0000:c1:00.0"), "9": node("identity", "0000:01:00.0")})

    assert [found.number for found in groups] == [9, 101]
    assert groups.of("c1:00.0") == groups.groups[1]
    assert groups.of("0000:02:00.0") is None


def test_no_group_at_all_is_a_state_of_its_own() -> None:
    groups = parse_iommu_groups({})

    assert (groups.present, len(groups)) == (False, 0)


def test_platform_devices_are_members_too() -> None:
    groups = parse_iommu_groups({"3": node("DMA", "arm-smmu-test\n0000:01:00.0")})

    assert groups.groups[0].members == ("0000:01:00.0", "arm-smmu-test")


def test_a_directory_that_is_no_group_is_refused() -> None:
    with pytest.raises(ParseError):
        parse_iommu_groups({"x": node("DMA")})


def test_an_unreadable_listing_is_unavailable() -> None:
    broken = {"type": Reading("t", "DMA"), "devices/": Reading("d", None, "EIO: Input/output error")}

    with pytest.raises(FactUnavailable):
        parse_iommu_groups({"1": broken})
