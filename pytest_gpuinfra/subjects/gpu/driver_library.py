"""
Versions of NVIDIA's user-space libraries, from the names of their files.

Source: NVIDIA driver README, "Installed Components": the real file is libNAME.so.VERSION, with the driver's whole
version; libNAME.so.1 is a link to it.
"""

from __future__ import annotations

import re

from pytest_gpuinfra.capture.reading import Reading
from pytest_gpuinfra.errors import FactUnavailable
from pytest_gpuinfra.masking import first_of

LIBRARIES = ("/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/local/nvidia/lib64")
_FILE = re.compile(r"lib(?:nvidia-ml|cuda)\.so\.(?P<version>\d+\.\d+(?:\.\d+)?)\b")


def parse_library_versions(reading: Reading) -> tuple[str, ...]:
    """
    Read a list of files, one a line, and give the driver versions that they are of, each once, sorted.

    Raises:
        FactUnavailable: The list could not be had, or holds no such library with a whole version.
    """
    text = reading.require(remedy="look for libnvidia-ml.so.* in the library folders of the container")
    versions = {match["version"] for match in _FILE.finditer(text)}
    if not versions:
        raise FactUnavailable(
            reading.source, f"no libnvidia-ml or libcuda with a version: {first_of(text.strip(), 120)!r}"
        )
    return tuple(sorted(versions))
