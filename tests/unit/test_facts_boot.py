"""Boot id, uptime, kernel release, command line."""

from __future__ import annotations

import pytest

from pytest_gpuinfra.capture.reading import Reading
from pytest_gpuinfra.errors import FactUnavailable, ParseError
from pytest_gpuinfra.subjects.boot.boot import parse_boot_id, parse_kernel_release, parse_uptime_s
from pytest_gpuinfra.subjects.boot.command_line import KernelCommandLine, parse_kernel_command_line

UUID = "0f1e2d3c-4b5a-6978-8796-a5b4c3d2e1f0"


def line(text: str) -> KernelCommandLine:
    return parse_kernel_command_line(Reading("/proc/cmdline", text + "\n"))


@pytest.mark.parametrize("text", [UUID + "\n", UUID.upper(), UUID.replace("-", "")])
def test_boot_id_has_one_spelling(text: str) -> None:
    assert parse_boot_id(Reading("boot_id", text)) == UUID


def test_boot_id_of_another_shape_is_no_boot_id() -> None:
    with pytest.raises(ParseError):
        parse_boot_id(Reading("boot_id", "0f1e2d3c\n"))


def test_uptime_is_the_first_number() -> None:
    assert parse_uptime_s(Reading("/proc/uptime", "350735.47 234388.90\n")) == 350735.47


@pytest.mark.parametrize("text", ["", "12", "a b"])
def test_uptime_of_another_shape_is_refused(text: str) -> None:
    with pytest.raises(ParseError):
        parse_uptime_s(Reading("/proc/uptime", text))


def test_kernel_release_is_given_verbatim() -> None:
    assert parse_kernel_release(Reading("osrelease", "6.8.12-9-pve\n")) == "6.8.12-9-pve"


@pytest.mark.parametrize("parse", [parse_boot_id, parse_uptime_s, parse_kernel_release, parse_kernel_command_line])
def test_unread_source_is_unavailable(parse) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(FactUnavailable):
        parse(Reading("/proc/x", None, "EACCES: Permission denied"))


def test_repeated_parameters_are_kept_in_order() -> None:
    assert line("ro intel_iommu=on iommu=pt intel_iommu=igfx_off").values("intel_iommu") == ("on", "igfx_off")


def test_quotes_are_syntax() -> None:
    parsed = line('a="b c" "d=e f" g="h"i quiet')

    assert [str(parameter) for parameter in parsed.parameters] == ["a=b c", "d=e f", 'g=h"i', "quiet"]


def test_nothing_counts_after_two_dashes() -> None:
    parsed = line("ro quiet -- iommu=pt single")

    assert not parsed.has("iommu=pt")
    assert not parsed.passthrough_requested


def test_dash_and_underscore_are_alike_in_names() -> None:
    assert line("vfio_pci.ids=10de:2482").effective("vfio-pci.ids") == "10de:2482"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("iommu=pt", True),
        ("iommu.passthrough=1", True),
        ("iommu.passthrough=on", True),
        ("iommu.passthrough=Y iommu=nopt", False),
        ("iommu=nopt iommu=pt", True),
        ("iommu=pt iommu.passthrough=0", False),
        ("iommu=soft,pt", True),
        ("iommu=pt,force", True),
        ("intel_iommu=on", False),
        ("iommu.passthrough=maybe", False),
        ("iommu=pt -- iommu=nopt", True),
        ("xiommu=pt", False),
    ],
)
def test_the_last_alias_decides_passthrough(text: str, expected: bool) -> None:
    assert line(f"root=/dev/sda2 {text}").passthrough_requested is expected
    assert line(f"root=/dev/sda2 {text}").has("iommu=pt") is expected


def test_no_word_about_translation_is_neither_request() -> None:
    parsed = line("ro quiet")

    assert (parsed.passthrough_requested, parsed.translation_requested) == (False, False)


@pytest.mark.parametrize(
    ("text", "token", "expected"),
    [
        ("amd_iommu=on", "amd_iommu=on", True),
        ("amd_iommu=on,pgtbl_v2", "amd_iommu=pgtbl_v2", True),
        ("intel_iommu=on", "iommu=on", False),
        ("amd-iommu=on", "amd_iommu=on", True),
        ("nvidia.NVreg_X=0 nvidia.NVreg_X=1", "nvidia.NVreg_X=0", False),
        ("nvidia.NVreg_X=0 nvidia.NVreg_X=1", "nvidia.NVreg_X=1", True),
        ("intel_iommu=on intel_iommu=off", "intel_iommu=on", False),
        ("vfio-pci.ids=10de:2482,10de:228b", "vfio-pci.ids=10de:228b", True),
        ("vfio-pci.ids=10de:2482,10de:228b", "vfio-pci.ids=10de:228b,10de:2482", True),
        ("quiet splash", "quiet", True),
        ("quiet splash", "qui", False),
        ("root=UUID=ab-cd", "root=UUID=ab-cd", True),
        ("console=tty0 console=ttyS0,115200", "console=tty0", True),
    ],
)
def test_has_asks_for_what_is_in_effect(text: str, token: str, expected: bool) -> None:
    assert line(text).has(token) is expected


def test_words_that_the_vendor_driver_does_not_know_are_named() -> None:
    assert line("amd_iommu=on,fullflush intel_iommu=on iommu=pt").ignored == ("amd_iommu=on",)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("amd_iommu=off iommu=pt", ("amd_iommu=off",)),
        ("intel_iommu=off intel_iommu=on", ()),
        ("iommu=off", ("iommu=off",)),
    ],
)
def test_switches_that_turn_an_iommu_off_are_named(text: str, expected: tuple[str, ...]) -> None:
    assert line(text).iommu_switched_off == expected


def test_an_empty_command_line_is_no_command_line() -> None:
    with pytest.raises(ParseError):
        line("")
