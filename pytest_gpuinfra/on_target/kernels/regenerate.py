"""
Make kernels.ptx from kernels.cu: `python regenerate.py` writes it, `--check` only compares.

nvcc compiles for the oldest architecture that it still knows; the text is then lowered to PTX 6.4 and sm_60,
so that drivers from CUDA 10.1 (418) on and GPUs from Pascal on take it. The kernels use nothing newer:
integer arithmetic, global loads and stores, and 64-bit atomics (min and max since sm_32).
Source: PTX ISA, "Release Notes" (which driver takes which version), nvcc 13.0.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
VERSION = "6.4"
TARGET = "sm_60"
HEADER = "// Made from kernels.cu by regenerate.py; do not edit. Lowered to PTX 6.4, sm_60.\n"


def compile_ptx(source: Path) -> str:
    """Compile the kernels and lower the text; comments of the compiler are left out, so its build does not show."""
    with tempfile.TemporaryDirectory() as directory:
        output = Path(directory) / "kernels.ptx"
        subprocess.run(["nvcc", "-ptx", "-arch=compute_75", "-O3", "-o", str(output), str(source)], check=True)
        text = output.read_text(encoding="utf-8")
    text = re.sub(r"^\s*//.*\n", "", text, flags=re.MULTILINE)
    text = re.sub(r"^\.version .*$", f".version {VERSION}", text, flags=re.MULTILINE)
    text = re.sub(r"^\.target .*$", f".target {TARGET}", text, flags=re.MULTILINE)
    return HEADER + re.sub(r"\n{2,}", "\n", text.strip() + "\n")


def main() -> int:
    """Write or compare; exit status 1 where the file at hand differs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare, and write nothing")
    arguments = parser.parse_args()
    made = compile_ptx(HERE / "kernels.cu")
    kept = HERE / "kernels.ptx"
    if arguments.check:
        same = kept.exists() and kept.read_text(encoding="utf-8") == made
        print("kernels.ptx is", "what kernels.cu gives" if same else "NOT what kernels.cu gives")
        return 0 if same else 1
    kept.write_text(made, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
