"""Driver parameters and versions, confidential computing, units, containers, device nodes, guests."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_gpuinfra.capture.reading import Node, Reading
from pytest_gpuinfra.errors import FactUnavailable, ParseError
from pytest_gpuinfra.subjects.boot.confidential import parse_confidential
from pytest_gpuinfra.subjects.container.config import parse_container_config
from pytest_gpuinfra.subjects.gpu.driver import (
    parse_driver_parameters,
    parse_driver_version,
    same_parameter_value,
)
from pytest_gpuinfra.subjects.gpu.driver_library import parse_library_versions
from pytest_gpuinfra.subjects.kernel_log.iommu_boot import parse_iommu_boot
from pytest_gpuinfra.subjects.kernel_log.log import split_kernel_line
from pytest_gpuinfra.subjects.service.unit import parse_unit_properties
from pytest_gpuinfra.subjects.service.unit_file import parse_unit_file
from pytest_gpuinfra.subjects.service.unit_words import split_assignments, split_words

H200 = Path(__file__).parents[1] / "recorded" / "h200"
ENOENT = "ENOENT: No such file or directory"


def test_parameters_of_the_loaded_driver() -> None:
    text = (H200 / "proc-driver-nvidia-params.txt").read_text(encoding="utf-8")
    parameters = parse_driver_parameters(Reading("/proc/driver/nvidia/params", text))

    assert (parameters["DmaRemapPeerMmio"], parameters["NVreg_EnableGpuFirmware"]) == (1, 18)
    assert (parameters["RegistryDwords"], parameters.registry()) == ("", {})
    with pytest.raises(FactUnavailable):
        parameters["Registry"]


def test_registry_words_are_taken_apart() -> None:
    text = 'RegistryDwords: "RMForceStaticBar1=1;PeerMappingOverride=1"\nRegistryDwordsPerDevice: "x"\n'
    parameters = parse_driver_parameters(Reading("p", text))

    assert parameters.registry() == {"RMForceStaticBar1": "1", "PeerMappingOverride": "1"}
    with pytest.raises(ParseError):
        parameters.registry("RegistryDwordsPerDevice")


@pytest.mark.parametrize("text", ["", "cat: no such file", "A: maybe"])
def test_what_is_no_parameter_is_refused(text: str) -> None:
    with pytest.raises(ParseError):
        parse_driver_parameters(Reading("p", text))


@pytest.mark.parametrize(
    ("text", "version", "is_open"),
    [
        (
            "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build  (a@b)",
            "580.159.04",
            True,
        ),
        ("NVRM version: NVIDIA UNIX x86_64 Kernel Module  375.39  Tue Jan 31 20:47:00 PST 2017\nGCC", "375.39", False),
    ],
)
def test_version_of_the_loaded_driver(text: str, version: str, is_open: bool) -> None:
    found = parse_driver_version(Reading("v", text))

    assert (found.version, found.open) == (version, is_open)


@pytest.mark.parametrize("text", ["", "GCC version: 12", "NVRM version: none"])
def test_what_is_no_version_is_refused(text: str) -> None:
    with pytest.raises(ParseError):
        parse_driver_version(Reading("v", text))


@pytest.mark.parametrize(
    ("observed", "expected", "same"),
    [
        ("Y", True, True),
        ("1", True, True),
        ("N", "0", True),
        ("0x10", 16, True),
        ("1", "2", False),
        ("on", "off", False),
    ],
)
def test_parameter_values_have_several_spellings(observed: str, expected: object, same: bool) -> None:
    assert same_parameter_value(observed, expected) is same


def test_library_versions_come_from_whole_names() -> None:
    text = "/usr/lib/libnvidia-ml.so.1\n/usr/lib/libnvidia-ml.so.375.51\n/usr/lib/libcuda.so.375.51\n"

    assert parse_library_versions(Reading("ls", text)) == ("375.51",)
    with pytest.raises(FactUnavailable):
        parse_library_versions(Reading("ls", "/usr/lib/libnvidia-ml.so.1\n"))


def sev(**changes: str | None) -> Node:
    texts: dict[str, str | None] = {"sev": "Y", "sev_es": "Y", "sev_snp": "Y", "tdx": None, "dev_sev": '{"mode": 8576}'}
    texts |= changes
    return {name: Reading(name, text, None if text is not None else ENOENT) for name, text in texts.items()}


@pytest.mark.parametrize(
    ("node", "level"),
    [
        (sev(), "sev-snp"),
        (sev(sev_snp="N"), "sev-es"),
        (sev(sev_snp=None, sev_es="0"), "sev"),
        (sev(sev=None, sev_es=None, sev_snp=None), "none"),
        (sev(sev=None, sev_es=None, sev_snp=None, tdx="Y"), "tdx"),
    ],
)
def test_the_strongest_offer_counts(node: Node, level: str) -> None:
    assert parse_confidential(node).level == level


def test_an_unreadable_parameter_is_not_off() -> None:
    node = {**sev(), "sev_snp": Reading("sev_snp", None, "EACCES: Permission denied")}

    with pytest.raises(FactUnavailable):
        _ = parse_confidential(node).level
    with pytest.raises(ParseError):
        _ = parse_confidential(sev(sev_snp="maybe")).level


def test_the_kernels_own_words_are_kept() -> None:
    lines = (
        "AMD-Vi: SNP: IOMMU is configured in passthrough mode, SNP cannot be supported.",
        "SEV-SNP: RMP table physical range [0x1 - 0x2]",
        "kvm_amd: SEV-SNP enabled (ASIDs 1 - 99)",
        "NVRM: unrelated",
    )
    found = parse_confidential(sev(), [split_kernel_line(line) for line in lines])

    assert (found.says_off, found.says_on) == (lines[:1], lines[1:3])


def test_the_boot_messages_of_the_iommu() -> None:
    lines = (H200 / "dmesg-gpu-lines.txt").read_text(encoding="utf-8").splitlines()
    found = parse_iommu_boot([split_kernel_line(line) for line in lines])

    assert (found.default_domain, found.by_command_line, found.policy) == ("Translated", False, "lazy")
    assert parse_iommu_boot([split_kernel_line("AMD-Vi: Unknown option - 'on'")]).unknown_options == ("amd_iommu=on",)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("ONE='one' \"TWO='two two' too\" THREE=", ("ONE=one", "TWO='two two' too", "THREE=")),
        ("a\\x20b c\\ d \\u0041", ("a b", "c d", "A")),
        ("$'x y' \"\" z", ("x y", "", "z")),
        ("", ()),
    ],
)
def test_systemd_splits_words_in_its_own_way(text: str, words: tuple[str, ...]) -> None:
    assert split_words(text, "unit") == words


def test_an_open_quote_is_refused() -> None:
    with pytest.raises(ParseError):
        split_words("A='b", "unit")


def test_words_that_are_no_assignment_are_dropped() -> None:
    assert split_assignments(["A=--mini", "--type", "tor", "1B=x", "A=z"]) == ({"A": "z"}, ("--type", "tor", "1B=x"))


def test_commands_and_environment_of_a_running_unit() -> None:
    text = (
        "MainPID=48181\nEnvironment=A=1 B='x y'\nActiveState=active\n"
        "EnvironmentFiles=/etc/default/a (ignore_errors=yes)\nEnvironmentFiles=/etc/default/b (ignore_error=no)\n"
        'ExecStart={ path=/a/b ; argv[]=/a/b --tp 2 --name "x y" ; ignore_errors=no ; pid=1 ; code=(null) }\n'
    )
    unit = parse_unit_properties(Reading("systemctl show", text, exit_status=0))

    assert (unit.active, unit.main_pid) == (True, 48181)
    assert (unit.environment, unit.dropped) == ({"A": "1", "B": "x y"}, ())
    assert unit.commands == (("/a/b", "--tp", "2", "--name", "x y"),)
    assert [(file.path, file.optional) for file in unit.environment_files] == [
        ("/etc/default/a", True),
        ("/etc/default/b", False),
    ]


@pytest.mark.parametrize(
    "text",
    [
        "Failed to connect to bus: No such file or directory",
        "System has not been booted with systemd as init system (PID 1). Can't operate.",
    ],
)
def test_a_target_without_systemd_is_unavailable(text: str) -> None:
    for parse in (parse_unit_properties, parse_unit_file):
        with pytest.raises(FactUnavailable, match="process 1"):
            parse(Reading("systemctl", "", exit_status=1, stderr=text))


def test_a_drop_in_resets_what_it_says_and_no_more() -> None:
    text = (
        "# /etc/systemd/system/a.service\n[Service]\nExecStart=/bin/x \\\n   --a \\\n# inside\n   --b\n"
        "Environment=A=1 B=2\n; comment\n\n"
        "# /etc/systemd/system/a.service.d/o.conf\n[Service]\nExecStart=\nExecStart=-/bin/y 'c d'\nEnvironment=A=3\n"
    )
    unit = parse_unit_file(Reading("systemctl cat", text, exit_status=0))

    assert unit.files == ("/etc/systemd/system/a.service", "/etc/systemd/system/a.service.d/o.conf")
    assert (unit.commands, unit.environment) == ((("/bin/y", "c d"),), {"A": "3", "B": "2"})


@pytest.mark.parametrize("text", ["", "ExecStart=/bin/x\n", "[Service]\nnonsense\n"])
def test_what_is_no_unit_file_is_refused(text: str) -> None:
    with pytest.raises(ParseError):
        parse_unit_file(Reading("systemctl cat", text, exit_status=0))


@pytest.mark.parametrize("text", ["", "\n", "# nothing here\n; nor here\n"])
def test_drop_in_may_be_empty(text: str) -> None:
    """It hides another of its name; a unit file without a section is none."""
    assert parse_unit_file(Reading("/etc/x.d/y.conf", text), drop_in=True).settings == {}
    with pytest.raises(ParseError, match="no section"):
        parse_unit_file(Reading("/etc/x.service", text))


def test_drop_in_holds_settings_alone() -> None:
    """Other text is unreadable in a drop-in, too."""
    with pytest.raises(ParseError, match="neither a section"):
        parse_unit_file(Reading("/etc/x.d/y.conf", "Environment=A=1\n"), drop_in=True)


@pytest.mark.parametrize("sign", [":", " ="])
def test_devices_of_a_container(sign: str) -> None:
    text = (
        f"# comment\nlxc.cgroup2.devices.allow{sign} c 195:* rwm\nlxc.cgroup2.devices.allow{sign} c 511:0 rw\n"
        f"lxc.mount.entry{sign} /dev/nvidia0 dev/nvidia0 none bind,optional,create=file\n"
        f"dev0{sign} /dev/nvidiactl,gid=44,mode=0666\nmemory{sign} 512\n[snapshot]\ndev1{sign} /dev/old\n"
    )
    config = parse_container_config(Reading("129.conf", text))

    assert (config.mounted, config.own) == (("/dev/nvidia0",), ("/dev/nvidiactl",))
    assert [str(rule) for rule in config.rules] == ["195:*", "511:0"]
    assert config.last("dev1") is None


@pytest.mark.parametrize("text", ["", "nonsense here\n", "lxc.cgroup2.devices.allow: c x:* rwm\n"])
def test_what_is_no_configuration_is_refused(text: str) -> None:
    with pytest.raises(ParseError):
        parse_container_config(Reading("129.conf", text))
