"""cuda_program over the sham driver: what it finds, and that it finds nothing else."""

from __future__ import annotations

import itertools
import subprocess
from pathlib import Path

import pytest

from pytest_gpuinfra.connection.local import LocalConnection
from pytest_gpuinfra.on_target.plan import (
    MECHANISMS,
    P2P,
    SHM,
    ArmPlan,
    GpuPlan,
    Memory,
    OddCase,
    estimate,
    program_text,
)
from pytest_gpuinfra.subjects.transfers.program import parse_gpu_program_events, parse_progress

from .conftest import KIB, MIB, SMALL, serving


def starts(python):
    """Whether this Python is there and has ctypes."""
    try:
        return not subprocess.run([python, "-c", "import ctypes"], capture_output=True, check=False).returncode
    except OSError:
        return False


OLD_PYTHONS = [
    path
    for minor in (6, 7, 8, 9)
    for path in [f"python3.{minor}", *sorted(map(str, Path("/root/.pyenv/versions").glob(f"3.{minor}.*/bin/python3")))]
    if starts(path)
][:1]
ONE, OTHER, THIRD = "0000:01:00.0", "0000:11:00.0", "0000:21:00.0"
NO_ARMS = {"arms": ()}
NO_PAIRS = {"mechanisms": (), "simultaneous": (), "chains": (), "arms": (SHM,)}


def wrong(run):
    """Give what is not right: {(src, dst, mechanism, simultaneous): (outcome, corruption)}."""
    return {
        (one.src, one.dst, one.mechanism, one.simultaneous): (one.outcome, one.corruption)
        for one in run.transfers
        if one.outcome != "right"
    }


def gpus(count):
    """Environment for so many sham GPUs."""
    return {"GPUINFRA_SHAM_GPUS": str(count)}


def faults(text, count=2):
    """Environment with faults planted."""
    return {"GPUINFRA_FAULTS": text, **gpus(count)}


def test_healthy_pair_of_gpus_is_right_in_everything(run):
    """Every directed pair by every mechanism, both at once, and both arms."""
    result = run()

    assert result.complete
    assert not wrong(result)
    assert {(one.src, one.dst, one.mechanism) for one in result.transfers if not one.simultaneous} == {
        (src, dst, mechanism) for src, dst in itertools.permutations((ONE, OTHER), 2) for mechanism in MECHANISMS
    }
    assert len(result.transfers) == 10 + 6
    assert [(one.arm, one.ending, one.transports) for one in result.runs] == [
        ("shm", "right", {"SHM"}),
        ("p2p", "right", {"P2P"}),
    ]
    assert all(one.gb_s for one in result.transfers)
    assert all(one.speed.busbw_gb_s == one.speed.algbw_gb_s for one in result.runs)


def test_sham_driver_is_never_taken_for_a_real_one(run):
    """The program tells the library's path, and that it is the tests' own."""
    result = run(**NO_ARMS)

    assert result.stand_in == "sham"
    assert result.plan.driver.path.endswith("libcuda.so.1")


@pytest.mark.parametrize("count", [2, 3, 4, 8])
def test_number_of_items_follows_the_number_of_gpus(run, count):
    """n(n-1) directed pairs, n(n-1)(n-2) chains, as was reckoned before."""
    plan = {
        "sizes": (4 * KIB,),
        "odd_cases": (),
        "mechanisms": ("copy_engine",),
        "simultaneous": (),
        "chains": ("kernel_store",),
        "chain_sizes": (4099,),
        "repeats": 1,
        "timed_copies": 2,
        "arms": (SHM,),
        "messages": (("int32", 4),),
    }
    reckoned = estimate(GpuPlan(**plan), count)
    result = run(environment=gpus(count), **plan)

    assert (result.plan.tasks, result.plan.bytes) == (reckoned.tasks, reckoned.bytes)
    assert len(result.transfers) == count * (count - 1)
    assert len(result.chains) == count * (count - 1) * (count - 2)
    assert {one.outcome for one in (*result.transfers, *result.chains)} == {"right"}
    assert result.runs[0].ending == "right"
    assert len(result.runs[0].ranks) == count


def test_sixteen_gpus(run):
    """240 directed pairs and 16 ranks."""
    result = run(
        environment=gpus(16), sizes=(4 * KIB,), odd_cases=(), mechanisms=("ipc_load",), simultaneous=(), chains=(),
        repeats=1, timed_copies=0, arms=(SHM,), messages=(("bfloat16", 64), ("float32", 64), ("int32", 64)),
    )  # fmt: skip

    assert len(result.transfers) == 240
    assert {one.outcome for one in result.transfers} == {"right"}
    assert result.runs[0].ending == "right"


def test_one_gpu_has_no_pairs_and_no_all_reduce(run):
    """Nothing to copy, and an arm that says why there is no sum."""
    result = run(environment=gpus(1))

    assert result.complete
    assert not result.transfers
    assert {one.ending for one in result.runs} == {"inconclusive"}


@pytest.mark.parametrize("kind", ["never_written", "zeroed", "scrambled"])
@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_corruption_is_named_by_pair_mechanism_and_class(run, kind, mechanism):
    """One directed pair by one mechanism: exactly that one, also with the other direction busy."""
    result = run(environment=faults(f"{kind},pair=0-1,mechanism={mechanism}"), **NO_ARMS)

    expected = {(ONE, OTHER, mechanism, False): ("wrong", kind)}
    if not mechanism.startswith("ipc"):
        expected[ONE, OTHER, mechanism, True] = ("wrong", kind)
    assert wrong(result) == expected


def test_every_byte_of_a_lost_copy_counts_as_never_written(run):
    """Poison differs from the source everywhere, so nothing looks right by chance."""
    result = run(environment=faults("never_written,pair=1-0,mechanism=copy_engine"), **NO_ARMS)

    one = result.transfer(OTHER, ONE, "copy_engine")
    assert one.wrong_bytes == one.never_written_bytes == one.bytes_checked
    assert one.failures[-1].first_wrong_offset == 0
    assert one.gb_s is None


def test_fault_from_the_second_repeat_on(run):
    """The first copy is right, and does not excuse the second."""
    fault = "zeroed,pair=0-1,mechanism=kernel_store,from_repeat=2"
    result = run(environment=faults(fault), simultaneous=(), **NO_ARMS)

    one = result.transfer(ONE, OTHER, "kernel_store")
    assert wrong(result) == {(ONE, OTHER, "kernel_store", False): ("wrong", "zeroed")}
    assert {failure.repeat for failure in one.failures} == {2, 3}


def test_fault_of_large_copies_only(run):
    """Small copies are right, and do not excuse the large one."""
    result = run(
        environment=faults(f"scrambled,pair=0-1,mechanism=kernel_load,min_bytes={MIB + 1}"),
        sizes=(4 * KIB, 2 * MIB), simultaneous=(), **NO_ARMS,
    )  # fmt: skip

    one = result.transfer(ONE, OTHER, "kernel_load")
    assert {failure.size_bytes for failure in one.failures} == {MIB + 13, 2 * MIB}


def test_fault_of_the_last_bytes_only(run):
    """Three bytes at the end, with their place."""
    result = run(environment=faults("zeroed,pair=0-1,mechanism=ipc_store,last_bytes=3"), odd_cases=(), **NO_ARMS)

    one = result.transfer(ONE, OTHER, "ipc_store")
    assert {failure.wrong_bytes for failure in one.failures} == {3}
    assert all(failure.first_wrong_offset == failure.size_bytes - 3 for failure in one.failures)


def test_bytes_beside_the_destination(run):
    """A copy that is right and writes on: its own class."""
    result = run(environment=faults("outside,pair=0-1,mechanism=copy_engine"), simultaneous=(), **NO_ARMS)

    one = result.transfer(ONE, OTHER, "copy_engine")
    assert (one.outcome, one.corruption, one.wrong_bytes) == ("wrong", "outside", 0)
    assert one.guard_wrong_bytes == 16 * one.copies_checked


def test_mirror_aperture_cannot_look_right(run):
    """Writes and reads through the same wrong mapping agree with each other, and not with the owner's memory."""
    result = run(environment=faults("mirror,pair=0-1"), **NO_ARMS)

    assert {key[:3] for key in wrong(result)} == {(ONE, OTHER, mechanism) for mechanism in MECHANISMS}
    assert result.transfer(ONE, OTHER, "kernel_store").corruption == "never_written"
    assert result.transfer(ONE, OTHER, "kernel_load").corruption == "zeroed"


def test_chain_of_three_shows_a_bad_hop(run):
    """Every chain with the bad hop, and no other."""
    result = run(environment=faults("zeroed,pair=1-2,mechanism=copy_engine", 3), mechanisms=(), **NO_ARMS)

    bad = {(one.src, one.via, one.dst) for one in result.chains if one.outcome != "right"}
    assert bad == {(ONE, OTHER, THIRD), (OTHER, THIRD, ONE)}
    assert len(result.chains) == 12


def test_one_bad_chain_of_336_whose_pairs_are_all_right(run):
    """Eight GPUs: each of 56 pairs is right by itself, and bytes are lost only on their way over a third GPU."""
    result = run(
        environment=faults("scrambled,pair=5-6,after=2-5,mechanism=copy_engine", 8),
        sizes=(4 * KIB,), odd_cases=(), mechanisms=("copy_engine",), simultaneous=(), chains=("copy_engine",),
        chain_sizes=(4099,), **NO_ARMS,
    )  # fmt: skip

    assert [one.outcome for one in result.transfers] == ["right"] * 56
    assert len(result.chains) == 336
    gpus_by_index = sorted({one.src for one in result.chains})
    bad = [(one.src, one.via, one.dst) for one in result.chains if one.outcome != "right"]
    assert bad == [(gpus_by_index[2], gpus_by_index[5], gpus_by_index[6])]


def test_no_peer_access_is_not_tested(run):
    """A copy that would go through the host proves nothing."""
    result = run(environment=faults("no_access,pair=0-1"), **NO_ARMS)

    assert {one.outcome for one in result.transfers} == {"not_tested"}
    assert {one.can_access for one in result.transfers} == {False}
    assert "through the host" in result.transfers[0].reason


def test_refused_peer_access_is_an_error(run):
    """The driver says yes, and then refuses."""
    result = run(environment={"GPUINFRA_SHAM_REFUSES_PEERS": "1"}, **NO_ARMS)

    assert {(one.outcome, one.can_access) for one in result.transfers} == {("error", True)}
    assert "CUDA_ERROR_PEER_ACCESS_UNSUPPORTED" in result.transfers[0].reason


def test_refused_ipc_is_an_error_of_ipc_alone(run):
    """A container without the right to share memory between processes."""
    result = run(environment={"GPUINFRA_SHAM_REFUSES_IPC": "1"}, **NO_ARMS)

    assert {key[2] for key in wrong(result)} == {"ipc_store", "ipc_load"}
    assert set(wrong(result).values()) == {("error", None)}


def test_hanging_copy_ends_at_its_deadline_and_the_rest_goes_on(run):
    """The pair is named; every other pair has its result."""
    result = run(environment=faults("stall,pair=0-1,mechanism=ipc_load"), **NO_ARMS)

    assert result.complete
    assert wrong(result) == {(ONE, OTHER, "ipc_load", False): ("hang", None)}
    assert len(result.transfers) == 16


def test_crashing_copy_is_named_and_the_rest_goes_on(run):
    """A signal in the copying process."""
    result = run(environment=faults("die,pair=1-0,mechanism=kernel_store"), simultaneous=(), **NO_ARMS)

    assert wrong(result) == {(OTHER, ONE, "kernel_store", False): ("crash", None)}
    assert "SIGSEGV" in result.transfer(OTHER, ONE, "kernel_store").reason


def test_restarts_are_limited(run):
    """What was not done says so, and is no pass."""
    result = run(environment=faults("die"), restarts=2, **NO_ARMS)

    assert {one.outcome for one in result.transfers} == {"crash", "error"}
    assert len(result.transfers) == 16
    assert "not done" in result.transfers[-1].reason


def test_error_of_the_driver_is_a_failed_copy(run):
    """A copy that the driver allowed and then reported as failed."""
    result = run(environment=faults("error,pair=0-1,mechanism=copy_engine"), simultaneous=(), **NO_ARMS)

    assert wrong(result) == {(ONE, OTHER, "copy_engine", False): ("failed", None)}
    assert "CUDA_ERROR_ILLEGAL_ADDRESS" in result.transfer(ONE, OTHER, "copy_engine").reason


def test_too_little_memory_names_the_gpu(run):
    """Nothing is allocated on a GPU whose memory somebody else needs; pairs without it go on."""
    result = run(environment=faults("little_memory,device=1,free_bytes=900000000", 3), **NO_ARMS)

    assert {(one.src, one.dst) for one in result.transfers if one.outcome == "right"} == {(ONE, THIRD), (THIRD, ONE)}
    unusable = [one for one in result.devices if not one.usable]
    assert [one.pci for one in unusable] == [OTHER]
    assert "858 MiB are free" in unusable[0].reason


def test_memory_budget_shrinks_the_largest_copy(run):
    """What fits is tried, and told."""
    result = run(
        sizes=(4 * KIB, 64 * MIB), memory=Memory(budget_bytes=8 * MIB), simultaneous=(), timed_copies=0, **NO_ARMS
    )

    assert {one.largest_bytes for one in result.transfers} == {3 * MIB}
    assert {one.largest_copy_bytes for one in result.devices} == {3 * MIB}


def test_unknown_free_memory_is_asked_of_the_driver(run):
    """A MIG instance: its parent's memory would say nothing."""
    result = run(environment={"GPUINFRA_SHAM_MIG": "1"}, **NO_ARMS)

    assert {one.mig for one in result.devices} == {True}
    assert {one.memory_free_bytes for one in result.devices} == {None}
    assert not wrong(result)


def test_devices_are_chosen_by_address(run):
    """A subset, and one that is not there."""
    result = run(environment=gpus(4), devices=(ONE, THIRD, "0000:c1:00.0"), **NO_ARMS)

    assert {(one.src, one.dst) for one in result.transfers} == {(ONE, THIRD), (THIRD, ONE)}
    assert result.plan.missing == ("0000:c1:00.0",)
    assert [one.pci for one in result.devices if not one.usable] == ["0000:c1:00.0"]


def test_hidden_device_is_explained(run):
    """CUDA_VISIBLE_DEVICES is in the reason."""
    result = run(environment={**gpus(2), "CUDA_VISIBLE_DEVICES": "0"}, devices=(ONE, OTHER), arms=(SHM,))

    assert "CUDA_VISIBLE_DEVICES is '0'" in next(one.reason for one in result.devices if not one.usable)
    assert result.runs[0].ending == "inconclusive"


def test_visible_devices_of_the_plan(run):
    """As the service sees them."""
    result = run(environment=gpus(3), visible_devices="2,0", **NO_ARMS)

    assert [one.pci for one in result.devices] == [THIRD, ONE]


@pytest.mark.parametrize(
    ("environment", "text"),
    [
        ({"GPUINFRA_SHAM_INIT": "803"}, "cuInit returned 803 (CUDA_ERROR_SYSTEM_DRIVER_MISMATCH)"),
        ({"GPUINFRA_SHAM_GPUS": "0"}, "cuInit returned 100 (CUDA_ERROR_NO_DEVICE)"),
    ],
)
def test_driver_that_refuses_is_a_clear_error(run, environment, text):
    """Not complete, and the reason names the call."""
    result = run(environment=environment)

    assert not result.complete
    assert text in result.incomplete_reason


def test_missing_driver_is_a_clear_error(run, tmp_path):
    """No libcuda on this machine."""
    result = run(libraries=tmp_path)

    assert "libcuda.so.1 cannot be loaded" in result.incomplete_reason


def test_driver_that_does_not_take_the_kernels(run):
    """Its own words are in the reason."""
    result = run(environment={"GPUINFRA_SHAM_REFUSES_PTX": "1"}, arms=(SHM,))

    assert "Unsupported .version 6.4" in result.transfers[0].reason
    assert {one.outcome for one in result.transfers} == {"error"}
    assert result.runs[0].ending == "inconclusive"


def test_missing_nccl_is_inconclusive(run, sham_libraries, tmp_path):
    """The pairs are judged all the same."""
    (tmp_path / "libcuda.so.1").symlink_to(sham_libraries / "libcuda.so.1")
    result = run(libraries=tmp_path)

    assert not wrong(result)
    assert {one.ending for one in result.runs} == {"inconclusive"}
    assert "libnccl.so.2 cannot be loaded" in result.runs[0].reason


def test_old_nccl_is_inconclusive(run):
    """2.8 has no bfloat16; both of NCCL's ways to number versions are read."""
    result = run(environment={"GPUINFRA_SHAM_NCCL": "2804"}, **NO_PAIRS)

    assert result.runs[0].ending == "inconclusive"
    assert "NCCL 2.8.4" in result.runs[0].reason


def test_nccl_of_the_plan_comes_first(run, sham_libraries, tmp_path):
    """The library that the service's processes have loaded."""
    (tmp_path / "libcuda.so.1").symlink_to(sham_libraries / "libcuda.so.1")
    path = str(sham_libraries / "libnccl.so.2")
    with serving({"LD_LIBRARY_PATH": str(tmp_path)}) as process:
        result = run(libraries=tmp_path, nccl_paths=(path,), process=process, **NO_PAIRS)

    assert (result.runs[0].library.path, result.runs[0].library.version) == (path, "2.28.9")


def test_hanging_rank_is_named(run, nccl_files):
    """The rank that stays behind, each rank's last line, and nothing left."""
    result = run(environment=faults("rank_hang,rank=1,min_bytes=4096"), **NO_PAIRS)

    one = result.runs[0]
    assert one.ending == "hang"
    assert f"behind the others: rank 1 ({OTHER})" in one.reason
    assert one.ranks[0].stage.startswith("waiting for an all-reduce of 262144 bytes")
    assert one.ranks[1].stage.startswith("calling an all-reduce of 262144 bytes")
    assert all("via SHM" in rank.last_line for rank in one.ranks)
    assert len(one.removed_files) == 1
    assert not nccl_files()


def test_crashing_rank_is_named(run, nccl_files):
    """The signal, and what it was doing."""
    result = run(environment=faults("rank_die,rank=0"), **NO_PAIRS)

    assert result.runs[0].ending == "crash"
    assert f"rank 0 ({ONE}) was ended by SIGSEGV in: calling an all-reduce" in result.runs[0].reason
    assert not nccl_files()


def test_wrong_sum_is_named(run):
    """Rank, type, size and place."""
    result = run(environment=faults("rank_wrong,rank=1,min_bytes=4100"), **NO_PAIRS)

    one = result.runs[0]
    assert one.ending == "wrong"
    assert f"rank 1 ({OTHER}) holds 1 wrong" in one.reason
    assert {(each.size_bytes, rank) for each in one.sums for rank in each.wrong_by_rank} == {(4100, 1), (262144, 1)}


def test_error_of_nccl_is_a_failed_run(run):
    """NCCL's own words."""
    result = run(environment=faults("rank_error,rank=0"), **NO_PAIRS)

    assert result.runs[0].ending == "failed"
    assert "ncclCommInitRank returned 3 (internal error)" in result.runs[0].reason
    assert any("Cuda failure 217" in line for line in result.runs[0].log)


def test_transport_asked_for_and_transport_seen_are_two_facts(run):
    """Right sums, over the wrong transport."""
    result = run(environment=faults("rank_p2p"), **NO_PAIRS)

    assert result.runs[0].ending == "right"
    assert result.runs[0].environment == {"NCCL_P2P_DISABLE": "1"}
    assert result.runs[0].transports == {"P2P"}


def test_arm_gets_its_environment_and_its_devices(run):
    """Set, unset, and by address."""
    arm = ArmPlan("service", {"NCCL_P2P_DISABLE": "1"}, ("NCCL_ALGO",), (THIRD, ONE))
    result = run(environment={**gpus(3), "NCCL_ALGO": "Ring"}, **{**NO_PAIRS, "arms": (arm, P2P)})

    assert [one.devices for one in result.runs] == [(THIRD, ONE), (ONE, OTHER, THIRD)]
    assert [one.transports for one in result.runs] == [{"SHM"}, {"P2P"}]
    assert [rank.pci for rank in result.runs[0].ranks] == [THIRD, ONE]


def test_rank_on_a_full_gpu_is_inconclusive(run):
    """No rank is started where memory is short."""
    result = run(environment=faults("little_memory,device=1,free_bytes=900000000"), **NO_PAIRS)

    assert result.runs[0].ending == "inconclusive"
    assert OTHER in result.runs[0].reason
    assert not result.runs[0].ranks


def test_program_runs_over_a_connection(sham_libraries, monkeypatch):
    """The way in which the plugin runs it, with progress as it comes."""
    monkeypatch.setenv("LD_LIBRARY_PATH", str(sham_libraries))
    seen = []
    connection = LocalConnection("here")
    try:
        answer = connection.run_program(
            program_text("cuda"),
            GpuPlan(**SMALL).document(),
            timeout_s=60,
            on_output=lambda stream, text: seen.extend(filter(None, map(parse_progress, text.splitlines()))),
        )
    finally:
        connection.close()
    result = parse_gpu_program_events(answer.stdout.splitlines())

    assert result.complete, answer.stderr
    assert answer.exit_status == 0
    assert {one.total for one in seen if one.total} == {2 * 2 + 13}


def test_another_schema_is_refused(run):
    """A controller of another version."""
    result = run(document={"schema": 99})

    assert not result.complete
    assert "this program speaks schema 1, the plan 99" in result.incomplete_reason


@pytest.mark.parametrize("python", OLD_PYTHONS or [None])
def test_program_runs_on_the_oldest_pythons(run, python):
    """The floor is Python 3.6."""
    if python is None:
        pytest.skip("no Python of 3.6 to 3.9 that starts is installed here")
    result = run(environment=gpus(3), python=python)

    assert result.complete
    assert {one.outcome for one in (*result.transfers, *result.chains)} == {"right"}
    assert {one.ending for one in result.runs} == {"right"}


def test_odd_cases_reach_the_driver(run):
    """Sizes and offsets of the plan are those of the failures."""
    result = run(
        environment=faults("scrambled,pair=0-1,mechanism=copy_engine,from_repeat=1"),
        odd_cases=(OddCase(4093, 1, 2),), sizes=(4 * KIB,), simultaneous=(), **NO_ARMS,
    )  # fmt: skip

    one = result.transfer(ONE, OTHER, "copy_engine")
    assert {(each.size_bytes, each.src_offset, each.dst_offset) for each in one.failures} == {
        (4093, 1, 2),
        (4096, 0, 0),
    }
