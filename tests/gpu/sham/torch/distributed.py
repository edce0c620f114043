"""A sham torch.distributed: sums go through rank 0 over a socket. For tests only."""

from __future__ import annotations

import os
import pickle
import signal
import socket
import struct

import numpy as np

from . import Tensor, planted


class DistBackendError(RuntimeError):
    """As torch's."""


class TCPStore:
    """A listening socket in rank 0, a connection to it in the others."""

    def __init__(
        self, host: str, port: int, world: int, is_master: bool, timeout: object, wait_for_workers: bool = True
    ) -> None:
        self.others: list[socket.socket] = []
        if is_master:
            self.listener = socket.create_server((host, port))
            self.port = self.listener.getsockname()[1]
        else:
            self.others = [socket.create_connection((host, port))]
            self.port = port


_group: dict[str, object] = {}


def init_process_group(backend: str, *, store: TCPStore, rank: int, world_size: int, timeout: object) -> None:
    """Join; prints what NCCL would."""
    if planted("rank_error", rank=rank):
        raise DistBackendError("NCCL error in: NCCLUtils.cpp:77, unhandled system error\nLast error: ...")
    if rank == 0:
        store.others = [store.listener.accept()[0] for _ in range(world_size - 1)]
    _group.update(store=store, rank=rank, world=world_size, told=False)


def _send(to: socket.socket, values: np.ndarray) -> None:
    data = pickle.dumps(values)
    to.sendall(struct.pack(">Q", len(data)) + data)


def _receive(source: socket.socket) -> np.ndarray:
    with source.makefile("rb", buffering=0) as stream:
        size = struct.unpack(">Q", _exactly(stream, 8))[0]
        return pickle.loads(_exactly(stream, size))


def _exactly(stream: object, size: int) -> bytes:
    data = b""
    while len(data) < size:
        part = stream.read(size - len(data))  # type: ignore[attr-defined]
        if not part:
            raise DistBackendError("connection closed by peer")
        data += part
    return data


def all_reduce(values: Tensor) -> None:
    """Sum over all ranks, in place."""
    rank, world, store = _group["rank"], _group["world"], _group["store"]
    if not _group["told"]:
        _group["told"] = True
        off = (os.environ.get("NCCL_P2P_DISABLE") == "1") != bool(planted("rank_other_way", rank=rank))
        via = "SHM/direct/direct" if off else "P2P/CUMEM"
        other = (rank + 1) % world  # type: ignore[operator]
        print(f"node-a:1:1 [{rank}] NCCL INFO Channel 00 : {rank}[{rank}] -> {other}[{other}] via {via}", flush=True)
    size = values.values.nbytes
    if planted("rank_hang", rank=rank, size_bytes=size):
        signal.pause()
    if planted("rank_die", rank=rank, size_bytes=size):
        os.kill(os.getpid(), signal.SIGKILL)
    if rank == 0:
        for other in store.others:  # type: ignore[attr-defined]
            values.values += _receive(other)
        for other in store.others:  # type: ignore[attr-defined]
            _send(other, values.values)
    else:
        _send(store.others[0], values.values)  # type: ignore[attr-defined]
        values.values[...] = _receive(store.others[0])  # type: ignore[attr-defined]
    if planted("rank_wrong", rank=rank, size_bytes=size):
        values.values[0] += 1


def destroy_process_group() -> None:
    """Leave."""
