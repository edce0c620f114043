"""
Replaces the prediction head of a NEXTN model by random numbers: configured, running, and not accepting.

    python spoil_head.py nextn OUT

Every answer stays right, since the model itself verifies each draft. Needs safetensors and numpy.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file, save_file


def main(source: Path, target: Path) -> None:
    """Copy the model, with a head of noise."""
    shutil.copytree(source, target, dirs_exist_ok=True)
    tensors = load_file(source / "model.safetensors")
    rng = np.random.default_rng(0)
    for name, weights in tensors.items():
        if ".mtp_layers." in name and weights.ndim > 1:
            tensors[name] = rng.normal(0, 0.05, weights.shape).astype(weights.dtype)
    save_file(tensors, target / "model.safetensors", metadata={"format": "pt"})
    (target / "model.safetensors").chmod(0o644)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
