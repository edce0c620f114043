"""The reference host's container and service: each check seen failing, and ERROR where its source is unreadable."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable
from typing import Any, TypeAlias

import pytest

from pytest_gpuinfra.fixtures.suites import suites_path
from pytest_gpuinfra.inventory.inventory import read_inventory
from pytest_gpuinfra.record.recording import RecordedHost, Recording, write_recording
from tests.plugin.conftest import REFERENCE, Judged, judge_recording
from tests.recorded.reference.compose import reference_host
from tests.recorded.reference.serving import (
    BY_SITE,
    BY_UNIT,
    CONFIG,
    NOW,
    STARTED_S,
    UNIT,
    UP_S,
    block,
    data,
    device,
    file,
    process,
    said,
    smi,
)

Answers: TypeAlias = dict[str, Any]
Change: TypeAlias = Callable[[Answers], None]
SUITES = ("test_container_state.py", "test_service_unit.py", "test_service_drift.py")
NOTHING = {"e": "EACCES: Permission denied"}
SERVED = "--tp 4 --mem-fraction-static 0.75 --speculative-algorithm NEXTN --port 30000"
RULE = "test_container_may_open_the_device_node[*]"
ADMITS = "test_engine_admits_no_fallback[]"
OF_THE_LOG = (ADMITS, "test_nccl_of_the_service_is_in_order[]", "test_drafts_in_the_services_log_are_accepted[]")
OF_SHOW = (
    "test_service_starts_at_boot[]",
    "test_service_was_not_restarted_by_systemd[]",
    "test_service_is_ordered[*]",
    "test_settings_of_the_unit_are_in_effect[]",
    "test_unit_file_verifies[]",
    "test_locked_memory_limit_is_high_enough[]",
    "test_open_file_limit_is_high_enough[]",
)
VARIABLE = "test_variable_is_in_effect_in_every_process"


def _set(*path: str, to: Any) -> Change:
    def change(answers: Answers) -> None:
        node = answers
        for key in path[:-1]:
            node = node[key]
        node[path[-1]] = to

    return change


def _without(*path: str) -> Change:
    def change(answers: Answers) -> None:
        node = answers
        for key in path[:-1]:
            node = node[key]
        del node[path[-1]]

    return change


def _shows(**values: str) -> Change:
    def change(answers: Answers) -> None:
        show = answers["service"][""]["show"]
        shown = dict(line.partition("=")[::2] for line in show["t"].splitlines()) | values
        show["t"] = "".join(f"{key}={value}\n" for key, value in shown.items())

    return change


def _all(*changes: Change) -> Change:
    def change(answers: Answers) -> None:
        for one in changes:
            one(answers)

    return change


def _logs(message: str, priority: str = "6") -> Change:
    def change(answers: Answers) -> None:
        line = json.dumps({"message": message, "priority": priority, "pid": "500"})
        answers["service"][""]["journal"]["t"] += "\n" + line

    return change


def _messages(change: Callable[[list[str]], list[str]]) -> Change:
    def changed(answers: Answers) -> None:
        lines = [json.loads(line)["message"] for line in answers["service"][""]["journal"]["t"].split("\n")]
        rows = [json.dumps({"message": line, "priority": "6", "pid": "412"}) for line in change(lines)]
        answers["service"][""]["journal"] = said("\n".join(rows))

    return changed


_log_begins_late = _messages(lambda lines: lines[1:])
_nccl_is_short = _messages(lambda lines: [line.partition(" : ")[0] for line in lines])


def _shows_not(*names: str) -> Change:
    def change(answers: Answers) -> None:
        show = answers["service"][""]["show"]
        rows = [row for row in show["t"].split("\n") if row.partition("=")[0] not in names]
        show["t"] = "\n".join(rows)

    return change


def _show_cut(answers: Answers) -> None:
    """Leave what stands before the end of SubState's line."""
    show = answers["service"][""]["show"]
    before, line, _ = show["t"].partition("SubState=running\n")
    show["t"] = before + line


def _starts(ago_s: float, every_s: float, *, runs: int) -> Change:
    times = [str(round((UP_S - ago_s - every_s * run) * 1e6)) for run in range(runs, -1, -1)]
    return _set("service", "", "starts", to=said("\n".join(times)))


def _state(entry: str, letter: str) -> Change:
    def change(answers: Answers) -> None:
        reading = answers["service"][entry]["stat"]
        reading["t"] = reading["t"].replace(") S ", f") {letter} ")

    return change


def _unit_text(old: str, new: str, changed_s: float = -86400.0) -> Change:
    def change(answers: Answers) -> None:
        text = answers["service"][f"file {UNIT}"]["text"]["t"]
        assert old in text
        answers["service"][f"file {UNIT}"] = file(text.replace(old, new), changed_s)

    return change


def _argv(old: str, new: str) -> Change:
    def change(answers: Answers) -> None:
        seen = json.loads(answers["service"]["process 412"]["argv"]["t"])
        seen["argv"] = [new if word == old else word for word in seen["argv"]]
        answers["service"]["process 412"]["argv"] = data(**seen)

    return change


def _rank(number: int, environ: bytes, opened: list[str] | None = None) -> Change:
    def change(answers: Answers) -> None:
        name = f"process {500 + number}"
        files = json.loads(answers["service"][name]["opened"]["t"]) if opened is None else opened
        answers["service"][name] = process(500 + number, 412, [f"sglang::scheduler_TP{number}"], environ, files)

    return change


def _ranks_share_nothing(answers: Answers) -> None:
    for number in range(4):
        answers["service"][f"process {500 + number}"]["opened"] = {"t": json.dumps([f"/dev/shm/nccl-own{number}"])}


DROP_IN = "/etc/systemd/system/sglang-qwen.service.d/override.conf"
ADDED = {
    "directory /etc/systemd/system/sglang-qwen.service.d": {"names": {"t": "override.conf"}},
    f"drop-in {DROP_IN}": file("[Service]\nEnvironment=NCCL_PROTO=Simple\n"),
}
LATE = STARTED_S + 60

WRONG: dict[str, tuple[Change, list[str]]] = {
    "container stopped to the host": (
        _set("container", "", "state", to=said("status: stopped\n")),
        ["test_container_runs[]"],
    ),
    "container does not start at boot": (
        _set("container", "", "config", to=said(CONFIG.replace("onboot: 1", "onboot: 0"))),
        ["test_container_starts_at_boot[]"],
    ),
    "container restarted": (
        _set("inside_boot", "", "init", "t", to="1 (systemd) S 0 " + "0 " * 17 + "900000 1\n"),
        ["test_container_was_started_with_its_host[]"],
    ),
    "uvm tools missing": (
        _without("inside_dev", "nvidia-uvm-tools"),
        ["test_container_has_the_device_node[/dev/nvidia-uvm-tools]"],
    ),
    "uvm of another major": (
        _set("inside_dev", "nvidia-uvm", to=device(511, 0)),
        ["test_device_node_has_its_drivers_major[/dev/nvidia-uvm]"],
    ),
    "rule by an old number": (
        _set("container", "", "config", to=said(CONFIG.replace("c 508:*", "c 509:*"))),
        [f"test_container_may_open_the_device_node[/dev/{name}]" for name in ("nvidia-uvm", "nvidia-uvm-tools")],
    ),
    "node of a GPU missing": (
        _without("inside_dev", "nvidia3"),
        ["test_container_has_the_node_of_its_gpu[71:00.0]"],
    ),
    "one GPU less inside": (
        _set("inside_driver", "", "smi", to=said(smi(buses=("01", "11", "61")))),
        ["test_container_sees_exactly_its_gpus[]"],
    ),
    "another order inside": (
        _set("inside_driver", "", "smi", to=said(smi(buses=("11", "01", "61", "71")))),
        ["test_container_sees_exactly_its_gpus[]", "test_gpus_have_the_same_order_on_both_sides[]"],
    ),
    "another driver inside": (
        _set("inside_driver", "", "smi", to=said(smi("575.57.08"))),
        ["test_driver_version_is_the_same_on_both_sides[]"],
    ),
    "libraries of another driver": (
        _set("inside_driver", "", "/usr/lib/x86_64-linux-gnu", to={"t": "libcuda.so.575.57.08"}),
        ["test_driver_libraries_fit_the_kernel_module[]"],
    ),
    "64 MiB of shared memory": (
        _set("inside_space", "", "/dev/shm", to=data(size=67108864, available=67108864)),
        ["test_shared_memory_is_large_enough[]"],
    ),
    "low limits": (
        _set(
            "service",
            "process 412",
            "limits",
            to={"t": "Limit  Soft\nMax locked memory  8388608  8388608  bytes\nMax open files  1024  1024  files\n"},
        ),
        ["test_locked_memory_limit_is_high_enough[]", "test_open_file_limit_is_high_enough[]"],
    ),
    "model not mounted": (
        _set("inside_boot", "", "mounts", to={"t": "rpool / zfs rw 0 0\nproc /proc proc rw 0 0\n"}),
        ["test_path_is_mounted[/shared]"],
    ),
    "dead mount": (
        _set("inside_mounted", "", "/shared", to={"t": json.dumps({"README": "ESTALE: Stale file handle"})}),
        ["test_files_of_the_path_are_readable[/shared]"],
    ),
    "disk full": (
        _set("inside_space", "", "/", to=data(size=68719476736, available=1048576)),
        ["test_disk_has_space_left[/]"],
    ),
    "failed unit inside": (
        _set("inside_failed_units", "", "list", to=said("shared.mount loaded failed failed /shared\n")),
        ["test_no_unit_has_failed[container]"],
    ),
    "failed unit on the host": (
        _set("host_failed_units", "", "list", to=said("\u25cf zfs-mount.service loaded failed failed Mount\n")),
        ["test_no_unit_has_failed[host]"],
    ),
    "activating": (
        _shows(ActiveState="activating", SubState="auto-restart", NRestarts="7"),
        ["test_service_is_active[]", "test_service_was_not_restarted_by_systemd[]"],
    ),
    "masked": (
        _shows(LoadState="masked", UnitFileState="masked"),
        ["test_service_is_active[]", "test_service_starts_at_boot[]"],
    ),
    "loaded no more": (_shows(LoadState="bad-setting"), ["test_service_is_active[]"]),
    "not enabled": (_shows(UnitFileState="disabled"), ["test_service_starts_at_boot[]"]),
    "wanted by another target": (
        _all(
            _shows(WantedBy="graphical.target"),
            _set("service", "", "pulled", to=said("default.target\n  multi-user.target\n    ssh.service\n")),
        ),
        ["test_service_is_pulled_in_at_boot[]"],
    ),
    "started every 8 s": (
        _starts(3, 8, runs=9),
        ["test_service_is_not_started_again_and_again[]"],
    ),
    "started every 5 min": (
        _starts(99, 301, runs=4),
        ["test_service_is_not_started_again_and_again[]"],
    ),
    "a rank is stopped": (_state("process 502", "T"), ["test_no_process_of_the_service_is_stopped[]"]),
    "a rank is held by a debugger": (_state("process 502", "t"), ["test_no_process_of_the_service_is_stopped[]"]),
    "the unit is frozen": (_shows(FreezerState="frozen"), ["test_no_process_of_the_service_is_stopped[]"]),
    "a rank is a zombie": (_state("process 503", "Z"), ["test_every_rank_runs[]"]),
    "nccl.conf sets what must not be": (
        _set("service", "nccl /etc/nccl.conf", "text", to={"t": "NCCL_P2P_LEVEL=SYS"}),
        [f"{VARIABLE}[NCCL_P2P_LEVEL]"],
    ),
    "nccl.conf changed": (
        _set("service", "nccl /root/.nccl.conf", to=file("NCCL_DEBUG=INFO", LATE)),
        ["test_running_process_is_newer_than_its_files[]"],
    ),
    "script replaced": (
        lambda answers: answers["service"].__setitem__(
            "program /opt/serve/run.sh", {"stat": data(mtime=NOW - 9e6, ctime=NOW - UP_S + LATE)}
        ),
        ["test_running_process_is_newer_than_its_files[]"],
    ),
    "Python upgraded": (
        _set("service", "process 412", "exe", to={"t": "/usr/bin/python3.12 (deleted)"}),
        ["test_running_process_is_newer_than_its_files[]"],
    ),
    "a word is dropped": (
        _unit_text("Environment=NCCL_PROTO=LL\n", "Environment=NCCL_PROTO=LL --fast\n"),
        ["test_settings_of_the_unit_are_in_effect[]", "test_unit_file_equals_the_users_copy[]"],
    ),
    "a quote is open": (
        _unit_text("Environment=NCCL_PROTO=LL\n", 'Environment=NCCL_PROTO=LL "A=b\n'),
        ["test_settings_of_the_unit_are_in_effect[]", "test_unit_file_equals_the_users_copy[]"],
    ),
    "two commands": (
        _unit_text("Environment=NCCL_PROTO=LL\n", "Environment=NCCL_PROTO=LL\nExecStart=/bin/true\n"),
        ["test_settings_of_the_unit_are_in_effect[]", "test_unit_file_equals_the_users_copy[]"],
    ),
    "not ordered": (
        _shows(After="sysinit.target"),
        ["test_service_is_ordered[after-network-online.target]"],
    ),
    "unknown key": (
        _set(
            "service", "", "verify", to=said("", 1, f"{UNIT}:9: Unknown key 'Restrt' in section [Service], ignoring.\n")
        ),
        ["test_unit_file_verifies[]"],
    ),
    "killed for memory": (
        _logs("sglang-qwen.service: A process of this unit has been killed by the OOM killer."),
        ["test_service_was_not_killed_for_memory[]"],
    ),
    "traceback": (_logs("Traceback (most recent call last):"), ["test_no_error_in_the_services_log[]"]),
    "scales missing": (
        _logs("WARNING 06-01 10:00:00 [kv_cache.py:107] Using uncalibrated q_scale 1.0 with fp8 attention."),
        [ADMITS],
    ),
    "another backend": (_logs("INFO Cannot use FlashAttention-2 backend for FP8 KV cache."), [ADMITS]),
    "a fallback that nobody listed": (
        _logs("(Worker_TP3 pid=9) WARNING [x.py:1] Kernels for sm_120 are missing, falling back to slow ones"),
        [ADMITS],
    ),
    "a harm that nobody listed": (
        _logs("WARNING weights were quantised twice; this can lead to lower quality answers"),
        [ADMITS],
    ),
    "NCCL over P2P": (
        _logs("node-a:500:500 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM"),
        ["test_nccl_of_the_service_is_in_order[]"],
    ),
    "NCCL warns": (
        _logs("node-a:500:500 [0] transport/shm.cc:590 (shmImport) NCCL WARN Cuda failure 217 'no peers'"),
        ["test_nccl_of_the_service_is_in_order[]", "test_no_error_in_the_services_log[]"],
    ),
    "no draft accepted": (
        _logs(
            "INFO 08-05 [metrics.py:100] SpecDecoding metrics: Mean acceptance length: 1.00, Accepted throughput: 0.00 "
            "tokens/s, Accepted: 0 tokens, Drafted: 495 tokens, Avg Draft acceptance rate: 0.0%"
        ),
        ["test_drafts_in_the_services_log_are_accepted[]"],
    ),
    "another engine": (
        lambda answers: [
            answers["service"].__setitem__(name, process(int(name.split()[1]), 412, ["vllm::x"], block(BY_UNIT), []))
            for name in list(answers["service"])
            if name.startswith("process 5")
        ]
        and answers["service"].__setitem__(
            "process 412",
            process(
                412,
                1,
                f"/usr/bin/python3 /usr/bin/vllm serve m {SERVED}".split(),
                block(BY_UNIT),
                [],
            ),
        ),
        ["test_engine_is_the_expected_one[]", "test_every_rank_runs[]"],
    ),
    "another Python": (
        lambda answers: answers["service"].__setitem__(
            "python",
            {
                "startup": data(
                    **{**json.loads(answers["service"]["python"]["startup"]["t"]), "executable": "/opt/venv/bin/python"}
                )
            },
        ),
        ["test_python_is_the_expected_one[]"],
    ),
    "one rank less": (_without("service", "process 503"), ["test_every_rank_runs[]"]),
    "ranks over P2P": (_ranks_share_nothing, ["test_ranks_use_the_expected_transport[]"]),
    "edited and reloaded": (
        _unit_text("NCCL_PROTO=LL", "NCCL_PROTO=LL128", LATE),
        ["test_running_process_is_newer_than_its_files[]", "test_unit_file_equals_the_users_copy[]"],
    ),
    "touched": (
        _all(_unit_text("Restart=", "Restart=", LATE), _shows(NeedDaemonReload="yes")),
        ["test_no_reload_is_pending[]", "test_running_process_is_newer_than_its_files[]"],
    ),
    "drop-in in a new directory": (
        lambda answers: answers["service"].update(ADDED),
        ["test_drop_ins_equal_the_users_copies[]", "test_no_reload_is_pending[]"],
    ),
    "sitecustomize changed": (
        lambda answers: answers["service"].__setitem__(
            "python",
            {
                "startup": data(
                    **{
                        **json.loads(answers["service"]["python"]["startup"]["t"]),
                        "environ": dict(BY_UNIT),
                        "times": {"sitecustomize": NOW - UP_S + LATE},
                    }
                )
            },
        ),
        ["test_running_process_is_newer_than_its_files[]", *(f"{VARIABLE}[{name}]" for name in BY_SITE)],
    ),
    "unset in the main process": (
        _all(
            _set("service", "process 412", to=process(412, 1, ["/usr/bin/python3", "x"], block(BY_UNIT), [])),
            _set(
                "service",
                "process 412",
                "environ",
                to=data(size=50, leading_nul=0, odd=0, empty=0, values={**BY_UNIT, "NCCL_PROTO": "Simple"}),
            ),
            _set(
                "service", "process 412", "argv",
                to=data(
                    argv=f"/usr/bin/python3 -m sglang.launch_server {SERVED}".split(),
                    trailing_nul=1,
                ),
            ),
            lambda answers: answers["service"].__setitem__(
                "python",
                {
                    "startup": data(
                        **{
                            **json.loads(answers["service"]["python"]["startup"]["t"]),
                            "environ": {**BY_UNIT, **BY_SITE, "NCCL_PROTO": "Simple"},
                        }
                    )
                },
            ),
        ),
        [f"{VARIABLE}[NCCL_PROTO]"],
    ),
    "other value in one rank": (
        _rank(2, b"\0\0\0x\0NCCL_P2P_DISABLE=0\0"),
        [f"{VARIABLE}[NCCL_P2P_DISABLE]"],
    ),
    "other argument": (_argv("0.75", "0.9"), ["test_argument_is_in_effect[mem-fraction-static]"]),
}  # fmt: skip

UNREADABLE: dict[str, tuple[Change, list[str]]] = {
    "no pct": (
        _set("container", "", to={"state": {"e": "ENOENT: No such file"}, "config": {"e": "ENOENT: No such file"}}),
        ["test_container_runs[]", "test_container_starts_at_boot[]", RULE],
    ),
    "configuration locked": (
        _set("container", "", "config", to=said("", 2, "can't lock file")),
        ["test_container_starts_at_boot[]", RULE],
    ),
    "configuration N/A": (
        _set("container", "", "config", to=said("N/A\n")),
        ["test_container_starts_at_boot[]", RULE],
    ),
    "rule in a file that nobody read": (
        _set(
            "container", "", "config", to=said(CONFIG.replace("devices.allow: c 508", "x: c 508") + "lxc.include: /x")
        ),
        ["test_container_may_open_the_device_node[*]"],
    ),
    "container not entered": (
        lambda answers: (
            [answers.pop(name) for name in list(answers) if name.startswith(("inside_", "service"))]
            and answers.__setitem__("inside", {"": {"session": {"e": "exit status 255: container '129' not running!"}}})
        ),
        ["*"],
    ),
    "init unreadable": (
        _set("inside_boot", "", "init", to=NOTHING),
        ["test_container_was_started_with_its_host[]"],
    ),
    "nodes unreadable": (
        _set("inside_dev", "nvidia0", to={".": NOTHING}),
        ["test_container_has_the_device_node[*]", "test_device_node_has_[*]", "test_container_has_the_node_[*]", RULE],
    ),
    "uvm not loaded": (
        _set("host_majors", "", "devices", to={"t": "Character devices:\n195 nvidia\n\nBlock devices:\n"}),
        [
            "test_device_node_has_its_drivers_major[/dev/nvidia-uvm]",
            "test_device_node_has_its_drivers_major[/dev/nvidia-uvm-tools]",
            "test_container_may_open_the_device_node[/dev/nvidia-uvm]",
            "test_container_may_open_the_device_node[/dev/nvidia-uvm-tools]",
        ],
    ),
    "GPU not known to the driver": (
        _without("host_gpus", "0000:61:00.0"),
        ["test_container_has_the_node_of_its_gpu[61:00.0]"],
    ),
    "container lost its GPUs": (
        _set("inside_driver", "", "smi", to=said("Failed to initialize NVML: Unknown Error\n", 255)),
        [
            "test_container_sees_exactly_its_gpus[]",
            "test_gpus_have_the_same_order_on_both_sides[]",
            "test_driver_version_is_the_same_on_both_sides[]",
        ],
    ),
    "no libraries": (
        _set("inside_driver", "", "/usr/lib/x86_64-linux-gnu", to={"e": "ENOENT: No such file"}),
        ["test_driver_libraries_fit_the_kernel_module[]"],
    ),
    "no shared memory": (
        _set("inside_space", "", "/dev/shm", to={"e": "ENOENT: No such file"}),
        ["test_shared_memory_is_large_enough[]"],
    ),
    "limits unreadable": (
        _set("service", "process 412", "limits", to=NOTHING),
        ["test_locked_memory_limit_is_high_enough[]", "test_open_file_limit_is_high_enough[]"],
    ),
    "mounts unreadable": (_set("inside_boot", "", "mounts", to=NOTHING), ["test_path_is_mounted[/shared]"]),
    "model folder empty": (
        _set("inside_mounted", "", "/shared", to={"t": "{}"}),
        ["test_files_of_the_path_are_readable[/shared]"],
    ),
    "disk not there": (
        _set("inside_space", "", "/", to={"e": "ENOENT: No such file"}),
        ["test_disk_has_space_left[/]"],
    ),
    "no systemd inside": (
        _set("inside_failed_units", "", "list", to=said("", 1, "Failed to connect to bus: No such file")),
        ["test_no_unit_has_failed[container]"],
    ),
    "no such unit": (
        _shows(LoadState="not-found", ActiveState="inactive", SubState="dead"),
        ["service", "drift"],
    ),
    "systemctl says nothing": (_set("service", "", "show", to=said("")), ["service", "drift"]),
    "no systemd-analyze": (_set("service", "", "verify", to=NOTHING), ["test_unit_file_verifies[]"]),
    "systemd-analyze is not found": (
        _set("service", "", "verify", to=said("", 127, "sh: 1: systemd-analyze: not found\n")),
        ["test_unit_file_verifies[]"],
    ),
    "systemd-analyze has no bus": (
        _set("service", "", "verify", to=said("", 1, "Failed to connect to bus: No such file or directory\n")),
        ["test_unit_file_verifies[]"],
    ),
    "systemd-analyze dies": (_set("service", "", "verify", to=said("", -11, "")), ["test_unit_file_verifies[]"]),
    "show is cut": (_show_cut, [*OF_SHOW, f"{VARIABLE}[*]", "test_argument_is_in_effect[*]", "drift-of-files"]),
    "show without NRestarts": (_shows_not("NRestarts"), ["test_service_was_not_restarted_by_systemd[]"]),
    "default target unknown": (
        _set("service", "", "pulled", to=said("", 1, "Failed to connect to bus")),
        ["test_service_is_pulled_in_at_boot[]"],
    ),
    "starts unreadable": (
        _set("service", "", "starts", to=said("", 1, "No journal files were found.")),
        ["test_service_is_not_started_again_and_again[]"],
    ),
    "a state that no kernel has": (_state("process 502", "Q"), ["test_no_process_of_the_service_is_stopped[]"]),
    "program of the main process unreadable": (
        _set("service", "process 412", "exe", to=NOTHING),
        [f"{VARIABLE}[*]"],
    ),
    "nccl.conf unreadable": (
        _set("service", "nccl /etc/nccl.conf", "text", to=NOTHING),
        [f"{VARIABLE}[NCCL_P2P_LEVEL]"],
    ),
    "sitecustomize not seen": (
        lambda answers: answers["service"].__setitem__(
            "python",
            {"startup": data(**{**json.loads(answers["service"]["python"]["startup"]["t"]), "times": {}})},
        ),
        ["test_running_process_is_newer_than_its_files[]"],
    ),
    "journal unreadable": (
        _set("service", "", "journal", to=said("", 1, "No journal files were opened due to insufficient permissions.")),
        [
            "test_service_was_not_killed_for_memory[]",
            "test_no_error_in_the_services_log[]",
            *OF_THE_LOG,
        ],
    ),
    "journal empty": (
        _set("service", "", "journal", to=said("")),
        [
            "test_service_was_not_killed_for_memory[]",
            "test_no_error_in_the_services_log[]",
            *OF_THE_LOG,
        ],
    ),
    "journal begins late": (_log_begins_late, [ADMITS]),
    "a line that is true or false": (
        _logs("WARNING Using FP8 KV cache but no scaling factors provided. Defaulting to scaling factors of 1.0."),
        [ADMITS],
    ),
    "NCCL names no transport": (_nccl_is_short, ["test_nccl_of_the_service_is_in_order[]"]),
    "engine of another name": (
        lambda answers: (
            [answers["service"].pop(name) for name in list(answers["service"]) if name.startswith("process 5")]
            and answers["service"].__setitem__(
                "process 412",
                process(
                    412,
                    1,
                    [
                        "/usr/bin/python3",
                        "x",
                        "--tp",
                        "4",
                        "--mem-fraction-static",
                        "0.75",
                        "--speculative-algorithm",
                        "NEXTN",
                        "--port",
                        "30000",
                    ],
                    block(BY_UNIT),
                    [],
                ),
            )
        ),
        ["test_engine_is_the_expected_one[]", "test_ranks_use_the_expected_transport[]"],
    ),
    "Python does not start": (
        _set("service", "python", "startup", to={"e": "exit status 1: No module named 'encodings'"}),
        [
            "test_python_is_the_expected_one[]",
            "test_running_process_is_newer_than_its_files[]",
            *(f"{VARIABLE}[{name}]" for name in (*BY_SITE, "NCCL_P2P_LEVEL")),
        ],
    ),
    "open files unreadable": (
        _set("service", "process 501", "opened", to=NOTHING),
        ["test_ranks_use_the_expected_transport[]"],
    ),
    "NCCL has no channel yet": (
        lambda answers: (
            [answers["service"][f"process {500 + number}"].__setitem__("opened", {"t": "[]"}) for number in range(4)]
            and None
        ),
        ["test_ranks_use_the_expected_transport[]"],
    ),
    "unit file unreadable": (
        _set("service", f"file {UNIT}", "text", to=NOTHING),
        ["drift-of-files", f"{VARIABLE}[*]", "test_unit_file_verifies[]", "test_settings_of_the_unit_are_in_effect[]"],
    ),
    "environments unreadable": (
        lambda answers: (
            [
                node.__setitem__("environ", NOTHING)
                for name, node in answers["service"].items()
                if name.startswith("process")
            ]
            and None
        ),
        [f"{VARIABLE}[*]"],
    ),
    "main process renamed": (
        _set(
            "service",
            "process 412",
            to=process(412, 1, ["sglang::launcher"], b"\0\0\0x\0LANG=C\0", []),
        ),
        ["test_argument_is_in_effect[*]", f"{VARIABLE}[*]"],
    ),
}

ADMITTED = (
    ("WARNING Using FP8 KV cache but no scaling factors provided. Defaulting to scaling factors of 1.0.", "error"),
    ("WARNING Using KV cache scaling factor 1.0 for fp8_e4m3. If this is unintended, verify the checkpoint.", "failed"),
    ("WARNING Using uncalibrated q_scale 1.0 and/or prob_scale 1.0 with fp8 attention.", "failed"),
    (
        "WARNING fused_moe.py: Using default MoE config. Performance might be sub-optimal! Config file not found",
        "failed",
    ),
    ("WARNING Your GPU does not have native support for FP8 computation but FP8 quantization is being used.", "failed"),
    ("WARNING Custom allreduce is disabled because your platform lacks GPU P2P capability.", "passed"),
    ("WARNING Default sampling parameters have been overridden by the model's generation config.", "passed"),
    ("INFO No chat template found, defaulting to 'string' content format", "failed"),
    ("INFO Currently, FlashInfer top-p & top-k sampling sampler is disabled. Falling back to PyTorch.", "failed"),
    ("INFO Cannot use FlashAttention-2 backend for FP8 KV cache.", "failed"),
    ("h:1:2 [0] NCCL INFO NET/IB : GPU Direct RDMA Disabled for HCA 0 'mlx5_0'", "failed"),
    ("WARNING Token indices sequence length is longer than the specified maximum sequence length", "passed"),
    ("WARNING NUMA binding is not available, performance may degrade", "failed"),
    ("(Worker pid=3) WARNING [a.py:1] bitsandbytes is slow here: this will reduce decode throughput", "failed"),
    ("WARNING DeepGEMM is not installed, using the default kernels instead", "failed"),
    ("ERROR_FREE WARNING cutlass kernels disabled because sm_120 is unsupported", "failed"),
    ("INFO [cuda.py:290] Using Flash Attention backend on V1 engine.", "passed"),
    ("[2026-11-29 16:45:10] server_args=ServerArgs(a='falling back to x', b='may be slow')", "passed"),
    ("[2026-11-29 16:45:36] Using fallback token IDs for yes/no (9693/2152)", "passed"),
)
"""Lines of engines of 2025 and 2026, lines that nobody listed, and what of healthy starts looks alike."""

RENAMED = (("renamed-service", "service", "vllm.service"), ("renamed-container", "container", "pct:130"))

DRIFT_OF_FILES = (
    "test_unit_file_equals_the_users_copy",
    "test_drop_ins_equal_the_users_copies",
    "test_no_reload_is_pending",
    "test_running_process_is_newer_than_its_files",
)


def alias(name: str) -> str:
    """Make a host's alias of a fault's name."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


def is_of(item: str, patterns: list[str], names: dict[str, str]) -> bool:
    """Tell whether an item is one of those named: itself, "x[*]" for all targets of x, or a suite of it."""
    for pattern in patterns:
        if pattern == "*" or item == pattern or (pattern.endswith("[*]") and item.startswith(pattern[:-3])):
            return True
        if pattern == "drift-of-files" and item.startswith(DRIFT_OF_FILES):
            return True
        if (
            pattern in ("service", "drift")
            and f"test_service_{'unit' if pattern == 'service' else 'drift'}" in names[item]
        ):
            return True
        if pattern == "service" and "limit" in item:
            return True
    return False


@pytest.fixture(scope="module")
def judged(tmp_path_factory: pytest.TempPathFactory) -> Judged:
    """Judge every made answer by the reference inventory, in one run."""
    spec = read_inventory(REFERENCE / "gpuinfra.toml").hosts["node-a"]
    declared = spec.model_dump(mode="json", exclude_defaults=True)
    host = reference_host()
    right = host.capture("right", spec.expect)
    recorded = {"right": RecordedHost(declared, right)}
    for number, (line, _) in enumerate(ADMITTED):
        for name, allow in ((f"admits-{number}", []), (f"allows-{number}", [re.escape(line[:60])])):
            answers = copy.deepcopy(dict(right.answers))
            _logs(line)(answers)
            service = {**declared["expect"]["service"], "allow_log": allow}
            asked = {**declared, "expect": {**declared["expect"], "service": service}}
            recorded[name] = RecordedHost(asked, type(right)(**{**vars(right), "alias": name, "answers": answers}))
    for name, key, other in RENAMED:
        recorded[name] = RecordedHost({**declared, key: other}, type(right)(**{**vars(right), "alias": name}))
    for name, (change, _) in {**WRONG, **UNREADABLE}.items():
        answers = copy.deepcopy(dict(right.answers))
        change(answers)
        capture = type(right)(**{**vars(right), "alias": alias(name), "answers": answers})
        recorded[alias(name)] = RecordedHost(declared, capture)
    directory = tmp_path_factory.mktemp("judged")
    write_recording(directory / "made.json", Recording(recorded))
    return judge_recording(directory, "made.json", *(str(suites_path() / "serving" / name) for name in SUITES))


def test_service_of_the_reference_host_is_right_in_every_check(judged: Judged) -> None:
    """Everything that the inventory expects of container and service is judged, and right."""
    outcomes = judged.of_host("right")
    assert [outcomes.messages[name] for name in outcomes.ended("failed", "error")] == []
    assert outcomes.ended("skipped") == []
    assert len(outcomes.ended("passed")) > 50


def test_every_check_is_seen_failing_and_unreadable(judged: Judged) -> None:
    """No check of these suites is one that never fails, or that passes on silence."""
    tests = {name.partition("[")[0] for name in judged.of_host("right").outcomes}
    failing = {one.partition("[")[0] for _, names in WRONG.values() for one in names}
    unreadable = {one.partition("[")[0] for name in UNREADABLE for one in judged.of_host(alias(name)).ended("error")}
    assert tests == failing
    assert tests - unreadable == set()


HIDDEN_BY_A_MASK = sorted(
    [
        *(f"{name}[]" for name in DRIFT_OF_FILES),
        "test_settings_of_the_unit_are_in_effect[]",
        "test_unit_file_verifies[]",
    ]
)


@pytest.mark.parametrize("name", WRONG)
def test_check_fails_for_its_fault_and_for_no_other(name: str, judged: Judged) -> None:
    """Each check is seen failing on an answer that is wrong in just this, and says so alone."""
    outcomes = judged.of_host(alias(name))
    shown = "\n".join(outcomes.messages[one] for one in outcomes.ended("failed", "error"))
    assert outcomes.ended("failed") == sorted(WRONG[name][1]), shown
    hidden = {
        "node of a GPU missing": [],
        "uvm tools missing": [
            "test_container_may_open_the_device_node[/dev/nvidia-uvm-tools]",
            "test_device_node_has_its_drivers_major[/dev/nvidia-uvm-tools]",
        ],
        "sitecustomize changed": [],
        "one rank less": [],
        "another engine": ["test_ranks_use_the_expected_transport[]"],
        "masked": HIDDEN_BY_A_MASK,
    }
    assert outcomes.ended("error") == hidden.get(name, []), shown


@pytest.mark.parametrize("name", UNREADABLE)
def test_unreadable_source_is_error_and_never_pass(name: str, judged: Judged) -> None:
    """What cannot be read ends in ERROR for every check that needs it, and for no other."""
    outcomes = judged.of_host(alias(name))
    files = {
        result["id"].rpartition("::")[2].replace(f"[{alias(name)}-", "[").replace(f"[{alias(name)}]", "[]"): result[
            "id"
        ]
        for result in judged.recording["results"]  # type: ignore[attr-defined]
        if result["host"] == alias(name)
    }
    errors = outcomes.ended("error")
    shown = "\n".join(outcomes.messages[one] for one in errors)
    assert errors
    assert [one for one in errors if not is_of(one, UNREADABLE[name][1], files)] == [], shown
    assert [p for p in UNREADABLE[name][1] if not any(is_of(one, [p], files) for one in errors)] == [], shown


@pytest.mark.parametrize("number", range(len(ADMITTED)))
def test_line_of_an_engine_is_weighed_and_can_be_allowed(number: int, judged: Judged) -> None:
    """What an engine admits fails or asks, what it notes passes, and the user has the last word."""
    line, ending = ADMITTED[number]
    seen = judged.of_host(f"admits-{number}")
    assert seen.outcomes[ADMITS] == ending, seen.messages[ADMITS]
    assert ending == "passed" or line[:60] in seen.messages[ADMITS]
    assert judged.of_host(f"allows-{number}").outcomes[ADMITS] == "passed"


@pytest.mark.parametrize(("name", "key", "other"), RENAMED)
def test_recording_of_another_name_is_error(name: str, key: str, other: str, judged: Judged) -> None:
    """What was seen of one unit, or in one container, is not seen of another."""
    outcomes = judged.of_host(name)
    of_the_host = ("test_no_unit_has_failed[host]",)

    assert [item for item in outcomes.ended("passed") if _is_about(item, key)] == []
    assert [item for item in outcomes.ended("failed") if item not in of_the_host] == []
    assert any(other in outcomes.messages[item] for item in outcomes.ended("error"))


def _is_about(item: str, key: str) -> bool:
    """Tell whether an item is about the service, or about anything in the container."""
    if item == "test_no_unit_has_failed[host]":
        return False
    inside = (
        "container",
        "device_node",
        "driver_",
        "gpus_have",
        "shared_memory",
        "path_is",
        "files_of",
        "disk",
        "[conta",
    )
    return key == "container" or not any(word in item for word in inside)


def test_message_of_a_drift_is_a_unified_diff(judged: Judged) -> None:
    """What the copy says, what is deployed, and what the running process has."""
    messages = judged.of_host(alias("edited and reloaded")).messages
    copy_drift = messages["test_unit_file_equals_the_users_copy[]"]
    assert "--- expected: deploy/sglang-qwen.service" in copy_drift
    assert "-Environment=NCCL_PROTO=LL\n" in copy_drift
    assert "+Environment=NCCL_PROTO=LL128" in copy_drift
    running = messages["test_running_process_is_newer_than_its_files[]"]
    assert f"{UNIT} was changed 60.0 s after the process started" in running
    assert "-NCCL_PROTO=LL128" in running
    assert "+NCCL_PROTO=LL\n" in running


def test_message_of_a_variable_names_process_witness_and_layer(judged: Judged) -> None:
    """Who has which value, who says so, and who set it."""
    message = judged.of_host(alias("other value in one rank")).messages[f"{VARIABLE}[NCCL_P2P_DISABLE]"]
    assert "502 (sglang::scheduler_TP2): '0' (its own environment)" in message
    assert "412 (/usr/bin/python3" in message
    assert f"set by unit {UNIT}" in message
    evidence = judged.of_host(alias("sitecustomize changed")).messages[f"{VARIABLE}[NCCL_ALGO]"]
    assert "not set" in evidence


def test_container_that_was_not_entered_is_said_with_what_to_do(judged: Judged) -> None:
    """The tool's own words."""
    messages = judged.of_host(alias("container not entered")).messages
    assert "container '129' not running!" in messages["test_service_is_active[]"]


def test_recorded_answers_hold_no_variable_beside_the_list() -> None:
    """LANG of the service was on the target and is not here."""
    spec = read_inventory(REFERENCE / "gpuinfra.toml").hosts["node-a"]
    answers = reference_host().capture("a", spec.expect).answers
    assert "NCCL_PROTO" in json.dumps(answers["service"])
    assert "C.UTF-8" not in json.dumps(answers)
