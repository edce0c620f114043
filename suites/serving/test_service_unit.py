"""The systemd service: does it run, will it come back, was it steady, and is what runs what was asked for?"""

from fnmatch import fnmatchcase

import pytest

from pytest_gpuinfra import Expectation, GpuHost, explain
from pytest_gpuinfra.fixtures.host import GpuEvidence
from pytest_gpuinfra.session.items_service import ExpectedOrder
from pytest_gpuinfra.subjects.service.journal import UnitJournal
from pytest_gpuinfra.subjects.service.process import ServiceProcess
from pytest_gpuinfra.subjects.service.python import PythonStart
from pytest_gpuinfra.subjects.service.starts import StartTimes
from pytest_gpuinfra.subjects.service.transport import SeenTransport
from pytest_gpuinfra.subjects.service.unit import UnitState
from pytest_gpuinfra.subjects.verdict import Verdict


@pytest.mark.gpu_judges("service")
def test_service_is_active(gpu_host: GpuHost, gpu_service_state: UnitState) -> None:
    """
    The service is active, and its main process runs.

    Activating is not active: a unit that restarts again and again is activating most of the time.
    """
    state = gpu_service_state
    masked = state.load_state == "masked"

    assert (state.load_state, state.active_state, state.sub_state) == ("loaded", "active", "running"), explain(
        f"{gpu_host.alias}: {state.name}",
        observed=f"{state}; result {state.values.get('Result', '?')}",
        expected="loaded, active (running)",
        why="nothing answers requests, or nothing will after the next restart",
        action=f"systemctl unmask {state.name}, then start it"
        if masked
        else f"journalctl -u {state.name} where it runs; correct the cause, then start it",
    )


@pytest.mark.gpu_expects("service.enabled")
def test_service_starts_at_boot(gpu_host: GpuHost, gpu_service_state: UnitState, gpu_expect: Expectation) -> None:
    """
    The service starts at boot, or does not, as declared.

    A unit that was started by hand and never enabled is gone after the next reboot.
    """
    unmask = f"systemctl unmask {gpu_service_state.name}; " if gpu_service_state.load_state == "masked" else ""

    assert gpu_service_state.enabled == gpu_expect.service.enabled, explain(
        f"{gpu_host.alias}: start of {gpu_service_state.name} at boot",
        observed=gpu_service_state.unit_file_state or "no unit file",
        expected="enabled" if gpu_expect.service.enabled else "not enabled",
        why="after a reboot nothing serves, or something serves that must not",
        action=f"{unmask}systemctl {'enable' if gpu_expect.service.enabled else 'disable'} {gpu_service_state.name}",
    )


@pytest.mark.gpu_expects("service.enabled")
def test_service_is_pulled_in_at_boot(
    gpu_host: GpuHost, gpu_service_state: UnitState, gpu_service_pulled_in: bool, gpu_expect: Expectation
) -> None:
    """
    The target that the system boots into starts the service, or does not, as declared.

    An enabled unit that is wanted by another target than that one stays down after a reboot.
    """
    wanted = " ".join(gpu_service_state.values.get(key, "") for key in ("WantedBy", "RequiredBy")).strip()

    assert gpu_service_pulled_in == gpu_expect.service.enabled, explain(
        f"{gpu_host.alias}: start of {gpu_service_state.name} by the default target",
        observed=f"{'' if gpu_service_pulled_in else 'not '}pulled in; wanted by {wanted or 'nothing'}",
        expected="pulled in" if gpu_expect.service.enabled else "not pulled in",
        why="after a reboot nothing serves, or something serves that must not",
        action="compare WantedBy= in [Install] with `systemctl get-default`, correct one, and enable it anew",
    )


@pytest.mark.gpu_expects("service.restarts_max")
def test_service_was_not_restarted_by_systemd(
    gpu_host: GpuHost, gpu_service_state: UnitState, gpu_service_restarts: int, gpu_expect: Expectation
) -> None:
    """
    systemd did not have to restart the service more often than declared.

    A service that fails and comes back answers most health checks, and drops requests each time.
    """
    assert gpu_service_restarts <= gpu_expect.service.restarts_max, explain(
        f"{gpu_host.alias}: restarts of {gpu_service_state.name}",
        observed=f"{gpu_service_restarts} since it was last started by hand; now {gpu_service_state.sub_state}",
        expected=f"{gpu_expect.service.restarts_max} at most",
        why="it flaps: each failure drops the requests in flight and loads the model again",
        action=f"journalctl -u {gpu_service_state.name}: what ended the runs before this one",
    )


def test_service_is_not_started_again_and_again(
    gpu_host: GpuHost, gpu_service_state: UnitState, gpu_service_starts: StartTimes
) -> None:
    """
    Nothing starts the service anew every few seconds or minutes.

    Of a timer or a script that does, systemd counts no restart.
    """
    assert gpu_service_starts.loop_s is None, explain(
        f"{gpu_host.alias}: starts of {gpu_service_state.name}",
        observed=f"one every {gpu_service_starts.loop_s:.0f} s; {gpu_service_starts}",
        expected="no start that follows the one before in a short while, again and again",
        why="each start drops the requests in flight and loads the model again",
        action=f"find what starts it: systemctl list-timers; journalctl -u {gpu_service_state.name}",
    )


def test_no_process_of_the_service_is_stopped(
    gpu_host: GpuHost, gpu_service_state: UnitState, gpu_service_stopped: tuple[str, ...]
) -> None:
    """
    Every process of the service runs: none is stopped, traced or frozen.

    A stopped rank holds its GPU, and every request waits for it for ever.
    """
    assert gpu_service_stopped == (), explain(
        f"{gpu_host.alias}: processes of {gpu_service_state.name}",
        observed="; ".join(gpu_service_stopped),
        expected="none stopped",
        why="the others wait for it in the next collective, and /health may still answer",
        action="let it go on (kill -CONT, systemctl thaw), and find who stopped it",
    )


def test_settings_of_the_unit_are_in_effect(
    gpu_host: GpuHost, gpu_service_state: UnitState, gpu_service_settings: Verdict
) -> None:
    """
    The unit's files amount to one command, and no word of its environment is dropped.

    systemd passes over a word of Environment= that is no assignment, and starts the service without it.
    """
    assert gpu_service_settings.ok, explain(
        f"{gpu_host.alias}: files of {gpu_service_state.name}",
        observed=gpu_service_settings.observed,
        expected=gpu_service_settings.expected,
        why=gpu_service_settings.why,
        action=gpu_service_settings.action,
    )


@pytest.mark.gpu_judges("service.after", "service.before")
def test_service_is_ordered(gpu_host: GpuHost, gpu_service_order: ExpectedOrder, gpu_service_state: UnitState) -> None:
    """
    The service is ordered after, or before, another unit as declared.

    Without an order, which of two units is first differs from boot to boot.
    """
    assert gpu_service_order.unit in gpu_service_state.words(gpu_service_order.key), explain(
        f"{gpu_host.alias}: {gpu_service_state.name}, {gpu_service_order.key} {gpu_service_order.unit}",
        observed=f"{gpu_service_order.key}={gpu_service_state.values.get(gpu_service_order.key, '')}",
        expected=f"{gpu_service_order.key} names {gpu_service_order.unit}",
        why="at some boots it starts before what it needs, and fails or runs without it",
        action=f"add {gpu_service_order.key}={gpu_service_order.unit} to [Unit], and reload",
    )


def test_unit_file_verifies(
    gpu_host: GpuHost, gpu_service_state: UnitState, gpu_service_complaints: tuple[str, ...]
) -> None:
    """
    `systemd-analyze verify` has nothing to say of the unit.

    systemd passes over a key that it does not know, and starts the service without it.
    """
    assert gpu_service_complaints == (), explain(
        f"{gpu_host.alias}: unit file of {gpu_service_state.name}",
        observed="; ".join(gpu_service_complaints),
        expected="no complaint",
        why="a setting that looks as if it were in effect is not",
        action="correct the line that it names, reload, restart",
    )


def test_service_was_not_killed_for_memory(
    gpu_host: GpuHost, gpu_service_state: UnitState, gpu_service_journal: UnitJournal
) -> None:
    """
    No process of the service was killed for want of memory since it was started.

    Workers that are killed leave a main process that still answers /health.
    """
    assert gpu_service_journal.memory_kills == (), explain(
        f"{gpu_host.alias}: out-of-memory kills in {gpu_service_state.name}",
        observed="; ".join(gpu_service_journal.memory_kills),
        expected="none",
        why="a rank or worker is gone, or was replaced in the middle of its work",
        action="give it more memory, or a smaller cache; see MemoryMax and the kernel's log",
    )


def test_no_error_in_the_services_log(
    gpu_host: GpuHost, gpu_service_state: UnitState, gpu_service_journal: UnitJournal, gpu_expect: Expectation
) -> None:
    """
    The service logged no error since it was started.

    A traceback at the start, or a CUDA error, is often the only sign of a fallback to something slower or wrong.
    """
    errors = gpu_service_journal.errors(gpu_expect.service.allow_log)

    assert errors == (), explain(
        f"{gpu_host.alias}: errors in the log of {gpu_service_state.name}",
        observed=f"{len(errors)} lines, the first: {' | '.join(errors[:3])}",
        expected="none",
        why="the engine met what it did not expect",
        action="read the log around them; name what is harmless in service.allow_log",
    )


def test_engine_admits_no_fallback(
    gpu_host: GpuHost, gpu_service_state: UnitState, gpu_service_admissions: Verdict, gpu_evidence: GpuEvidence
) -> None:
    """
    The engine does not admit in its log that it does something slower or less exact than it was asked for.

    Missing scales, untuned kernels, another backend: one line at the start, and the service answers all the same.
    """
    gpu_evidence.attach("noted", "\n".join(gpu_service_admissions.warnings) or "nothing")

    assert gpu_service_admissions.ok, explain(
        f"{gpu_host.alias}: what {gpu_service_state.name} admits in its log",
        observed=gpu_service_admissions.observed,
        expected=gpu_service_admissions.expected,
        why=gpu_service_admissions.why,
        action=gpu_service_admissions.action,
    )


def test_nccl_of_the_service_is_in_order(
    gpu_host: GpuHost, gpu_service_state: UnitState, gpu_service_nccl: Verdict
) -> None:
    """
    NCCL's lines in the service's log tell of no trouble, and of the transport that was asked for.

    A transport is chosen at the start and logged once; what was asked for by a variable may not be what was chosen.
    """
    assert gpu_service_nccl.ok, explain(
        f"{gpu_host.alias}: NCCL of {gpu_service_state.name}",
        observed=gpu_service_nccl.observed,
        expected=gpu_service_nccl.expected,
        why=gpu_service_nccl.why,
        action=gpu_service_nccl.action,
    )


def test_drafts_in_the_services_log_are_accepted(
    gpu_host: GpuHost, gpu_service_state: UnitState, gpu_service_speculation: Verdict
) -> None:
    """
    Where the service's log counts speculation, drafts are accepted.

    It tells of the users' own requests, which no request of ours repeats.
    """
    assert gpu_service_speculation.ok, explain(
        f"{gpu_host.alias}: speculation in {gpu_service_state.name}",
        observed=gpu_service_speculation.observed,
        expected=gpu_service_speculation.expected,
        why=gpu_service_speculation.why,
        action=gpu_service_speculation.action,
    )


@pytest.mark.gpu_expects("service.engine")
def test_engine_is_the_expected_one(
    gpu_host: GpuHost,
    gpu_service_processes: tuple[ServiceProcess, ...],
    gpu_service_engine: str,
    gpu_expect: Expectation,
) -> None:
    """
    The service's processes belong to the declared engine.

    A unit can be pointed at another engine and keep its name.
    """
    assert gpu_service_engine == gpu_expect.service.engine, explain(
        f"{gpu_host.alias}: engine of {gpu_host.selected.spec.service}",
        observed=gpu_service_engine,
        expected=gpu_expect.service.engine,
        why="what was proven was proven with the other engine",
        action="compare ExecStart with the user's copy",
    )


@pytest.mark.gpu_expects("service.python")
def test_python_is_the_expected_one(
    gpu_host: GpuHost, gpu_service_python: PythonStart, gpu_expect: Expectation
) -> None:
    """
    The service runs in the declared Python.

    The system's Python and a virtual environment have different packages and different sitecustomize files.
    """
    assert fnmatchcase(gpu_service_python.executable, gpu_expect.service.python or ""), explain(
        f"{gpu_host.alias}: Python of {gpu_host.selected.spec.service}",
        observed=f"{gpu_service_python.executable} ({gpu_service_python.version})",
        expected=gpu_expect.service.python,
        why="torch, NCCL and the defaults of sitecustomize come from it",
        action="correct ExecStart, or the wrapper that it calls",
    )


@pytest.mark.gpu_expects("service.ranks")
def test_every_rank_runs(
    gpu_host: GpuHost,
    gpu_service_processes: tuple[ServiceProcess, ...],
    gpu_service_ranks: tuple[ServiceProcess, ...],
    gpu_expect: Expectation,
) -> None:
    """
    The service has as many ranks as declared.

    A model that is split over fewer GPUs than thought serves, and has less room for its cache.
    """
    assert len(gpu_service_ranks) == gpu_expect.service.ranks, explain(
        f"{gpu_host.alias}: ranks of {gpu_host.selected.spec.service}",
        observed=f"{len(gpu_service_ranks)}: {', '.join(map(str, gpu_service_ranks)) or 'none'}; "
        f"{len(gpu_service_processes)} processes in all",
        expected=gpu_expect.service.ranks,
        why="a rank is missing, or the model is split otherwise than declared",
        action="see the arguments in effect, and the service's log for a rank that ended",
    )


@pytest.mark.gpu_expects("service.transport")
def test_ranks_use_the_expected_transport(
    gpu_host: GpuHost, gpu_service_transport: SeenTransport, gpu_expect: Expectation
) -> None:
    """
    The running ranks are seen to use the declared transport.

    What was asked for by variables and what NCCL does are two facts; shared files in /dev/shm show the second.
    """
    assert gpu_service_transport.words == gpu_expect.service.transport, explain(
        f"{gpu_host.alias}: transport between the ranks of {gpu_host.selected.spec.service}",
        observed=gpu_service_transport,
        expected=gpu_expect.service.transport,
        why="data goes over a path that was not proven, or over a slower one",
        action="see NCCL_P2P_DISABLE and NCCL_SHM_DISABLE in effect in every rank, and restart the service",
    )
