"""
Build the tests' stand-ins for libcuda, NVML and NCCL with gcc. For tests only.

`sham` builds libraries over host memory; `interposer` builds libraries that go in front of the real ones.
By hand: `python build.py sham DIRECTORY`, `python build.py interposer DIRECTORY`.
"""

from __future__ import annotations

import ctypes
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

HERE = Path(__file__).parent
FLAGS = ("-shared", "-fPIC", "-O2", "-Wall", "-Wextra", "-Werror", "-pthread")


def compile_library(output: Path, *arguments: str) -> None:
    """Run gcc."""
    subprocess.run(["gcc", *FLAGS, "-o", str(output), *arguments], check=True, timeout=120)


def build_sham(directory: Path) -> None:
    """Put a sham libcuda.so.1, libnvidia-ml.so.1 and libnccl.so.2 into a directory."""
    directory.mkdir(parents=True, exist_ok=True)
    for source, name in (
        ("sham_cuda.c", "libcuda.so.1"),
        ("sham_nvml.c", "libnvidia-ml.so.1"),
        ("sham_nccl.c", "libnccl.so.2"),
    ):
        compile_library(directory / name, "-Wno-unused-function", f"-Wl,-soname,{name}", str(HERE / source))


def real_path(name: str) -> str:
    """Give the file that the loader finds for a library."""
    loaded = ctypes.CDLL(name)
    maps = Path("/proc/self/maps").read_text(encoding="utf-8")
    stem = name.partition(".so")[0]
    paths = {line.split(maxsplit=5)[5] for line in maps.splitlines() if f"/{stem}.so" in line}
    if not loaded or len(paths) != 1:
        raise RuntimeError(f"{name} was loaded from {sorted(paths)}")
    return paths.pop()


def build_interposer(directory: Path, libraries: Mapping[str, str]) -> None:
    """
    Put interposing libraries into a directory.

    Args:
        directory: Where they go.
        libraries: Real file by name, of "libcuda.so.1", "libnvidia-ml.so.1", "libnccl.so.2".
    """
    directory.mkdir(parents=True, exist_ok=True)
    words = {"libcuda.so.1": "CUDA", "libnvidia-ml.so.1": "NVML", "libnccl.so.2": "NCCL"}
    with tempfile.TemporaryDirectory() as scratch:
        for name, path in libraries.items():
            # An empty library whose own name is the real one's path makes the loader ask for that very file.
            stub = Path(scratch) / f"stub-{words[name]}.so"
            compile_library(stub, f"-Wl,-soname,{path}", "-x", "c", "/dev/null")
            compile_library(
                directory / name,
                "-Wno-unused-function",
                f"-D{words[name]}",
                f'-DREAL="{path}"',
                "-Wl,--no-as-needed",
                str(HERE / "interpose.c"),
                str(stub),
                "-ldl",
            )


if __name__ == "__main__":
    target = Path(sys.argv[2])
    if sys.argv[1] == "sham":
        build_sham(target)
    else:
        nccl = sys.argv[3] if len(sys.argv) > 3 else real_path("libnccl.so.2")
        build_interposer(
            target,
            {
                "libcuda.so.1": real_path("libcuda.so.1"),
                "libnvidia-ml.so.1": real_path("libnvidia-ml.so.1"),
                "libnccl.so.2": nccl,
            },
        )
