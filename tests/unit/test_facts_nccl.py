"""NCCL's log: every wording of a transport, warnings, who came how far."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_gpuinfra.capture.reading import Reading
from pytest_gpuinfra.errors import FactUnavailable, ParseError
from pytest_gpuinfra.subjects.service.engine_allreduce import parse_engine_allreduce
from pytest_gpuinfra.subjects.transfers.nccl_edge import parse_nccl_edge
from pytest_gpuinfra.subjects.transfers.nccl_log import NcclLog, parse_nccl_log

H200 = Path(__file__).parents[1] / "recorded" / "h200"
EDGE = "Channel 00/0 : 0[0] -> 1[1] via "


def log(text: str) -> NcclLog:
    return parse_nccl_log(Reading("nccl", text))


@pytest.mark.parametrize(
    ("via", "transport", "detail", "reads"),
    [
        ("P2P/CUMEM", "P2P", "CUMEM", False),
        ("P2P/CUMEM/read", "P2P", "CUMEM", True),
        ("P2P/IPC", "P2P", "IPC", False),
        ("P2P/IPC/read", "P2P", "IPC", True),
        ("P2P/direct pointer", "P2P", "direct pointer", False),
        ("P2P/direct pointer/read", "P2P", "direct pointer", True),
        ("P2P/indirect/5[5]", "P2P", "indirect/5[5]", False),
        ("SHM/direct/direct", "SHM", "direct/direct", False),
        ("SHM", "SHM", "", False),
        ("direct shared memory", "SHM", "", False),
        ("COLLNET/SHARP/0", "COLLNET", "SHARP/0", False),
    ],
)
def test_transports_within_a_host(via: str, transport: str, detail: str, reads: bool) -> None:
    edge = parse_nccl_edge(EDGE + via)

    assert edge is not None
    assert (edge.transport, edge.detail, edge.reads) == (transport, detail, reads)


@pytest.mark.parametrize(
    ("via", "net", "device", "proxy", "gdr"),
    [
        ("NET/Socket/0", "Socket", 0, None, False),
        ("NET/IB/3/GDRDMA", "IB", 3, None, True),
        ("NET/IBext_v8/0(7)/GDRDMA", "IBext_v8", 0, 7, True),
        ("NET/AWS Libfabric/3/GDRDMA", "AWS Libfabric", 3, None, True),
        ("NET/IB/1/Shared", "IB", 1, None, False),
        ("NET/Socket/0 comm 0x7f nRanks 16", "Socket", 0, None, False),
    ],
)
def test_transports_between_hosts(via: str, net: str, device: int, proxy: int | None, gdr: bool) -> None:
    edge = parse_nccl_edge(EDGE + via)

    assert edge is not None
    assert (edge.transport, edge.net, edge.net_device, edge.proxy_rank, edge.gdr) == ("NET", net, device, proxy, gdr)


@pytest.mark.parametrize(("bracket", "bus"), [("0", None), ("15", None), ("c1000", "c1000"), ("82000", "82000")])
def test_a_bus_id_is_no_index(bracket: str, bus: str | None) -> None:
    edge = parse_nccl_edge(f"Ring 00 : 0[{bracket}] -> 1[0] via P2P/IPC")

    assert edge is not None
    assert (edge.src_bus_id, edge.word) == (bus, "Ring")


@pytest.mark.parametrize(
    "text",
    [
        "Channel 00/24 : 0 1",
        "Trees [0] 1/-1/-1->0->-1|-1->0->1/-1/-1",
        "NET/IB : Using [0]mlx5_0:1/RoCE",
        "Connection to proxy localRank 0 -> connection 0x7fd4e0003410",
        "Connected all rings, use ring PXN 0 GDR 1",
        "P2P Chunksize set to 524288",
    ],
)
def test_what_looks_like_a_connection_is_none(text: str) -> None:
    assert parse_nccl_edge(text) is None


def test_two_h200_over_shared_memory_and_over_peers() -> None:
    shm, p2p = (log((H200 / f"nccl-{name}.log").read_text(encoding="utf-8")) for name in ("shm", "p2p"))

    assert (shm.transports, shm.channels, shm.environment["NCCL_P2P_DISABLE"]) == (("SHM",), 4, "1")
    assert (p2p.transports, p2p.channels, len(p2p.edges)) == (("P2P",), 24, 48)
    for found in (shm, p2p):
        assert (found.library, found.version, found.ranks, found.nodes) == ("NCCL", "2.28.9", 2, 1)
        assert (found.complete_ranks, found.init_complete, found.warnings) == ((0, 1), True, ())


@pytest.mark.parametrize(
    "prefix",
    ["", "[0] ", "[1,0]<stdout>:", "[2025-09-09 23:51:24] ", "(RayWorker pid=1, ip=192.0.2.1) ", "\x1b[36m"],
)
def test_launchers_may_write_before_the_line(prefix: str) -> None:
    assert len(log(f"{prefix}host-1.lan:774:854 [0] NCCL INFO {EDGE}P2P/IPC").edges) == 1


@pytest.mark.parametrize(
    ("text", "kind", "cuda"),
    [
        ("Cuda failure 217 'peer access is not supported between these two devices'", "CUDA", 217),
        ("Cuda failure 'out of memory'", "CUDA", None),
        ("failed to open CUDA IPC handle : 11 invalid argument", "CUDA", 11),
        ('Missing "iommu=pt" from kernel command line which can lead to hang!', "missing iommu=pt", None),
        ("Error: failed to extend /dev/shm/nccl-a to 33030532 bytes", "shared memory", None),
        ("NUMA auto balancing enabled which can lead to variability", "NUMA balancing", None),
        ("something else", "other", None),
    ],
)
def test_warnings_are_sorted_by_kind(text: str, kind: str, cuda: int | None) -> None:
    warning = log(f"h:1:2 [0] transport/x.cc:5 NCCL WARN {text}").warnings[0]

    assert (warning.kind, warning.cuda_error, warning.file) == (kind, cuda, "transport/x.cc:5")


ROW = "  1048576  262144  float  sum  -1  81.4  12.88  12.88  {out}  80.1  13.09  13.09  {inside}"


@pytest.mark.parametrize(
    ("out", "inside", "wrong"), [("0", "0", 0), ("3", "2", 5), ("N/A", "4", 4), ("N/A", "N/A", None)]
)
def test_a_count_that_was_not_taken_is_no_zero(out: str, inside: str, wrong: int | None) -> None:
    text = f"h:1:2 [0] NCCL INFO NCCL version 2.28.9+cuda13.0\n{ROW.format(out=out, inside=inside)}\n"

    assert log(text).wrong == wrong


def test_the_summary_of_nccl_tests_counts_too() -> None:
    assert log("h:1:2 [0] NCCL INFO x\n# Out of bounds values : 8 FAILED\n").wrong == 8


def test_the_frameworks_watchdog_is_heard() -> None:
    found = log("[rank0]: Watchdog caught collective operation timeout: WorkNCCL(SeqNum=3)")

    assert (len(found.framework_errors), found.edges, found.last_line) == (1, (), "")


@pytest.mark.parametrize("text", ["", "nothing of it\n"])
def test_a_log_without_nccl_is_refused(text: str) -> None:
    with pytest.raises(ParseError):
        log(text)


def test_no_log_is_unavailable() -> None:
    with pytest.raises(FactUnavailable):
        parse_nccl_log(Reading("nccl", None, "ENOENT: No such file or directory"))


@pytest.mark.parametrize(
    ("text", "off"),
    [
        ("Custom allreduce is disabled because it's not supported on more than two PCIe-only GPUs. To ", True),
        ("Custom allreduce is disabled because your platform lacks GPU P2P capability or P2P test failed.", True),
        ("Custom allreduce is disabled due to an unsupported world size: 6.", True),
        ("all is well", False),
    ],
)
def test_an_engine_says_why_its_own_all_reduce_is_off(text: str, off: bool) -> None:
    engine = parse_engine_allreduce(Reading("log", text))

    assert (engine.disabled_because is not None) == off
