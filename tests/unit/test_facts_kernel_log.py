"""The kernel log: sources, prefixes, completeness."""

from __future__ import annotations

import json

import pytest

from pytest_gpuinfra.capture.reading import Reading
from pytest_gpuinfra.errors import FactUnavailable, ParseError
from pytest_gpuinfra.subjects.kernel_log.log import parse_kernel_log, split_kernel_line

DENIED = Reading("/dev/kmsg", None, "EPERM: Operation not permitted")
KMSG = (
    "5,0,0,-;Linux version 6.8.12-9-pve (build@proxmox) #1 SMP\n"
    "6,1,0,-;Command line: ro quiet\n"
    "4,2,5140900,-;nvidia 0000:01:00.0: hello\n"
    " SUBSYSTEM=pci\n"
    " DEVICE=+pci:0000:01:00.0\n"
    "6,3,5140901,-,caller=T1;two\\x0alines \\xc3\\xa9\n"
)


def journal(*records: dict[str, object]) -> Reading:
    return Reading("journalctl -k", "\n".join(json.dumps(record) for record in records) + "\n", exit_status=0)


@pytest.mark.parametrize(
    ("text", "time_s", "priority"),
    [
        ("[   57.392307] message", 57.392307, None),
        ("[   57.392307][  T123] message", 57.392307, None),
        ("[   57.392307 <    0.000001>] message", 57.392307, None),
        ("<4>[   57.392307] message", 57.392307, 4),
        ("kern  :err   : [   57.392307] message", 57.392307, 3),
        ("Sep 21 09:59:59 host1 kernel: [   57.392307] message", 57.392307, None),
        ("Sep 21 09:59:59 host1 kernel: message", None, None),
        ("Mar  7 17:40:36 kernel: message", None, None),
        ("2024-07-02 18:46:08.681559 kernel:[   21.766727] message", 21.766727, None),
        ("2024-07-02T18:46:08.681559+02:00 host1 kernel: message", None, None),
        ("2024-07-02T18:46:08,681559+02:00 message", None, None),
        ("Fri 2023-01-27 11:32:31 UTC host1 kernel: message", None, None),
        ("[Sun Feb 23 16:24:18 2025] message", None, None),
        ("[   57.392307] host1 kernel: message", 57.392307, None),
        ("1690000000.123456 host1 kernel: message", None, None),
        ("[  +0.000012] message", None, None),
        ("[Feb23 16:24] message", None, None),
        ("[...] message", None, None),
        ("kernel: message", None, None),
        ("message", None, None),
    ],
)
def test_any_prefix_comes_off(text: str, time_s: float | None, priority: int | None) -> None:
    entry = split_kernel_line(text)

    assert (entry.message, entry.time_s, entry.priority) == ("message", time_s, priority)


def test_a_colon_in_the_message_is_no_prefix() -> None:
    assert split_kernel_line("[1.0] NVRM: Xid (PCI:0000:05:00): 79, x").message == "NVRM: Xid (PCI:0000:05:00): 79, x"


def test_records_keep_number_time_and_priority() -> None:
    log = parse_kernel_log({"kmsg": Reading("/dev/kmsg", KMSG)})

    assert (log.complete, log.source, log.last_sequence, len(log)) == (True, "/dev/kmsg", 3, 4)
    assert (log.entries[2].sequence, log.entries[2].time_s, log.entries[2].priority) == (2, 5.1409, 4)
    assert log.entries[3].message == "two\nlines é"
    assert [entry.sequence for entry in log.after(1)] == [2, 3]


def test_fragments_of_a_line_are_joined() -> None:
    log = parse_kernel_log(
        {"kmsg": Reading("k", "4,7,1,c;AMD-Vi: Event logged [\n4,8,2,+;IO_PAGE_FAULT device=01:00.0]\n")}
    )

    assert [entry.message for entry in log] == ["AMD-Vi: Event logged [IO_PAGE_FAULT device=01:00.0]"]


def test_a_lost_beginning_is_a_gap() -> None:
    log = parse_kernel_log({"kmsg": Reading("/dev/kmsg", "6,339,5140900,-;late\n")})

    assert not log.complete
    assert "339" in log.gap


def test_a_hole_is_a_gap() -> None:
    log = parse_kernel_log({"kmsg": Reading("/dev/kmsg", "5,0,0,-;Linux version 6\n6,4,1,-;late\n")})

    assert log.gap == "records 1 to 3 are missing"


def test_the_journal_fills_what_the_ring_buffer_lost() -> None:
    older = journal(
        {"MESSAGE": "Linux version 6.8", "PRIORITY": "5", "_SOURCE_MONOTONIC_TIMESTAMP": "0", "_BOOT_ID": "b"},
        {"MESSAGE": "early fault", "PRIORITY": "4", "_SOURCE_MONOTONIC_TIMESTAMP": "1000000", "_BOOT_ID": "b"},
        {"MESSAGE": "late", "PRIORITY": "6", "_SOURCE_MONOTONIC_TIMESTAMP": "5140900", "_BOOT_ID": "b"},
    )
    log = parse_kernel_log({"kmsg": Reading("/dev/kmsg", "6,339,5140900,-;late\n"), "journal": older})

    assert [entry.message for entry in log] == ["Linux version 6.8", "early fault", "late"]
    assert (log.complete, log.last_sequence) == (True, 339)


def test_what_the_journal_was_too_slow_for_is_a_gap() -> None:
    """journald notes how many messages it has missed, with no time of the kernel's; nobody knows what they said."""
    older = journal(
        {"MESSAGE": "Linux version 6.1", "_SOURCE_MONOTONIC_TIMESTAMP": "0", "_BOOT_ID": "b"},
        {"MESSAGE": "Missed 62 kernel messages", "_BOOT_ID": "b"},
    )
    joined = parse_kernel_log({"kmsg": Reading("/dev/kmsg", "6,339,5140900,-;late\n"), "journal": older})
    alone = parse_kernel_log({"kmsg": DENIED, "journal": older})

    assert "missed messages" in joined.gap
    assert "missed messages" in alone.gap


def test_the_journal_alone_is_enough() -> None:
    log = parse_kernel_log({"kmsg": DENIED, "journal": journal({"MESSAGE": [72, 105], "_BOOT_ID": "b"})})

    assert [entry.message for entry in log] == ["Hi"]
    with pytest.raises(FactUnavailable):
        log.after(0)


def test_only_the_youngest_boot_of_a_journal_counts() -> None:
    log = parse_kernel_log(
        {"journal": journal({"MESSAGE": "old", "_BOOT_ID": "a"}, {"MESSAGE": "new", "_BOOT_ID": "b"})}
    )

    assert [entry.message for entry in log] == ["new"]


def test_a_message_that_the_journal_hides_is_a_gap() -> None:
    log = parse_kernel_log(
        {"journal": journal({"MESSAGE": "Linux version 6", "_BOOT_ID": "b"}, {"MESSAGE": None, "_BOOT_ID": "b"})}
    )

    assert not log.complete


@pytest.mark.parametrize(
    "text",
    [
        "dmesg: read kernel buffer failed: Operation not permitted\n",
        "dmesg: klogctl: Operation not permitted",
        "bash: line 1: dmesg: command not found",
        "sh: 1: journalctl: not found",
        "cat: /dev/kmsg: Operation not permitted",
        "sudo: a password is required",
        "No journal files were found.\n-- No entries --",
        "Hint: You are currently not seeing messages from other users and the system.\n"
        "      Users in groups 'adm', 'systemd-journal' can see all messages.\n"
        "      Pass -q to turn off this notice.\n"
        "No journal files were opened due to insufficient permissions.",
        "-- No entries --",
        "",
        "\n\n",
    ],
)
def test_a_complaint_is_no_clean_log(text: str) -> None:
    with pytest.raises(FactUnavailable):
        parse_kernel_log({"dmesg": Reading("dmesg", text)})


def test_an_exit_status_is_looked_at() -> None:
    with pytest.raises(FactUnavailable, match="status 1"):
        parse_kernel_log({"dmesg": Reading("dmesg", "", exit_status=1, stderr="dmesg: read kernel buffer failed")})


def test_nothing_readable_is_unavailable() -> None:
    with pytest.raises(FactUnavailable, match="gpu-sudo"):
        parse_kernel_log({"kmsg": DENIED, "journal": Reading("journalctl", "", exit_status=0), "dmesg": DENIED})
    with pytest.raises(FactUnavailable):
        parse_kernel_log({})


def test_lines_of_an_earlier_boot_do_not_count() -> None:
    text = "[    0.000000] Linux version 6.8\n[    9.0] old\n[    0.000000] Linux version 6.9\n[    3.0] new\n"
    log = parse_kernel_log({"dmesg": Reading("kern.log", text)})

    assert [entry.message for entry in log] == ["Linux version 6.9", "new"]
    assert log.complete


def test_microcode_may_stand_before_the_version() -> None:
    text = "[    0.000000] microcode: updated early\n[    0.000000] Linux version 6.9\n[    3.0] new\n"

    assert len(parse_kernel_log({"dmesg": Reading("dmesg", text)})) == 3


def test_an_indented_line_belongs_to_the_one_above() -> None:
    log = parse_kernel_log({"dmesg": Reading("dmesg", "[    1.0] one\n          two\n[    2.0] three\n")})

    assert [entry.message for entry in log] == ["one\ntwo", "three"]


@pytest.mark.parametrize("text", ["6,339\n", "garbage\n"])
def test_what_is_no_record_is_refused(text: str) -> None:
    with pytest.raises(ParseError):
        parse_kernel_log({"kmsg": Reading("/dev/kmsg", text)})


def test_what_is_no_json_is_refused() -> None:
    with pytest.raises(ParseError):
        parse_kernel_log({"journal": Reading("journalctl", '{"MESSAGE": "a"}\n{"MESS', exit_status=0)})
