"""Whether a container is given what CUDA needs, and a library that fits the loaded driver."""

from __future__ import annotations

import re
from collections.abc import Sequence

from pytest_gpuinfra.subjects.boot.virtualization import Virtualization
from pytest_gpuinfra.subjects.container.config import ContainerConfig
from pytest_gpuinfra.subjects.container.device_node import DeviceNode
from pytest_gpuinfra.subjects.verdict import Ending, Verdict

_GPU = re.compile(r"/dev/nvidia\d+")
_NEEDED = ("/dev/nvidiactl", "/dev/nvidia-uvm")
_NVIDIA_MAJOR = 195


def missing_nodes(config: ContainerConfig) -> tuple[str, ...]:
    """Give the nodes that CUDA needs and the container is not given: a GPU, nvidiactl, nvidia-uvm."""
    paths = config.paths
    gpu = () if any(_GPU.fullmatch(path) for path in paths) else ("/dev/nvidia0",)
    return (*gpu, *(path for path in _NEEDED if path not in paths))


def judge_device_nodes(nodes: Sequence[DeviceNode]) -> Verdict:
    """Judge whether the nodes that CUDA needs are there."""
    paths = [node.path for node in nodes]
    gpu = () if any(_GPU.fullmatch(path) for path in paths) else ("/dev/nvidia0",)
    missing = (*gpu, *(path for path in _NEEDED if path not in paths))
    if missing:
        return _verdict("wrong", f"missing: {', '.join(missing)}; there are {', '.join(paths) or 'none'}")
    return _verdict("ok", f"there are {', '.join(paths)}")


def required_majors(config: ContainerConfig, nodes: Sequence[DeviceNode]) -> tuple[int, ...]:
    """Give the majors, on the host now, of the nodes that are bind-mounted: these the device cgroup must allow."""
    mounted = {device.path for device in config.devices if device.how == "mount"}
    return tuple(sorted({node.major for node in nodes if node.path in mounted}))


def judge_container_devices(config: ContainerConfig, nodes: Sequence[DeviceNode] = ()) -> Verdict:
    """
    Judge a container's configuration, against the host's nodes where they are known.

    Args:
        config: The container's configuration.
        nodes: Device nodes of the host; () if they are not known, then only the passed paths are judged.
    """
    missing = missing_nodes(config)
    if missing:
        return _verdict("wrong", f"not passed: {', '.join(missing)}")
    majors = required_majors(config, nodes)
    forbidden = [major for major in majors if major not in config.allowed_majors and not config.allows_all]
    if forbidden:
        what = ", ".join(f"{node.path} has {node.major}" for node in nodes if node.major in forbidden)
        allowed = ", ".join(map(str, config.allowed_majors)) or "none"
        return _verdict("wrong", f"{what}; the container allows {allowed}: CUDA will not start, nvidia-smi may")
    return _verdict("ok", f"passed: {', '.join(config.paths)}")


def judge_driver_library(kernel_module: str, libraries: Sequence[str]) -> Verdict:
    """Judge whether a library of the loaded driver's own version is there; others beside it are passed over."""
    right = kernel_module in libraries
    return _verdict("ok" if right else "wrong", f"library {', '.join(libraries)}, kernel module {kernel_module}")


def judge_bar_size(size_bytes: int, expected_bytes: int | None, machine: Virtualization) -> Verdict:
    """
    Judge the size of a BAR.

    A guest's function is emulated and hides the real one's capability: there the size tells nothing.
    """
    if machine.is_vm:
        return _verdict("skip", f"a guest ({machine.word}): the card may have a larger BAR on its host")
    if expected_bytes is None:
        return _verdict("skip", f"{size_bytes} bytes; nothing is expected")
    return _verdict("ok" if size_bytes >= expected_bytes else "wrong", f"{size_bytes} bytes of {expected_bytes}")


def _verdict(ending: Ending, observed: str) -> Verdict:
    return Verdict(
        ending=ending,
        subject="devices of the container",
        observed=observed,
        expected="a GPU, nvidiactl and nvidia-uvm, with rights, and a library of the loaded driver's version",
        why="CUDA does not start in the container, or only nvidia-smi does",
        action="pass the nodes by Proxmox's devN entries, which follow the majors; update the container's library",
    )
