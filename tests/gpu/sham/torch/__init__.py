"""
A sham torch for tests of torch_program: as much of torch as that uses, over numpy. For tests only.

GPUINFRA_FAULTS plants, of copies: zeroed, never_written, scrambled, stall, die, copy_error, oom, kmsg (pair=A-B,
from_repeat=N, min_bytes=N, last_bytes=N); of devices: no_access (pair=A-B); of sums: rank_wrong, rank_error,
rank_hang, rank_die, rank_other_way (rank=N, min_bytes=N). GPUINFRA_SHAM_TORCH=cpu makes it a torch built without CUDA.
"""

from __future__ import annotations

import os
import signal
import time
from types import SimpleNamespace

import numpy as np

gpuinfra_sham = True
__version__ = "2.99.0+sham"
version = SimpleNamespace(cuda=None if os.environ.get("GPUINFRA_SHAM_TORCH") == "cpu" else "13.0")
int32, float32, bfloat16, uint8 = "int32", "float32", "bfloat16", "uint8"
_NUMPY = {int32: np.int32, float32: np.float32, bfloat16: np.float32, uint8: np.uint8, "bool": np.bool_}

_copied: dict[tuple[str, int], int] = {}  # copies by pair and size
_logged: list[str] = []  # pairs for which the kernel's log has been written


class OutOfMemoryError(RuntimeError):
    """As torch's."""


def planted(kind: str, *, size_bytes: int | None = None, repeat: int | None = None, **fields: object) -> dict[str, str]:
    """Give the fault of a kind that is planted here; {} for none."""
    for entry in filter(None, os.environ.get("GPUINFRA_FAULTS", "").split(";")):
        name, *words = entry.split(",")
        asked = dict(word.split("=", 1) for word in words)
        here = all(str(fields[key]) == value for key, value in asked.items() if key in fields)
        large = size_bytes is None or size_bytes >= int(asked.get("min_bytes", 0))
        late = repeat is None or repeat >= int(asked.get("from_repeat", 1))
        if name == kind and here and large and late:
            return {"kind": kind, **asked}
    return {}


def device(kind: str, number: int | None = None) -> str:
    """Name a device."""
    return kind if number is None else f"{kind}:{number}"


class Tensor:
    """Numbers on a device; the operators that torch_program uses."""

    def __init__(self, values: np.ndarray, dtype: str, where: str) -> None:
        self.values, self.dtype, self.device = values, dtype, where

    def _with(self, other: object, operation: str) -> Tensor:
        if isinstance(other, Tensor):
            assert other.device == self.device, "tensors on two devices"
            other = other.values
        result = getattr(self.values, operation)(other)
        return Tensor(result, "bool" if result.dtype == np.bool_ else self.dtype, self.device)

    __mul__ = lambda self, other: self._with(other, "__mul__")  # noqa: E731
    __add__ = lambda self, other: self._with(other, "__add__")  # noqa: E731
    __iadd__ = __add__
    __mod__ = lambda self, other: self._with(other, "__mod__")  # noqa: E731
    __and__ = lambda self, other: self._with(other, "__and__")  # noqa: E731
    __or__ = lambda self, other: self._with(other, "__or__")  # noqa: E731
    __xor__ = lambda self, other: self._with(other, "__xor__")  # noqa: E731
    __rshift__ = lambda self, other: self._with(other, "__rshift__")  # noqa: E731
    __eq__ = lambda self, other: self._with(other, "__eq__")  # type: ignore[assignment] # noqa: E731
    __ne__ = lambda self, other: self._with(other, "__ne__")  # type: ignore[assignment] # noqa: E731
    __hash__ = None  # type: ignore[assignment]

    def __getitem__(self, key: object) -> Tensor:
        return Tensor(self.values[key], self.dtype, self.device)

    def __int__(self) -> int:
        return int(self.values.item())

    def view(self, dtype: str) -> Tensor:
        return Tensor(self.values.view(_NUMPY[dtype]), dtype, self.device)

    def to(self, dtype: str) -> Tensor:
        return Tensor(self.values.astype(_NUMPY[dtype]), dtype, self.device)

    def sum(self) -> Tensor:
        return Tensor(np.asarray(self.values.sum()), int32, self.device)

    def nonzero(self) -> Tensor:
        return Tensor(np.argwhere(self.values), int32, self.device)

    def clone(self) -> Tensor:
        return Tensor(self.values.copy(), self.dtype, self.device)

    def copy_(self, other: Tensor, non_blocking: bool = False) -> Tensor:
        if other.device == self.device:
            self.values[...] = other.values
            return self
        pair, size = f"{other.device[5:]}-{self.device[5:]}", self.values.nbytes
        _copied[pair, size] = _copied.get((pair, size), 0) + 1
        found = {
            kind: planted(kind, pair=pair, size_bytes=size, repeat=_copied[pair, size])
            for kind in ("copy_error", "oom", "stall", "die", "kmsg", "never_written", "zeroed", "scrambled")
        }
        if found["copy_error"]:
            raise RuntimeError("CUDA error: an illegal memory access was encountered\nCompile with ...")
        if found["oom"]:
            raise OutOfMemoryError("CUDA out of memory. Tried to allocate 64.00 MiB\nSee ...")
        if found["stall"]:
            signal.pause()
        if found["die"]:
            os.kill(os.getpid(), signal.SIGSEGV)
        if found["kmsg"] and not _logged:
            _logged.append(pair)
            with open("/dev/kmsg", "w") as log:
                log.write(os.environ["GPUINFRA_KMSG"])
        bad = found["never_written"] or found["zeroed"] or found["scrambled"]
        start = max(0, size - int(bad.get("last_bytes", size))) if bad else size
        before = self.values.copy()
        self.values[...] = other.values
        if bad:
            worse = {"never_written": before[start:], "zeroed": 0, "scrambled": 0x5A}[bad["kind"]]
            self.values[start:] = worse
        return self


def arange(count: int, dtype: str, device: str) -> Tensor:
    """As torch's."""
    return Tensor(np.arange(count, dtype=_NUMPY[dtype]), dtype, device)


def zeros(count: int, dtype: str = float32, device: str = "cpu") -> Tensor:
    """As torch's."""
    return Tensor(np.zeros(count, dtype=_NUMPY[dtype]), dtype, device)


class _Event:
    def __init__(self, enable_timing: bool) -> None:
        self.at = 0.0

    def record(self) -> None:
        self.at = time.monotonic()

    def elapsed_time(self, end: _Event) -> float:
        return max((end.at - self.at) * 1e3, 1e-3)


cuda = SimpleNamespace(
    OutOfMemoryError=OutOfMemoryError,
    Event=_Event,
    synchronize=lambda _device: None,
    set_device=lambda _device: None,
    can_device_access_peer=lambda src, dst: not planted("no_access", pair=f"{src}-{dst}"),
    nccl=SimpleNamespace(version=lambda: (2, 28, 9)),
)
