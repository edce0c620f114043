"""The kernels that are checked in are those of the source, and old drivers' assemblers take them."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from pytest_gpuinfra.on_target.plan import kernels_ptx

KERNELS = Path(__file__).parents[2] / "pytest_gpuinfra" / "on_target" / "kernels"
PTXAS = shutil.which("ptxas") or shutil.which("ptxas", path="/usr/local/cuda/bin")


@pytest.mark.skipif(not shutil.which("nvcc"), reason="nvcc is not installed")
def test_ptx_is_what_the_source_gives():
    """kernels.ptx is made from kernels.cu, not edited."""
    result = subprocess.run(
        [sys.executable, str(KERNELS / "regenerate.py"), "--check"], capture_output=True, text=True, check=False
    )

    assert result.returncode == 0, result.stdout + result.stderr


def test_ptx_is_lowered_for_old_drivers():
    """The text asks for PTX 6.4 and sm_60."""
    lines = kernels_ptx().splitlines()

    assert [line for line in lines if line.startswith((".version", ".target"))] == [".version 6.4", ".target sm_60"]


@pytest.mark.skipif(not PTXAS, reason="ptxas is not installed")
@pytest.mark.parametrize("architecture", ["sm_75", "sm_80", "sm_90", "sm_120"])
def test_assembler_takes_the_lowered_text(architecture, tmp_path):
    """Nothing in the text is newer than the version that it claims."""
    result = subprocess.run(
        [PTXAS, f"-arch={architecture}", str(KERNELS / "kernels.ptx"), "-o", str(tmp_path / "cubin")],
        capture_output=True,
        text=True,
        check=False,
    )

    assert result.returncode == 0, result.stderr
