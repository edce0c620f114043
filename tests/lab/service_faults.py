"""
Faults of the container and of the service, and exactly which checks fail and which cannot be judged for each.

Names of checks are those of suites/serving without "test_"; "x[*]" stands for all targets of x.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from .service_lab import SITE, UNIT, ServiceLab

INSIDE = (
    "argument_is_in_effect[*]",
    "container_has_the_device_node[*]",
    "container_may_open_the_device_node[*]",
    "container_was_started_with_its_host[]",
    "device_node_has_its_drivers_major[*]",
    "disk_has_space_left[*]",
    "drafts_in_the_services_log_are_accepted[]",
    "drop_ins_equal_the_users_copies[]",
    "engine_admits_no_fallback[]",
    "every_rank_runs[]",
    "files_of_the_path_are_readable[*]",
    "locked_memory_limit_is_high_enough[]",
    "nccl_of_the_service_is_in_order[]",
    "no_error_in_the_services_log[]",
    "no_process_of_the_service_is_stopped[]",
    "no_reload_is_pending[]",
    "no_unit_has_failed[container]",
    "open_file_limit_is_high_enough[]",
    "path_is_mounted[*]",
    "python_is_the_expected_one[]",
    "ranks_use_the_expected_transport[]",
    "running_process_is_newer_than_its_files[]",
    "service_is_active[]",
    "service_is_ordered[*]",
    "service_is_pulled_in_at_boot[]",
    "service_starts_at_boot[]",
    "service_was_not_killed_for_memory[]",
    "service_was_not_restarted_by_systemd[]",
    "settings_of_the_unit_are_in_effect[]",
    "shared_memory_is_large_enough[]",
    "unit_file_equals_the_users_copy[]",
    "unit_file_verifies[]",
    "variable_is_in_effect_in_every_process[*]",
)
"""Checks that need to look inside the container."""

PROCESSES = (
    "argument_is_in_effect[*]",
    "every_rank_runs[]",
    "locked_memory_limit_is_high_enough[]",
    "no_process_of_the_service_is_stopped[]",
    "open_file_limit_is_high_enough[]",
    "python_is_the_expected_one[]",
    "ranks_use_the_expected_transport[]",
    "running_process_is_newer_than_its_files[]",
    "variable_is_in_effect_in_every_process[*]",
)
"""Checks that need a process of the service."""


@dataclass(frozen=True)
class ServiceFault:
    """
    One fault.

    Attributes:
        inject: Brings it about on a prepared host.
        failed: Checks that fail.
        unknown: Checks that end in ERROR.
        says: What the messages name; () if nothing special.
        lasting: Whether the host must be started afresh afterwards.
    """

    inject: Callable[[ServiceLab], None]
    failed: tuple[str, ...]
    unknown: tuple[str, ...] = ()
    says: tuple[str, ...] = ()
    lasting: bool = False


def _edit(*substitutions: str, restart: bool = False, ranks: int = 2) -> Callable[[ServiceLab], None]:
    def inject(lab: ServiceLab) -> None:
        for text in substitutions:
            lab.inside(f"sed -i '{text}' {UNIT}")
        if restart:
            lab.inside("systemctl daemon-reload; systemctl restart infer")
            lab.wait_for_service(ranks)

    return inject


def _shell(text: str) -> Callable[[ServiceLab], None]:
    def inject(lab: ServiceLab) -> None:
        lab.inside(text)

    return inject


def _host(text: str) -> Callable[[ServiceLab], None]:
    def inject(lab: ServiceLab) -> None:
        lab.host.shell(text)

    return inject


def _drop_in(folder: str, text: str, *, reload: bool = False, restart: bool = False) -> Callable[[ServiceLab], None]:
    def inject(lab: ServiceLab) -> None:
        lab.inside(f"mkdir -p {folder}")
        lab.write(f"{folder}/override.conf", text)
        if reload:
            lab.inside("systemctl daemon-reload")
        if restart:
            lab.restart()

    return inject


def _killed(lab: ServiceLab) -> None:
    lab.inside("systemctl kill --kill-who=main --signal=SIGKILL infer")
    time.sleep(1.0)
    lab.wait_for_service()


def _flaps(state: str) -> Callable[[ServiceLab], None]:
    """Let the program end at once, and wait until it was restarted once and is in a state."""

    def inject(lab: ServiceLab) -> None:
        lab.inside("echo 'raise SystemExit(3)' >/opt/infer/infer.py; systemctl restart infer")
        limit = time.monotonic() + 30
        shown = ""
        while state not in shown or "NRestarts=0" in shown:
            assert time.monotonic() < limit, shown
            time.sleep(0.1)
            shown = lab.inside("systemctl show -p NRestarts,ActiveState infer")

    return inject


def _wrapper(lab: ServiceLab) -> None:
    lab.write("/opt/run.sh", '#!/bin/bash\nexport NCCL_P2P_DISABLE=1\n/usr/bin/python3 "$@"\nexit 3\n')
    lab.inside(f"chmod 755 /opt/run.sh; sed -i '/P2P_DISABLE/d; s#=/usr/bin/python3#=/opt/run.sh#' {UNIT}")
    lab.restart()


def _site(text: str, *, restart: bool) -> Callable[[ServiceLab], None]:
    def inject(lab: ServiceLab) -> None:
        lab.write(SITE, text)
        if restart:
            lab.restart()

    return inject


def _container_restarted(lab: ServiceLab) -> None:
    lab.host.shell("pct reboot 101")
    lab.host.wait_until_up()
    lab.inside("mount -t tmpfs -o size=16M model /srv/model; echo weights >/srv/model/model.safetensors")
    lab.restart(reload=False)  # the lab's own looking for an answer leaves a traceback
    lab.give_node()


def _not_back_after_reboot(lab: ServiceLab) -> None:
    lab.host.shell("pct set 101 --onboot 0")
    lab.host.reboot(service=False)


SIMPLE = "[Service]\nEnvironment=NCCL_PROTO=Simple\n"
VARIABLE = "variable_is_in_effect_in_every_process"

FAULTS: dict[str, ServiceFault] = {
    "stopped": ServiceFault(_shell("systemctl stop infer"), ("service_is_active[]",), PROCESSES),
    "flapping": ServiceFault(
        _flaps("activating"),
        ("no_error_in_the_services_log[]", "service_is_active[]", "service_was_not_restarted_by_systemd[]"),
        PROCESSES,
    ),
    "failed": ServiceFault(
        _flaps("failed"),
        (
            "no_error_in_the_services_log[]",
            "no_unit_has_failed[container]",
            "service_is_active[]",
            "service_was_not_restarted_by_systemd[]",
        ),
        PROCESSES,
        ("infer.service",),
    ),
    "restarted by systemd": ServiceFault(_killed, ("service_was_not_restarted_by_systemd[]",)),
    "disabled": ServiceFault(
        _shell("systemctl disable infer"), ("service_is_pulled_in_at_boot[]", "service_starts_at_boot[]")
    ),
    "edited without reload": ServiceFault(
        _edit("s/NCCL_PROTO=LL/NCCL_PROTO=LL128/"),
        (
            "no_reload_is_pending[]",
            "running_process_is_newer_than_its_files[]",
            "unit_file_equals_the_users_copy[]",
        ),
        says=("-NCCL_PROTO=LL128", "+NCCL_PROTO=LL"),
    ),
    "touched": ServiceFault(
        _shell(f"touch {UNIT}"),
        ("no_reload_is_pending[]", "running_process_is_newer_than_its_files[]"),
        says=("no difference in command and environment",),
    ),
    "drop-in in a new directory": ServiceFault(
        _drop_in("/run/systemd/system/infer.service.d", SIMPLE),
        (
            "drop_ins_equal_the_users_copies[]",
            "no_reload_is_pending[]",
            "running_process_is_newer_than_its_files[]",
        ),
        says=("override.conf is expected by nobody", "+Environment=NCCL_PROTO=Simple"),
    ),
    "drop-in reloaded": ServiceFault(
        _drop_in("/etc/systemd/system/infer.service.d", SIMPLE, reload=True),
        ("drop_ins_equal_the_users_copies[]", "running_process_is_newer_than_its_files[]"),
    ),
    "drop-in in effect": ServiceFault(
        _drop_in("/etc/systemd/system/infer.service.d", SIMPLE, reload=True, restart=True),
        ("drop_ins_equal_the_users_copies[]", f"{VARIABLE}[NCCL_PROTO]"),
    ),
    "empty drop-in": ServiceFault(
        _drop_in("/etc/systemd/system/infer.service.d", "", reload=True, restart=True),
        ("drop_ins_equal_the_users_copies[]",),
    ),
    "drop-in removed": ServiceFault(
        _shell("rm /etc/systemd/system/infer.service.d/10-lab.conf"),
        ("drop_ins_equal_the_users_copies[]", "no_reload_is_pending[]"),
    ),
    "environment file changed": ServiceFault(
        _shell("echo OMP_NUM_THREADS=8 >/etc/default/infer"),
        ("running_process_is_newer_than_its_files[]",),
        says=("-OMP_NUM_THREADS=8", "+OMP_NUM_THREADS=4"),
    ),
    "environment file in effect": ServiceFault(
        _shell("echo OMP_NUM_THREADS=8 >/etc/default/infer; systemctl restart infer"),
        (f"{VARIABLE}[OMP_NUM_THREADS]",),
        says=("'8'", "set by environment file /etc/default/infer"),
    ),
    "sitecustomize changed": ServiceFault(
        _site('import os\nos.environ["NCCL_ALGO"] = "Tree"\n', restart=False),
        ("running_process_is_newer_than_its_files[]", f"{VARIABLE}[NCCL_BUFFSIZE]"),
        (f"{VARIABLE}[NCCL_ALGO]",),
    ),
    "sitecustomize in effect": ServiceFault(
        _site('import os\nos.environ["NCCL_PROTO"] = "Simple"\n', restart=True),
        (f"{VARIABLE}[NCCL_ALGO]", f"{VARIABLE}[NCCL_BUFFSIZE]", f"{VARIABLE}[NCCL_PROTO]"),
    ),
    "peer-to-peer not switched off": ServiceFault(
        _edit("/P2P_DISABLE/d", restart=True),
        (
            "ranks_use_the_expected_transport[]",
            "unit_file_equals_the_users_copy[]",
            f"{VARIABLE}[NCCL_P2P_DISABLE]",
        ),
        says=("not SHM",),
    ),
    "one rank": ServiceFault(
        _edit("s/--tp 2/--tp 1/", restart=True, ranks=1),
        ("argument_is_in_effect[tp]", "every_rank_runs[]", "unit_file_equals_the_users_copy[]"),
        ("ranks_use_the_expected_transport[]",),
        ("1 in ",),
    ),
    "unknown key": ServiceFault(
        _edit("s/^Restart=/Restrt=no\\nRestart=/", restart=True),
        ("unit_file_equals_the_users_copy[]", "unit_file_verifies[]"),
    ),
    "wrapper": ServiceFault(_wrapper, ("unit_file_equals_the_users_copy[]",)),
    "unit file gone": ServiceFault(
        _shell(f"rm {UNIT}"),
        ("no_reload_is_pending[]", "service_starts_at_boot[]", "unit_file_verifies[]"),
        ("settings_of_the_unit_are_in_effect[]", "unit_file_equals_the_users_copy[]"),
    ),
    "low limits": ServiceFault(
        _edit("s/^Restart=/LimitMEMLOCK=1024\\nLimitNOFILE=100\\nRestart=/", restart=True),
        (
            "locked_memory_limit_is_high_enough[]",
            "open_file_limit_is_high_enough[]",
            "unit_file_equals_the_users_copy[]",
        ),
    ),
    "killed for memory": ServiceFault(
        lambda lab: lab.log("infer.service: A process of this unit has been killed by the OOM killer.", 6),
        ("service_was_not_killed_for_memory[]",),
    ),
    "error in the log": ServiceFault(
        lambda lab: lab.log("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB"),
        ("no_error_in_the_services_log[]",),
    ),
    "failed unit on the host": ServiceFault(
        _host("systemd-run --unit=broken false"),
        ("no_unit_has_failed[host]",),
        says=("broken.service",),
        lasting=True,
    ),
    "container stopped": ServiceFault(_host("pct shutdown 101"), ("container_runs[]",), INSIDE, lasting=True),
    "no such container": ServiceFault(
        _host("pct shutdown 101; mv /etc/pve/lxc/101.conf /root"),
        (),
        (*INSIDE, "container_runs[]", "container_starts_at_boot[]"),
        lasting=True,
    ),
    "container without python": ServiceFault(
        _host("chmod 0 /var/lib/lxc/101/rootfs/usr/bin/python3*"),
        (),
        INSIDE,
        lasting=True,
    ),
    "no start at boot": ServiceFault(_host("pct set 101 --onboot 0"), ("container_starts_at_boot[]",), lasting=True),
    "not back after a reboot": ServiceFault(
        _not_back_after_reboot, ("container_runs[]", "container_starts_at_boot[]"), INSIDE, lasting=True
    ),
    "container restarted": ServiceFault(_container_restarted, ("container_was_started_with_its_host[]",), lasting=True),
    "device node missing": ServiceFault(
        _shell("umount /dev/nvidia-uvm; rm /dev/nvidia-uvm"),
        ("container_has_the_device_node[/dev/nvidia-uvm]",),
        ("container_may_open_the_device_node[*]", "device_node_has_its_drivers_major[*]"),
        lasting=True,
    ),
    "another major": ServiceFault(
        lambda lab: lab.majors("Character devices:\n  1 mem\n511 nvidia-uvm\n\nBlock devices:\n"),
        ("device_node_has_its_drivers_major[/dev/nvidia-uvm]",),
        lasting=True,
    ),
    "driver not loaded": ServiceFault(
        lambda lab: lab.majors("Character devices:\n  1 mem\n\nBlock devices:\n"),
        (),
        ("container_may_open_the_device_node[*]", "device_node_has_its_drivers_major[*]"),
        lasting=True,
    ),
    "small shared memory": ServiceFault(
        _shell("mount -t tmpfs -o size=1M shm /dev/shm"), ("shared_memory_is_large_enough[]",), lasting=True
    ),
    "model not mounted": ServiceFault(
        _shell("umount /srv/model"),
        ("path_is_mounted[/srv/model]",),
        ("files_of_the_path_are_readable[*]",),
    ),
    "disk full": ServiceFault(_shell("head -c 14M /dev/zero >/srv/model/cache"), ("disk_has_space_left[/srv/model]",)),
}
