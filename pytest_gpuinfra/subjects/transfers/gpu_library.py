"""A library that a GPU program loaded, and whether it is a real one."""

from __future__ import annotations

from dataclasses import dataclass

from pytest_gpuinfra.subjects.event import ProgramEvent


@dataclass(frozen=True, slots=True)
class GpuLibrary:
    """
    A library that the program loaded.

    Attributes:
        path: File on the target; None if it could not be told.
        version: Its own version: CUDA's that the driver speaks ("13.0"), or NCCL's ("2.28.9").
        stand_in: "sham" or "interposer" for the tests' own libraries; None for a real one.
    """

    path: str | None
    version: str
    stand_in: str | None


def parse_gpu_library(event: ProgramEvent) -> GpuLibrary:
    """Read the part of an event that names a library."""
    return GpuLibrary(event.optional("path", str), event.text("version"), event.optional("stand_in", str))
