"""The libraries that plant faults on real GPUs, tried in front of the sham driver."""

from __future__ import annotations

import pytest

from pytest_gpuinfra.on_target.plan import SHM

from .conftest import SHAM

ONE, OTHER = "0000:01:00.0", "0000:11:00.0"


@pytest.fixture(scope="module")
def interposers(sham_libraries, tmp_path_factory):
    """A directory with the interposing libraries; what they stand in front of is the sham."""
    import sys  # noqa: PLC0415

    sys.path.insert(0, str(SHAM))
    try:
        import build  # noqa: PLC0415
    finally:
        sys.path.pop(0)
    directory = tmp_path_factory.mktemp("interposer")
    names = ("libcuda.so.1", "libnvidia-ml.so.1", "libnccl.so.2")
    build.build_interposer(directory, {name: str(sham_libraries / name) for name in names})
    return directory


@pytest.fixture
def planted(run, interposers, tmp_path):
    """Run cuda_program with a fault planted in front of a sham driver that has none of its own."""

    def go(fault, **changes):
        environment = {
            "GPUINFRA_FAULTS": fault,
            "GPUINFRA_SHAM_IS_CLEAN": "1",
            "GPUINFRA_IPC_TABLE": str(tmp_path / "ipc-table"),
        }
        paths = (str(interposers / "libnccl.so.2"),)
        return run("cuda", environment, libraries=interposers, nccl_paths=paths, **changes)

    return go


@pytest.mark.parametrize(
    ("fault", "mechanism", "outcome"),
    [
        ("zeroed,pair=0-1,mechanism=ipc_load", "ipc_load", ("wrong", "zeroed")),
        ("never_written,pair=0-1,mechanism=ipc_store,last_bytes=5", "ipc_store", ("wrong", "never_written")),
        ("scrambled,pair=0-1,mechanism=copy_engine,from_repeat=2", "copy_engine", ("wrong", "scrambled")),
        ("outside,pair=0-1,mechanism=kernel_store", "kernel_store", ("wrong", "outside")),
        ("stall,pair=0-1,mechanism=kernel_load", "kernel_load", ("hang", None)),
        ("error,pair=0-1,mechanism=kernel_load", "kernel_load", ("failed", None)),
    ],
)
def test_planted_copy_fault_is_found_and_nothing_else(planted, fault, mechanism, outcome):
    """One pair by one mechanism."""
    result = planted(fault, simultaneous=(), arms=())

    assert {
        (one.src, one.dst, one.mechanism): (one.outcome, one.corruption)
        for one in result.transfers
        if one.outcome != "right"
    } == {(ONE, OTHER, mechanism): outcome}


@pytest.mark.parametrize(
    ("fault", "ending", "transports"),
    [
        ("", "right", {"SHM"}),
        ("rank_p2p", "right", {"P2P"}),
        ("rank_hang,rank=1", "hang", set()),
        ("rank_die,rank=1", "crash", set()),
        ("rank_wrong,rank=1", "wrong", {"SHM"}),
        ("rank_error,rank=1", "failed", set()),
        ("little_memory,device=1,free_bytes=900000000", "inconclusive", set()),
    ],
)
def test_planted_rank_fault_has_its_ending(planted, fault, ending, transports):
    """One arm."""
    result = planted(fault, mechanisms=(), simultaneous=(), arms=(SHM,))

    assert result.runs[0].ending == ending
    assert result.runs[0].transports >= transports
    assert result.stand_in
