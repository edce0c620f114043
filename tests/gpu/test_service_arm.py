"""The all-reduce as the service runs: its environment and its NCCL, and what keeps it from being run."""

from __future__ import annotations

import copy
import dataclasses
import json
from pathlib import Path

import pytest

from pytest_gpuinfra.connection.local import LocalConnection
from pytest_gpuinfra.errors import FactUnavailable
from pytest_gpuinfra.gather.gpu import GpuRuns, GpuRunSettings
from pytest_gpuinfra.subjects.service.as_it_runs import (
    environment_of_service,
    framework_of_service,
    nccl_of_service,
    process_of_service,
)
from pytest_gpuinfra.subjects.service.facts import ServiceFacts
from pytest_gpuinfra.subjects.transfers.judge import judge_service_run
from tests.recorded.story import Story

from .conftest import serving

ONE, OTHER = "0000:01:00.0", "0000:11:00.0"
SHM = {"NCCL_P2P_DISABLE": "1", "NCCL_PROTO": "LL", "OMP_NUM_THREADS": "4", "CUDA_DEVICE_MAX_CONNECTIONS": "1"}
BOOT_ID = Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def service(environment=None, *, opened=(), main=None, **changes) -> ServiceFacts:
    """A running service; `opened` is what its first rank has mapped, `main` changes the main process's answers."""
    story = Story(environment=dict(SHM if environment is None else environment), **changes)
    capture = story.capture(story.spec())
    answers = copy.deepcopy(dict(capture.answers))
    if opened:
        rank = answers["service"]["process 101"]
        rank["opened"]["t"] = json.dumps([*json.loads(rank["opened"]["t"]), *opened])
    if main:
        answers["service"]["process 100"].update(main)
    return ServiceFacts(dataclasses.replace(capture, answers=answers), "sglang-qwen.service")


def runs_of(facts, *, peers=True) -> GpuRuns:
    """The programs on this machine, beside a service."""

    def nobody():
        raise FactUnavailable("kernel log", "not read here")

    return GpuRuns(
        "here",
        GpuRunSettings((ONE, OTHER), ("shm",), peers=peers),
        connection=lambda: LocalConnection("here"),
        host_connection=nobody,
        baseline=nobody,
        boot_id=lambda: BOOT_ID,
        service=None if facts is None else lambda: facts,
    )


@pytest.fixture
def proved(run, sham_libraries, tmp_path):
    """Run the service's arm over the sham driver: proved(facts, environment); the loader finds no NCCL."""
    for name in ("libcuda.so.1", "libnvidia-ml.so.1"):
        (tmp_path / name).symlink_to(sham_libraries / name)

    def go(facts, **environment):
        arm, paths = runs_of(facts).service_arm, nccl_of_service(facts)
        no_pairs = {"mechanisms": (), "simultaneous": (), "chains": ()}
        own = {name: value for name, value in environment.items() if name.startswith("GPUINFRA")}
        with serving({"LD_LIBRARY_PATH": str(tmp_path), **own}) as process:
            plan = {"arms": (arm,), "nccl_paths": paths, "process": process, **no_pairs}
            return run(environment=environment, libraries=tmp_path, **plan).runs[0]

    return go


@pytest.fixture
def sham(sham_libraries):
    """The file of the sham NCCL."""
    return str((sham_libraries / "libnccl.so.2").resolve())


def test_arm_has_the_services_environment_and_its_nccl(sham, proved):
    """What the login has set of NCCL's is taken away, what the service has is set, and its own file is loaded."""
    facts = service(opened=(sham,))
    run = proved(facts, NCCL_ALGO="Tree")

    assert (run.ending, run.transports) == ("right", {"SHM"})
    assert run.environment == SHM
    assert "NCCL_*" in run.unset
    assert run.library is not None
    assert run.library.path == sham
    verdict = judge_service_run(run, "here", run.devices, loaded=nccl_of_service(facts))
    assert verdict.ok
    assert f"with {' '.join(f'{n}={v}' for n, v in sorted(SHM.items()))}; by NCCL 2.28.9 of {sham}" in verdict.observed


def test_login_switches_nothing_off_that_the_service_has_on(sham, proved):
    """NCCL_P2P_DISABLE=1 in our own login does not hide that the service goes peer to peer."""
    assert proved(service({}, opened=(sham,)), NCCL_P2P_DISABLE="1").transports == {"P2P"}


def test_fault_on_the_services_path_fails_its_arm(sham, proved):
    """A wrong sum is found, and what the ranks were given stands in the message."""
    run = proved(service(opened=(sham,)), GPUINFRA_FAULTS="rank_wrong,rank=1")
    verdict = judge_service_run(run, "here", run.devices)

    assert (run.arm, verdict.ending) == ("service", "wrong")
    assert f"rank 1 ({OTHER}) holds 1 wrong" in verdict.observed
    assert "NCCL_PROTO=LL" in verdict.observed


def test_sums_by_another_nccl_than_the_services_prove_nothing(sham, proved):
    """The file that the service has loaded is gone: what was proven is another library."""
    run = proved(service(opened=(sham,)))
    verdict = judge_service_run(run, "here", run.devices, loaded=("/opt/engine/libnccl.so.2.27.3",))

    assert verdict.ending == "error"
    assert "the service has loaded /opt/engine/libnccl.so.2.27.3" in verdict.observed


def test_run_that_says_nothing_of_it_is_an_error():
    """The program ended before."""
    assert judge_service_run(None, "here", ()).ending == "error"


TITLE = {"environ": {"t": json.dumps({"values": {"NCCL_PROTO": "LL"}, "size": 4096, "leading_nul": 90, "odd": 0,
                                      "empty": 0})}}  # fmt: skip
REFUSED = {"environ": {"e": "EACCES: Permission denied"}}


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        (lambda: service(main=TITLE), "is not known whole: NCCL_P2P_DISABLE is unknown"),
        (lambda: service(main=REFUSED), "Permission denied"),
        (lambda: service(state={"ActiveState": "failed", "SubState": "failed", "MainPID": "0"}), "has no process"),
    ],
    ids=["overwritten", "unreadable", "not-running"],
)
def test_environment_that_is_not_known_whole_is_unknown_and_never_unset(facts, words):
    """A variable missing from an overwritten block may be set all the same, so the arm is not run without it."""
    with pytest.raises(FactUnavailable) as error:
        environment_of_service(facts())
    assert words in str(error.value)

    runs = runs_of(facts())
    with pytest.raises(FactUnavailable):
        _ = runs.service_arm
    assert runs._service_arms() == ()


def test_no_service_has_no_arm():
    """Nothing is expected, so nothing is asked."""
    runs = runs_of(None)

    assert runs._service_arms() == ()
    with pytest.raises(FactUnavailable, match="names no service"):
        _ = runs.service_arm


@pytest.mark.parametrize(
    ("environment", "runs_it"),
    [({}, False), ({"NCCL_P2P_DISABLE": "0"}, False), (SHM, True), ({"NCCL_P2P_LEVEL": "LOC"}, True)],
)
def test_blocked_peers_are_not_tried_by_the_services_arm_either(environment, runs_it):
    """Each refused access would stand in the log of a machine in production."""
    runs = runs_of(service(environment), peers=False)

    assert [arm.name for arm in runs._service_arms()] == ["service"] * runs_it


def test_secrets_and_what_writes_files_are_left_out():
    """A masked value is nobody's environment, and nothing of ours may stay on the target."""
    writing = dict.fromkeys(("NCCL_TOPO_DUMP_FILE", "CUDA_COREDUMP_FILE", "TORCH_NCCL_TRACE_BUFFER_SIZE"), "/tmp/x")
    given = {**SHM, "NCCL_TOKEN": "[masked]", "NCCL_TOPO_FILE": "/etc/topo.xml", **writing}
    assert environment_of_service(service(given)) == {**SHM, "NCCL_TOPO_FILE": "/etc/topo.xml"}


def test_services_python_and_nccl_are_told_by_its_start():
    """Where no process has NCCL loaded, the service's library path and Python tell where it would come from."""
    facts = service({**SHM, "LD_LIBRARY_PATH": "/opt/nccl/lib:", "VLLM_NCCL_SO_PATH": "/opt/vllm/libnccl.so.2"})

    assert framework_of_service(facts) == process_of_service(facts) is not None
    assert nccl_of_service(facts) == (
        "/opt/vllm/libnccl.so.2",
        "/opt/nccl/lib/libnccl.so.2",
        "/usr/lib/python3.12/site-packages/nvidia/nccl/lib/libnccl.so.2",
        "/usr/lib/python3.12/dist-packages/nvidia/nccl/lib/libnccl.so.2",
    )


def test_stopped_service_leaves_the_programs_to_what_is_there():
    """No process: the target's own python3, and the loader's NCCL."""
    facts = service(state={"ActiveState": "inactive", "SubState": "dead", "MainPID": "0"})

    assert framework_of_service(facts) is process_of_service(facts) is None
    assert nccl_of_service(facts) == ()


@pytest.mark.parametrize("asked", [None, "/opt/venv/bin/python"])
def test_torch_runs_in_the_services_python_unless_another_is_named(asked):
    """`--gpu-python` wins."""
    facts = service()
    runs = runs_of(facts)
    runs.settings = dataclasses.replace(runs.settings, python=asked)

    assert runs._framework == (None if asked else process_of_service(facts))


def test_rank_that_dies_as_the_service_is_named(sham, proved):
    """Its parent ends as it ended."""
    run = proved(service(opened=(sham,)), GPUINFRA_FAULTS="rank_die,rank=1")

    assert run.ending == "crash"
    assert f"rank 1 ({OTHER}) was ended by SIGSEGV" in run.reason


@pytest.mark.parametrize(("pid", "words"), [(1, "nothing to run as"), (2**22 - 1, "is gone")])
def test_process_that_cannot_be_had_is_said(run, sham, sham_libraries, pid, words):
    """The service's own NCCL is never loaded with other rights."""
    no_pairs = {"mechanisms": (), "simultaneous": (), "chains": ()}
    arm = runs_of(service(opened=(sham,))).service_arm
    one = run(arms=(arm,), nccl_paths=(sham,), process=(pid, 1), **no_pairs).runs[0]

    assert one.ending == "inconclusive"
    assert words in one.reason
