"""
The reference host's container and service: composed answers of the probe, in the formats that the lab's real ones gave.

NCCL's defaults come from a sitecustomize of the system's Python and from the unit; the ranks have renamed themselves,
which overwrote their command lines and the first part of their environments (as on two H200s under SGLang 0.5).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pytest_gpuinfra.subjects.gpu.driver_library import LIBRARIES
from tests.recorded.made_host import probe_module

HERE = Path(__file__).parent
UNIT = "/etc/systemd/system/sglang-qwen.service"
SITE = "/usr/lib/python3.12/sitecustomize.py"
UP_S, NOW, STARTED_S = 11423.77, 1_790_000_000.0, 311.5
MODEL = "/shared/models/qwen3.5-122b"
ARGV = (
    f"/usr/bin/python3 -m sglang.launch_server --model-path {MODEL} --served-model-name qwen3.5-122b --host 127.0.0.1 "
    "--port 30000 --tp 4 --mem-fraction-static 0.75 --speculative-algorithm NEXTN --disable-custom-all-reduce"
)
BY_UNIT = {"NCCL_P2P_DISABLE": "1", "NCCL_PROTO": "LL", "CUDA_DEVICE_MAX_CONNECTIONS": "1"}
BY_SITE = {
    "NCCL_ALGO": "Ring",
    "NCCL_MAX_NCHANNELS": "16",
    "NCCL_MIN_NCHANNELS": "16",
    "NCCL_BUFFSIZE": "16777216",
    "NCCL_NTHREADS": "512",
}
GPUS = ("01", "11", "61", "71")
LIMITS = (
    "Limit                     Soft Limit           Hard Limit           Units     \n"
    "Max locked memory         unlimited            unlimited            bytes     \n"
    "Max open files            1048576              1048576              files     \n"
)
CONFIG = (
    "arch: amd64\ndev0: /dev/nvidia0\ndev1: /dev/nvidia1\ndev2: /dev/nvidia2\ndev3: /dev/nvidia3\n"
    "dev4: /dev/nvidiactl,mode=0666\nhostname: serve\nonboot: 1\nunprivileged: 1\n"
    "lxc.cgroup2.devices.allow: c 508:* rwm\n"
    "lxc.mount.entry: /dev/nvidia-uvm dev/nvidia-uvm none bind,optional,create=file\n"
    "lxc.mount.entry: /dev/nvidia-uvm-tools dev/nvidia-uvm-tools none bind,optional,create=file\n"
)
GONE = {"e": "ENOENT: No such file or directory"}


def said(text: str, status: int = 0, stderr: str = "") -> dict[str, Any]:
    """Give a command's reading."""
    return {"t": text, "x": status, "s": stderr}


def data(**values: Any) -> dict[str, Any]:
    """Give a reading of the probe's own JSON."""
    return {"t": json.dumps(values, sort_keys=True)}


def serving_answers() -> dict[str, Any]:
    """Give the answers to what `requests_on_host` asks of the reference inventory, by request id."""
    return {
        "host_failed_units": {"": {"list": said("")}},
        "container": {
            "": {
                "state": said("status: running\n"),
                "config": said(CONFIG),
            }
        },
        "host_majors": {
            "": {
                "devices": {
                    "t": "Character devices:\n  1 mem\n195 nvidia\n195 nvidiactl\n234 nvidia-nvlink\n"
                    "508 nvidia-uvm\n\nBlock devices:\n  8 sd\n"
                }
            }
        },
        "host_gpus": {
            f"0000:{bus}:00.0": {
                "information": {
                    "t": "Model: \t\t NVIDIA RTX PRO 6000 Blackwell Workstation Edition\nIRQ:   \t\t 210\n"
                    f"Bus Location: \t 0000:{bus}:00.0\nDevice Minor: \t {minor}\nGPU Excluded:\t No\n"
                }
            }
            for minor, bus in enumerate(GPUS)
        },
        "host_smi": {"": {"smi": said(smi())}},
        "inside": {"": {"session": data(python="3.12.3", schema=1, uid=0)}},
        "inside_boot": {
            "": {
                "boot_id": {"t": "0c1d4a57-5a0e-4f7e-9f2b-6b8a3c0f9d21\n"},
                "init": {"t": stat(1, "systemd", 0, 94.0)},
                "mounts": {
                    "t": "rpool/data/subvol-129-disk-0 / zfs rw 0 0\nproc /proc proc rw 0 0\n"
                    "tmpfs /dev/shm tmpfs rw,size=134217728k 0 0\nrpool/shared /shared zfs rw 0 0\n"
                },
                "limits": {"t": LIMITS},
                "clock": clock(),
            }
        },
        "inside_failed_units": {"": {"list": said("")}},
        "inside_space": {
            "": {
                "/dev/shm": data(size=137438953472, available=137170518016, inodes=1, inodes_available=1),
                "/": data(size=68719476736, available=42949672960, inodes=1, inodes_available=1),
            }
        },
        "inside_mounted": {"": {"/shared": {"t": json.dumps({"README": 812})}}},
        "inside_dev": {
            "nvidia-uvm": device(508, 0),
            "nvidia-uvm-tools": device(508, 1),
            **{f"nvidia{minor}": device(195, minor) for minor in range(4)},
            "nvidiactl": device(195, 255),
        },
        "inside_driver": {
            "": {
                "smi": said(smi()),
                **dict.fromkeys(LIBRARIES, GONE),
                LIBRARIES[0]: {"t": "libcuda.so.1\nlibcuda.so.580.95.05\nlibnvidia-ml.so.1\nlibnvidia-ml.so.580.95.05"},
            }
        },
        "service": service_answer(),
    }


def service_answer() -> dict[str, Any]:
    """Give the answer to the request for the unit."""
    main = {"LANG": "C.UTF-8", "PATH": "/usr/local/bin:/usr/bin:/bin", **BY_UNIT}
    started = str(round(STARTED_S * 1e6))
    shown = {
        "Id": "sglang-qwen.service",
        "LoadState": "loaded",
        "ActiveState": "active",
        "SubState": "running",
        "Result": "success",
        "UnitFileState": "enabled",
        "NRestarts": "0",
        "MainPID": "412",
        "ControlGroup": "/system.slice/sglang-qwen.service",
        "InvocationID": "6f0d6be2b7f74c0c8c9a3b6d4a9c1f10",
        "FragmentPath": UNIT,
        "DropInPaths": "",
        "NeedDaemonReload": "no",
        "ExecStart": f"{{ path=/usr/bin/python3 ; argv[]={ARGV} ; ignore_errors=no ; pid=412 ; status=0/0 }}",
        "Environment": " ".join(f"{name}={value}" for name, value in BY_UNIT.items()),
        "After": "sysinit.target basic.target network-online.target system.slice",
        "Before": "multi-user.target shutdown.target",
        "ActiveEnterTimestampMonotonic": started,
        "ExecMainStartTimestampMonotonic": started,
        "InactiveEnterTimestampMonotonic": "0",
        "ConditionResult": "yes",
    }
    log = ("Started sglang-qwen.service - SGLang.", "Load weight end.", "The server is fired up and ready to roll!")
    shared = [f"/dev/shm/nccl-{number:06d}" for number in range(28)]
    ranks = {
        f"process {500 + rank}": process(
            500 + rank,
            412,
            [f"sglang::scheduler_TP{rank}"],
            b"\0" * 60 + b"5.0\0CUDA_DEVICE_MAX_CONNECTIONS=1\0NCCL_P2P_DISABLE=1\0NCCL_CUMEM_ENABLE=0\0",
            [*shared, f"/dev/shm/nccl-own{rank}"],
            started_s=STARTED_S + 20,
        )
        for rank in range(4)
    }
    return {
        "": {
            "show": said("".join(f"{key}={value}\n" for key, value in shown.items())),
            "clock": clock(),
            "verify": said(""),
            "journal": said("\n".join(json.dumps({"message": m, "priority": "6", "pid": "412"}) for m in log)),
            "manager": said(""),
            "paths": said("UnitPath=/etc/systemd/system /run/systemd/system /usr/lib/systemd/system\n"),
        },
        f"file {UNIT}": file((HERE / "deploy/sglang-qwen.service").read_text(encoding="utf-8")),
        "environment /etc/environment": {"text": {"t": ""}, "stat": data(mtime=NOW - 9e6)},
        "process 412": process(412, 1, ARGV.split(), block(main), [], started_s=STARTED_S),
        "process 455": process(
            455,
            412,
            ["/usr/bin/python3", "-c", "from multiprocessing.resource_tracker import main;main(9)"],
            block({**main, **BY_SITE, "NCCL_CUMEM_ENABLE": "0"}),
            [],
            started_s=STARTED_S + 15,
        ),
        **ranks,
        "process 520": process(520, 412, ["sglang::detokenizer"], b"\0" * 70 + b"\0NCCL_PROTO=LL\0", []),
        "python": {
            "startup": data(
                pid=412,
                version="3.12.3",
                executable="/usr/bin/python3",
                prefix="/usr",
                files={"sitecustomize": SITE},
                times={"sitecustomize": NOW - UP_S - 86400},
                environ={**BY_UNIT, **BY_SITE},
            )
        },
    }


def file(text: str, changed_s: float = -86400.0) -> dict[str, Any]:
    """Give a unit's file, changed so many seconds after the host's boot."""
    return {"text": {"t": text}, "stat": data(mtime=NOW - UP_S + changed_s, size=len(text))}


def process(
    pid: int, parent: int, argv: Sequence[str], environ: bytes, opened: Sequence[str], *, started_s: float = STARTED_S
) -> dict[str, Any]:
    """Give a process's readings; its environment block goes through the probe's own filter."""
    seen = probe_module("probe_environ").filter_environ(environ, ["NCCL_*", "CUDA_*", "SGLANG_*", "HF_HUB_*"])
    renamed = "::" in argv[0]
    return {
        "comm": {"t": argv[0][:15] + "\n" if renamed else "python3\n"},
        "stat": {"t": stat(pid, argv[0][:15] if renamed else "python3", parent, started_s)},
        "status": {"t": "Uid:\t0\t0\t0\t0\nGid:\t0\t0\t0\t0\n"},
        "limits": {"t": LIMITS},
        "argv": data(argv=list(argv), trailing_nul=83 if renamed else 1),
        "environ": data(**seen),
        "exe": {"t": "/usr/bin/python3.12"},
        "cwd": {"t": "/"},
        "opened": {"t": json.dumps(sorted(opened))},
    }


def block(values: Mapping[str, str]) -> bytes:
    """Give an environment block."""
    return "".join(f"{name}={value}\0" for name, value in values.items()).encode()


def stat(pid: int, name: str, parent: int, started_s: float) -> str:
    """Give /proc/PID/stat."""
    return f"{pid} ({name}) S {parent} {pid} {pid} 0 -1 4194560 " + "0 " * 12 + f"{round(started_s * 100)} 1 1\n"


def clock() -> dict[str, Any]:
    """Give the target's clocks."""
    return data(realtime=NOW, monotonic=UP_S, boottime=UP_S, ticks_a_second=100)


def device(major: int, minor: int) -> dict[str, Any]:
    """Give a device node's entry."""
    return {".": data(mode=0o020666, major=major, minor=minor, uid=0, gid=0, size=0, mtime=0)}


def smi(version: str = "580.95.05", buses: Sequence[str] = GPUS) -> str:
    """Give what nvidia-smi prints of the fields asked for."""
    return "".join(
        f"{index}, 00000000:{bus.upper()}:00.0, GPU-00000000-0000-4000-8000-0000000000{bus}, "
        f"NVIDIA RTX PRO 6000 Blackwell Workstation Edition, {version}\n"
        for index, bus in enumerate(buses)
    )
