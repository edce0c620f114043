"""
The plugin: options, and the hooks that turn hosts into items.

Without `--gpu-host` it registers options and fixtures and does nothing else.
"""

from __future__ import annotations

import gc
from collections.abc import Generator, Sequence
from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpuinfra.options import add_options
from pytest_gpuinfra.session.start import begin
from pytest_gpuinfra.session.stash import INTERRUPTS, TARGET_FIXTURE, WORKER_KEY, session_of, target_of

if TYPE_CHECKING:
    from xdist.scheduler.protocol import Scheduling


pytest_plugins = (
    "pytest_gpuinfra.fixtures.host",
    "pytest_gpuinfra.fixtures.baseline",
    "pytest_gpuinfra.fixtures.endpoint",
    "pytest_gpuinfra.fixtures.gpu",
    "pytest_gpuinfra.fixtures.service",
)

_AUTO_WORKERS = 32
_PYTEST_SESSION: pytest.StashKey[pytest.Session] = pytest.StashKey()
_INTERRUPTION: pytest.StashKey[BaseException] = pytest.StashKey()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options; none of them is required."""
    add_options(parser)


def pytest_addhooks(pluginmanager: pytest.PytestPluginManager) -> None:
    """Declare our own hooks."""
    from pytest_gpuinfra import hooks

    pluginmanager.add_hookspecs(hooks)


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Find out which hosts are meant, before any is touched; take our suites if no path is given."""
    config.addinivalue_line(
        "markers",
        "gpu_expects(key, ...): skip unless the inventory expects this of the host, or device.KEY of the GPU",
    )
    config.addinivalue_line("markers", "gpu_judges(key, ...): judge what the inventory expects by this, and run anyway")
    config.addinivalue_line("markers", "gpu_level(level): passive, active or disruptive; skip above --gpu-level")
    ours = begin(config)
    if ours is None:
        return
    if ours.share_of and not ours.selected:
        pytest.exit(
            f"gpuinfra: --gpu-shard: {ours.share_of}: nothing is judged here, and the other shares judge all of them",
            returncode=pytest.ExitCode.NO_TESTS_COLLECTED,
        )
    from pytest_gpuinfra.fixtures import endings

    config.pluginmanager.register(endings, "gpuinfra-endings")
    config.pluginmanager.register(endings.AskedFor(), "gpuinfra-asked-for")
    from pytest_gpuinfra.fixtures.suites import suite_files
    from pytest_gpuinfra.report.masked import MaskedReports
    from pytest_gpuinfra.session.ledger import LEDGER, Ledger

    config.stash[LEDGER] = Ledger(config, ours, suite_files())
    config.pluginmanager.register(config.stash[LEDGER], "gpuinfra-ledger")
    config.pluginmanager.register(MaskedReports(ours), "gpuinfra-masked")
    if config.args_source is pytest.Config.ArgsSource.INVOCATION_DIR:
        from pytest_gpuinfra.fixtures.suites import suites_path

        config.args = [str(suites_path())]
    if not hasattr(config, "workerinput"):
        from pytest_gpuinfra.report.results import ResultsPlugin
        from pytest_gpuinfra.report.work import WorkProgress

        config.pluginmanager.register(ResultsPlugin(config, ours), "gpuinfra-results")
        ours.factory.on_progress = WorkProgress(config)
    if config.getoption("allure_report_dir", None):
        from pytest_gpuinfra.report.allure_labels import AllurePlugin

        config.pluginmanager.register(AllurePlugin(config, ours), "gpuinfra-allure")


@pytest.hookimpl(tryfirst=True)
def pytest_sessionstart(session: pytest.Session) -> None:
    """
    Capture every host, on the controller, before the header is printed.

    An interruption is raised again once pytest writes reports about interrupted sessions, which it does not do yet.
    """
    ours = session_of(session.config)
    if ours is None or hasattr(session.config, "workerinput"):
        return
    session.config.stash[_PYTEST_SESSION] = session
    from pytest_gpuinfra.report.progress import CaptureProgress

    try:
        with CaptureProgress(session.config, ours) as progress:
            extra = session.config.hook.pytest_gpuinfra_requests(config=session.config)
            requests = [dict(request) for answer in extra for request in answer]
            ours.captures.take_all(requests, progress.done, progress.look)
    except (KeyboardInterrupt, pytest.exit.Exception) as interruption:
        session.config.stash[_INTERRUPTION] = interruption


def pytest_report_header(config: pytest.Config) -> list[str]:
    """Say what was reached, how, and how long it took."""
    ours = session_of(config)
    if ours is None:
        return []
    from pytest_gpuinfra.report.header import header_lines

    return header_lines(ours)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Make one item for each host, device, parameter or unit that a test is about."""
    ours = session_of(metafunc.config)
    if ours is None or TARGET_FIXTURE not in metafunc.fixturenames:
        return
    from pytest_gpuinfra.masking import mask_text
    from pytest_gpuinfra.session.items import KINDS

    kinds = [name for name in metafunc.fixturenames if name in KINDS]
    if len(kinds) > 1:
        pytest.fail(
            f"{metafunc.function.__name__} takes {' and '.join(kinds)}: a test is about one of them",
            pytrace=False,
        )
    targets = ours.targets_for(kinds[0] if kinds else "gpu_host")
    ids = [mask_text(target.id) for target in targets]
    metafunc.parametrize(TARGET_FIXTURE, targets, indirect=True, scope="session", ids=ids)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection(session: pytest.Session) -> Generator[None, object, object]:
    """Keep Python from looking for garbage while items are made, of which there may be a hundred thousand."""
    if _INTERRUPTION in session.config.stash:
        raise session.config.stash[_INTERRUPTION]
    if session_of(session.config) is None or not gc.isenabled():
        return (yield)
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Bring items about hosts into the order of hosts, then of the suites, then of the targets; the baseline last."""
    ours = session_of(config)
    if ours is None:
        return
    if not ours.hosts:  # a worker of xdist that was dealt none
        items[:] = [item for item in items if TARGET_FIXTURE not in getattr(item, "fixturenames", ())]
    from pytest_gpuinfra.session.order import order_by_host

    order_by_host(items, ours.selected)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_finish(session: pytest.Session) -> None:
    """In a worker of xdist, report which host each item is about, before xdist reports the items."""
    ours = session_of(session.config)
    worker: dict[str, Any] | None = getattr(session.config, "workerinput", None)
    if ours is not None and worker is not None:
        targets = ((item.nodeid, target_of(item)) for item in session.items)
        items = [(nodeid, target.host if target is not None else None) for nodeid, target in targets]
        ours.handover.report_items(worker["workerid"], items)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_setupnodes(config: pytest.Config, specs: list[object]) -> None:
    """Start no worker of xdist where the captures were interrupted."""
    if _INTERRUPTION in config.stash:
        specs.clear()


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Deal a worker of xdist its hosts, with their captures, so that no host is asked twice."""
    ours = session_of(node.config)
    if ours is not None:
        node.workerinput[WORKER_KEY] = ours.handover.give(node.gateway.id, node.workerinput["workercount"])
        pid = getattr(getattr(getattr(node.gateway, "_io", None), "popen", None), "pid", None)
        if pid is not None:  # only those on this machine have one
            node.config.stash[INTERRUPTS].workers.add(pid)


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """In a worker of xdist, hand over what was gathered, for the recording. What is written is not interrupted."""
    ours = session_of(session.config)
    if ours is None:
        return
    session.config.stash[INTERRUPTS].finishing()
    xdist: Any = session.config.pluginmanager.get_plugin("dsession")
    if ours.interrupted and xdist is not None:
        xdist.nodemanager.EXIT_TIMEOUT = 1  # its workers were interrupted, too
    output: dict[str, Any] | None = getattr(session.config, "workeroutput", None)
    if output is not None:
        gathered = {alias: found for alias, host in ours.hosts.items() if (found := host.gathered())}
        output[WORKER_KEY] = gathered
        if ours.interrupted:
            ours.handover.leave(session.config.workerinput["workerid"], gathered)  # type: ignore[attr-defined]


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: object) -> None:
    """Take over what a worker gathered; the hosts of one that crashed go to the one that takes its place."""
    ours = session_of(node.config)
    if ours is None:
        return
    ours.gathered.update(getattr(node, "workeroutput", {}).get(WORKER_KEY, {}))
    if error and ours.handover.deal is not None:
        ours.handover.deal.crashed(node.gateway.id)


@pytest.hookimpl(optionalhook=True)
def pytest_handlecrashitem(report: pytest.TestReport, sched: object) -> None:
    """Note in the report of an item that a worker died in which host it is about, as reports of others have it."""
    from pytest_gpuinfra.session.scheduler import HostScheduling

    if isinstance(sched, HostScheduling):
        alias = sched.host_of_crashed(report.nodeid)
        if alias is not None:
            report.user_properties.append(("gpu_host", alias))


@pytest.hookimpl(optionalhook=True, tryfirst=True)
def pytest_xdist_make_scheduler(config: pytest.Config) -> Scheduling | None:
    """Deal out whole hosts, whatever --dist says: results of one host belong together."""
    ours = session_of(config)
    if ours is None or ours.handover.deal is None:
        return None
    from pytest_gpuinfra.session.scheduler import HostScheduling

    session = config.stash[_PYTEST_SESSION]

    def hosts_of(worker: str, nodeids: Sequence[str]) -> list[str | None]:
        items = ours.handover.reported_items(worker)
        if [nodeid for nodeid, _ in items] != list(nodeids):
            pytest.exit(
                f"gpuinfra: a plugin changed the items of worker {worker} in pytest_collection_finish, so that nobody "
                "knows their hosts; leave it out (-p no:NAME), or let it use pytest_collection_modifyitems",
                returncode=pytest.ExitCode.INTERNAL_ERROR,
            )
        return [alias for _, alias in items]

    def on_total(items: int) -> None:
        session.testscollected = items  # xdist notes what one worker has

    ours.handover.scheduling = HostScheduling(ours.handover.deal, hosts_of, on_total)
    return ours.handover.scheduling


@pytest.hookimpl(optionalhook=True, tryfirst=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int | None:
    """With `-n auto`, one worker a host, 32 at most: they wait for targets, not for this machine's cores."""
    ours = begin(config)
    return min(max(1, len(ours.selected)), _AUTO_WORKERS) if ours is not None else None


@pytest.hookimpl(wrapper=True, trylast=True)
def pytest_unconfigure(config: pytest.Config) -> Generator[None, None, None]:
    """End the connections, whatever happened."""
    try:
        return (yield)
    finally:
        ours = session_of(config)
        if ours is not None:
            ours.close()
            config.stash[INTERRUPTS].restore()
