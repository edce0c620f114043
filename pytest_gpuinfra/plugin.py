"""
The plugin: options, and the hooks that turn hosts into items.

Without `--gpu-host` it registers options and fixtures and does nothing else.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Generator, Sequence
from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpuinfra.session.stash import RUN, TARGET_FIXTURE, run_of, target_of

if TYPE_CHECKING:
    from xdist.scheduler.protocol import Scheduling

    from pytest_gpuinfra.connection.ssh import SshConnection
    from pytest_gpuinfra.session.interrupt import Interrupts
    from pytest_gpuinfra.session.run import Run

pytest_plugins = (
    "pytest_gpuinfra.fixtures.host",
    "pytest_gpuinfra.fixtures.baseline",
    "pytest_gpuinfra.fixtures.endpoint",
    "pytest_gpuinfra.fixtures.gpu",
    "pytest_gpuinfra.fixtures.service",
)

_WORKER_KEY = "gpuinfra"
_AUTO_WORKERS = 32
_SESSION: pytest.StashKey[pytest.Session] = pytest.StashKey()
_INTERRUPTS: pytest.StashKey[Interrupts] = pytest.StashKey()
_INTERRUPTION: pytest.StashKey[BaseException] = pytest.StashKey()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options; none of them is required."""
    group = parser.getgroup("gpuinfra", "GPU hosts (pytest-gpuinfra)")
    group.addoption(
        "--gpu-host",
        action="append",
        default=[],
        metavar="HOST",
        help="host to judge; repeats. An alias of the inventory, a glob of aliases, 'all', a group of it (@rack1), a "
        "hostlist (node[01-64], root@node[1-4,7]), an ssh destination (root@node-a, ssh://root@node-a:2222, anything "
        "that ssh(1) resolves), 'local' for this machine (local:ALIAS: under that name), ansible:FILE[:GROUP], "
        "slurm:PARTITION or slurm:NODES, or replay:FILE for a recording. Without a path, the whole suite runs",
    )
    group.addoption(
        "--gpu-inventory",
        metavar="FILE",
        help="what is expected of the hosts (default: gpuinfra.toml in this directory, or above it "
        "up to the top of the repository or pytest's root directory)",
    )
    group.addoption(
        "--gpu-level",
        choices=("passive", "active", "disruptive"),
        default="active",
        help="highest level of checks that may run: passive reads, active also loads GPUs and asks the endpoint "
        "for a short while, disruptive also restarts things (default: active)",
    )
    group.addoption("--gpu-sudo", action="store_true", help="on the targets, be root through `sudo -n`")
    group.addoption(
        "--gpu-sudo-read",
        dest="gpu_sudo",
        action="store_const",
        const="read",
        default=False,
        help="on the targets, only read what root reads: every file and the kernel's log, as the account that logs in, "
        "by the sudoers file that `gpuinfra sudoers` prints. What this cannot read ends in ERROR and says so "
        "(docs/security.md)",
    )
    group.addoption("--gpu-ssh-config", metavar="FILE", help="config file for ssh(1), in place of your own (ssh -F)")
    group.addoption(
        "--gpu-connect-timeout",
        type=_seconds,
        default=30.0,
        metavar="SECONDS",
        help="until a target must have started python3, its login shell included (default: 30)",
    )
    group.addoption(
        "--gpu-deadline",
        type=_seconds,
        default=60.0,
        metavar="SECONDS",
        help="for all passive readings of a host together (default: 60)",
    )
    group.addoption(
        "--gpu-deadline-all",
        type=_seconds,
        metavar="SECONDS",
        help="for the passive readings of all hosts together; those that have not answered by then end in ERROR "
        "(default: no limit but each host's own)",
    )
    group.addoption(
        "--gpu-parallel",
        type=_count,
        default=32,
        metavar="N",
        help="hosts that are read at the same time; one that takes much longer than the others gives its place to the "
        "next, up to 4 times as many (default: 32)",
    )
    group.addoption(
        "--gpu-shard",
        type=_shard,
        metavar="I/N",
        help="of the hosts, only those of share I of N (1/4, 2/4, ...); a host is in the same share whatever other "
        "hosts are named. Each share is a run of its own",
    )
    group.addoption(
        "--gpu-subsets",
        choices=("none", "pairs", "all"),
        default="none",
        help="all-reduce also over subsets of a host's GPUs: every pair, or every subset (default: none)",
    )
    group.addoption(
        "--gpu-python",
        type=_program,
        metavar="FILE",
        help="Python on the target that has torch, for the checks by torch (default: the service's, else python3)",
    )
    group.addoption(
        "--gpu-endpoint",
        type=_endpoint,
        metavar="URL",
        help="inference endpoint of every host, as seen from where the service runs (http://localhost:30000), in place "
        "of the inventory's; it is asked, and its name resolved, there, through a tunnel. 'embedded' starts "
        "llama.cpp's server with a tiny model on this machine (extra 'demo'); 'none' leaves endpoints out",
    )
    group.addoption(
        "--gpu-wait",
        type=_seconds,
        default=0.0,
        metavar="SECONDS",
        help="how long to wait until a host is back, its units have settled, and its endpoint is ready "
        "(default: look once)",
    )
    group.addoption(
        "--gpu-prompts",
        action="append",
        default=[],
        metavar="FILE",
        help="questions with known answers, beside those that come along; repeats",
    )
    group.addoption(
        "--gpu-api-key-env",
        metavar="NAME",
        help="environment variable that holds the endpoint's API key; the key itself is never written down",
    )
    group.addoption(
        "--gpu-recording",
        metavar="FILE",
        help="where this run's recording goes (default: reports/recordings/TIME.json); 'none' for nowhere",
    )
    group.addoption(
        "--gpu-baseline",
        metavar="FILE",
        help="an earlier recording: every host must be as it was then, one check for each area of facts",
    )
    group.addoption(
        "--gpu-allow-change",
        action="append",
        default=[],
        metavar="PATTERN",
        help="a change since the baseline that was meant, as `gpuinfra compare --allow` takes it; repeats",
    )
    group.addoption(
        "--gpu-after-reboot",
        action="store_true",
        help="every host must have booted since the baseline; with --gpu-wait, wait until it has",
    )
    group.addoption(
        "--gpu-reboot",
        action="store_true",
        help="reboot every host first, all at the same time, wait until it is back, and judge it as with "
        "--gpu-after-reboot; only with --gpu-level=disruptive. Without --gpu-baseline the host is compared with itself "
        "before the reboot, without --gpu-wait it may take 1200 seconds",
    )
    group.addoption(
        "--gpu-summary",
        action="append",
        type=_page,
        default=[],
        metavar="FILE",
        help="write the run on one page: FILE.md for a pull request's comment, FILE.html for a browser or a mail; "
        "repeats. `gpuinfra report RECORDING` makes the same later",
    )
    group.addoption(
        "--gpu-outliers",
        choices=("report", "fail"),
        default="report",
        help="what a host is worth that is slower or hotter than the other hosts of its kind, where there are five or "
        "more: report names it, fail also ends with status 1 (default: report)",
    )
    group.addoption(
        "--gpu-unknown",
        choices=("error", "fail", "allow"),
        default="error",
        help="what a fact that could not be observed is worth, where nothing was seen wrong: error ends with status 6, "
        "fail with 1, allow with 0 as long as something was observed of every host (default: error)",
    )


def _seconds(text: str) -> float:
    import argparse

    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < 1e6:
        raise argparse.ArgumentTypeError(f"takes a number of seconds above 0, not {text!r}")
    return value


def _page(text: str) -> str:
    import argparse

    if not text.endswith((".md", ".html", ".htm")):
        raise argparse.ArgumentTypeError(f"takes FILE.md or FILE.html, not {text!r}")
    return text


def _endpoint(text: str) -> str:
    import argparse

    from pytest_gpuinfra.connection.destination import url_refusal

    reason = "" if text in ("embedded", "none") else url_refusal(text)
    if reason:
        raise argparse.ArgumentTypeError(f"takes a URL, 'embedded' or 'none': {reason}: {text!r}")
    return text


def _program(text: str) -> str:
    import argparse

    if text.startswith("-") or not text.isprintable() or not text.strip():
        raise argparse.ArgumentTypeError(f"takes a program on the target, not {text!r}")
    return text


def _count(text: str) -> int:
    import argparse

    if not text.isdecimal() or not 0 < int(text) <= 1000:
        raise argparse.ArgumentTypeError(f"takes a number from 1 to 1000, not {text!r}")
    return int(text)


def _shard(text: str) -> tuple[int, int]:
    import argparse

    share, sign, shares = text.partition("/")
    if not (sign and share.isdecimal() and shares.isdecimal() and 1 <= int(share) <= int(shares)):
        raise argparse.ArgumentTypeError(f"takes I/N with I from 1 to N, such as 2/8, not {text!r}")
    return int(share), int(shares)


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
    run = _make_run(config)
    if run is None:
        return
    if run.share_of and not run.selected:
        pytest.exit(
            f"gpuinfra: --gpu-shard: {run.share_of}: nothing is judged here, and the other shares judge all of them",
            returncode=pytest.ExitCode.NO_TESTS_COLLECTED,
        )
    from pytest_gpuinfra.fixtures import endings

    config.pluginmanager.register(endings, "gpuinfra-endings")
    config.pluginmanager.register(endings.AskedFor(), "gpuinfra-asked-for")
    from pytest_gpuinfra.capture.spool import IN_MEMORY
    from pytest_gpuinfra.fixtures.suites import suite_files
    from pytest_gpuinfra.report.masked import MaskedReports
    from pytest_gpuinfra.session.ledger import LEDGER, Ledger

    config.stash[LEDGER] = Ledger(config, run, suite_files())
    config.pluginmanager.register(config.stash[LEDGER], "gpuinfra-ledger")
    config.pluginmanager.register(MaskedReports(run), "gpuinfra-masked")
    if len(run.all_aliases or run.selected) > IN_MEMORY:
        from pytest_gpuinfra.report.lean import Lean

        config.pluginmanager.register(Lean(config), "gpuinfra-lean")
        from pytest_gpuinfra.session.portions import Portions

        if Portions.wanted(config, run):
            config.pluginmanager.register(Portions(run), "gpuinfra-portions")
    if config.args_source is pytest.Config.ArgsSource.INVOCATION_DIR:
        from pytest_gpuinfra.fixtures.suites import suites_path

        config.args = [str(suites_path())]
    if not hasattr(config, "workerinput"):
        from pytest_gpuinfra.report.results import ResultsPlugin
        from pytest_gpuinfra.report.work import WorkProgress

        config.pluginmanager.register(ResultsPlugin(config, run), "gpuinfra-results")
        run.on_progress = WorkProgress(config)
    if config.getoption("allure_report_dir", None):
        from pytest_gpuinfra.report.allure_labels import AllurePlugin

        config.pluginmanager.register(AllurePlugin(config, run), "gpuinfra-allure")


def _make_run(config: pytest.Config) -> Run | None:
    """Make the session's run, once; None without `--gpu-host`. Bad input ends in pytest's usage error."""
    names = config.getoption("--gpu-host")
    if not names or RUN in config.stash:
        return config.stash.get(RUN, None)
    from pytest_gpuinfra.session.interrupt import Interrupts

    _refuse_reboot(config, {})
    ssh_config = config.getoption("--gpu-ssh-config")
    if ssh_config and os.path.exists(ssh_config) and not os.path.isfile(ssh_config):
        raise pytest.UsageError(f"gpuinfra: --gpu-ssh-config={ssh_config}: is no regular file")
    early = _open_early(config, names)
    try:
        run = _read_run(config, names)
    except BaseException:
        if early:
            from pytest_gpuinfra.connection.ssh import close_sockets

            for connection in early.values():
                connection.close()
            close_sockets()
        raise
    config.stash[RUN] = run
    config.stash[_INTERRUPTS] = Interrupts(run)
    if not hasattr(config, "workerinput") and not config.option.help:
        run.open_early(early)
    return run


def _refuse_reboot(config: pytest.Config, ways: dict[str, str]) -> None:
    """End in a usage error where `--gpu-reboot` was asked for and may not be; `ways`: how each host is reached."""
    if not config.getoption("--gpu-reboot") or config.option.help:
        return
    from pytest_gpuinfra.gather.reboot import refusal

    collects = config.option.collectonly
    why = refusal(config.getoption("--gpu-level"), only_collects=collects, hosts=ways)
    if why:
        raise pytest.UsageError(f"gpuinfra: {why}")


def _open_early(config: pytest.Config, names: list[str]) -> dict[str, SshConnection]:
    """
    Begin to log in where no inventory has a say, before all that is imported below.

    Of many hosts, and with workers, a connection begins and ends with its capture; of a share, others are named, too.
    """
    if hasattr(config, "workerinput") or config.option.help or config.getoption("--gpu-inventory"):
        return {}
    parallel = config.getoption("--gpu-parallel")
    if config.getoption("--gpu-shard") or not _keeps_connections(config) or len(names) > parallel:
        return {}
    if config.hook.pytest_gpuinfra_inventory.get_hookimpls():
        return {}
    from pytest_gpuinfra.session.early import open_plain_destinations
    from pytest_gpuinfra.session.inventory_place import FILE_NAME, inventory_folder, inventory_folders

    return open_plain_destinations(
        names,
        inventory_folder(inventory_folders(config.invocation_params.dir, config.rootpath)) / FILE_NAME,
        ssh_config=config.getoption("--gpu-ssh-config"),
        sudo=config.getoption("--gpu-sudo"),
        connect_timeout_s=config.getoption("--gpu-connect-timeout"),
    )


def _keeps_connections(config: pytest.Config) -> bool:
    """Whether what follows a capture runs in this process, so that its connection is of use."""
    return config.getoption("dist", "no") == "no" and not config.getoption("numprocesses", None)


def _read_run(config: pytest.Config, names: list[str]) -> Run:
    from pytest_gpuinfra.errors import GpuInfraError
    from pytest_gpuinfra.record.recording import read_recording
    from pytest_gpuinfra.session.inventory_place import inventory_folder, inventory_folders, missing_text
    from pytest_gpuinfra.session.run import REBOOT_WAIT_S, Run, Settings
    from pytest_gpuinfra.session.select import find_inventory, hosts_of_share, join_inventory, select_hosts

    reboot = config.getoption("--gpu-reboot")
    settings = Settings(
        level=config.getoption("--gpu-level"),
        sudo=config.getoption("--gpu-sudo"),
        ssh_config=config.getoption("--gpu-ssh-config"),
        connect_timeout_s=config.getoption("--gpu-connect-timeout"),
        deadline_s=config.getoption("--gpu-deadline"),
        deadline_all_s=config.getoption("--gpu-deadline-all"),
        parallel=config.getoption("--gpu-parallel"),
        keep_connections=_keeps_connections(config),
        endpoint=config.getoption("--gpu-endpoint"),
        wait_s=config.getoption("--gpu-wait") or (REBOOT_WAIT_S if reboot else 0.0),
        prompts=tuple(config.getoption("--gpu-prompts")),
        api_key_env=config.getoption("--gpu-api-key-env"),
        subsets=config.getoption("--gpu-subsets"),
        python=config.getoption("--gpu-python"),
        after_reboot=config.getoption("--gpu-after-reboot") or reboot,
        reboot=reboot,
        allowed_changes=tuple(config.getoption("--gpu-allow-change")),
    )
    baseline_file = config.getoption("--gpu-baseline")
    if settings.after_reboot and not (baseline_file or reboot):
        raise pytest.UsageError("gpuinfra: --gpu-after-reboot needs --gpu-baseline=FILE, which knows the boot before")
    try:
        baseline = read_recording(config.invocation_params.dir / baseline_file) if baseline_file else None
        worker: dict[str, Any] | None = getattr(config, "workerinput", None)
        if worker is not None:
            run = Run.taken_over(settings, worker[_WORKER_KEY])
        else:
            folders = inventory_folders(config.invocation_params.dir, config.rootpath)
            inventory, source = find_inventory(config.getoption("--gpu-inventory"), inventory_folder(folders))
            no_inventory = "" if source else missing_text(folders)
            for more in config.hook.pytest_gpuinfra_inventory(config=config):
                inventory = join_inventory(inventory, more)
            selected = named = select_hosts(names, inventory, source)
            shard = config.getoption("--gpu-shard")
            if shard:
                selected = hosts_of_share(named, *shard)
            _refuse_reboot(config, {host.alias: host.way for host in selected})
            run = Run(settings, {host.alias: host for host in selected}, collectives=inventory.collectives)
            run.no_inventory = no_inventory
            if shard:
                run.share_of = f"share {shard[0]}/{shard[1]}, {len(selected)} of {len(named)} hosts"
            run.extra_requests = lambda: [
                dict(request) for answer in config.hook.pytest_gpuinfra_requests(config=config) for request in answer
            ]
    except GpuInfraError as error:
        from pytest_gpuinfra.visible import visible

        raise pytest.UsageError(f"gpuinfra: {visible(str(error))}") from None
    run.baseline = baseline
    run.list_baseline_areas()
    return run


@pytest.hookimpl(tryfirst=True)
def pytest_sessionstart(session: pytest.Session) -> None:
    """
    Capture every host, on the controller, before the header is printed.

    An interruption is raised again once pytest writes reports about interrupted sessions, which it does not do yet.
    """
    run = run_of(session.config)
    if run is None or hasattr(session.config, "workerinput"):
        return
    session.config.stash[_SESSION] = session
    from pytest_gpuinfra.report.progress import CaptureProgress

    try:
        with CaptureProgress(session.config, run) as progress:
            run.capture_all(progress.done, progress.look)
    except (KeyboardInterrupt, pytest.exit.Exception) as interruption:
        session.config.stash[_INTERRUPTION] = interruption


def pytest_report_header(config: pytest.Config) -> list[str]:
    """Say what was reached, how, and how long it took."""
    run = run_of(config)
    if run is None:
        return []
    from pytest_gpuinfra.report.header import header_lines

    return header_lines(run)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Make one item for each host, device, parameter or unit that a test is about."""
    run = run_of(metafunc.config)
    if run is None or TARGET_FIXTURE not in metafunc.fixturenames:
        return
    from pytest_gpuinfra.masking import mask_text
    from pytest_gpuinfra.session.items import KINDS

    kinds = [name for name in metafunc.fixturenames if name in KINDS]
    if len(kinds) > 1:
        pytest.fail(
            f"{metafunc.function.__name__} takes {' and '.join(kinds)}: a test is about one of them",
            pytrace=False,
        )
    targets = run.targets_for(kinds[0] if kinds else "gpu_host")
    ids = [mask_text(target.id) for target in targets]
    metafunc.parametrize(TARGET_FIXTURE, targets, indirect=True, scope="session", ids=ids)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection(session: pytest.Session) -> Generator[None, object, object]:
    """Keep Python from looking for garbage while items are made, of which there may be a hundred thousand."""
    if _INTERRUPTION in session.config.stash:
        raise session.config.stash[_INTERRUPTION]
    if run_of(session.config) is None or not gc.isenabled():
        return (yield)
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Bring items about hosts into the order of hosts, then of the suites, then of the targets; the baseline last."""
    run = run_of(config)
    if run is None:
        return
    if not run.hosts:  # a worker of xdist that was dealt none
        items[:] = [item for item in items if TARGET_FIXTURE not in getattr(item, "fixturenames", ())]
    ours = {index: target for index, item in enumerate(items) if (target := target_of(item)) is not None}
    rank = {alias: number for number, alias in enumerate(run.selected)}
    places: dict[object, tuple[str, int]] = {}  # of each test, not of each item: finding a line is slow

    def key(index: int) -> tuple[object, ...]:
        item = items[index]
        test = (item.parent, getattr(item, "originalname", None) or item.name)
        if test not in places:
            places[test] = item.nodeid.partition("::")[0], item.location[1] or 0
        indices: dict[str, int] = getattr(getattr(item, "callspec", None), "indices", {})
        names = getattr(item, "fixturenames", ())  # what compares what the others gather, and what counts them
        last = 2 if "gpu_expectations" in names else ours[index].kind == "gpu_baseline_area"
        return rank[ours[index].host], last, *places[test], indices.get(TARGET_FIXTURE, 0)

    ordered = [items[index] for index in sorted(ours, key=key)]
    for index, item in zip(ours, ordered, strict=True):
        items[index] = item


@pytest.hookimpl(tryfirst=True)
def pytest_collection_finish(session: pytest.Session) -> None:
    """In a worker of xdist, report which host each item is about, before xdist reports the items."""
    run = run_of(session.config)
    worker: dict[str, Any] | None = getattr(session.config, "workerinput", None)
    if run is not None and worker is not None:
        targets = ((item.nodeid, target_of(item)) for item in session.items)
        items = [(nodeid, target.host if target is not None else None) for nodeid, target in targets]
        run.report_items(worker["workerid"], items)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_setupnodes(config: pytest.Config, specs: list[object]) -> None:
    """Start no worker of xdist where the captures were interrupted."""
    if _INTERRUPTION in config.stash:
        specs.clear()


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Deal a worker of xdist its hosts, with their captures, so that no host is asked twice."""
    run = run_of(node.config)
    if run is not None:
        node.workerinput[_WORKER_KEY] = run.hand_over(node.gateway.id, node.workerinput["workercount"])
        pid = getattr(getattr(getattr(node.gateway, "_io", None), "popen", None), "pid", None)
        if pid is not None:  # only those on this machine have one
            node.config.stash[_INTERRUPTS].workers.add(pid)


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """In a worker of xdist, hand over what was gathered, for the recording. What is written is not interrupted."""
    run = run_of(session.config)
    if run is None:
        return
    session.config.stash[_INTERRUPTS].finishing()
    xdist: Any = session.config.pluginmanager.get_plugin("dsession")
    if run.interrupted and xdist is not None:
        xdist.nodemanager.EXIT_TIMEOUT = 1  # its workers were interrupted, too
    output: dict[str, Any] | None = getattr(session.config, "workeroutput", None)
    if output is not None:
        gathered = {alias: found for alias, host in run.hosts.items() if (found := host.gathered())}
        output[_WORKER_KEY] = gathered
        if run.interrupted:
            run.leave_for_controller(session.config.workerinput["workerid"], gathered)  # type: ignore[attr-defined]


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: object) -> None:
    """Take over what a worker gathered; the hosts of one that crashed go to the one that takes its place."""
    run = run_of(node.config)
    if run is None:
        return
    run.gathered.update(getattr(node, "workeroutput", {}).get(_WORKER_KEY, {}))
    if error and run.deal is not None:
        run.deal.crashed(node.gateway.id)


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
    run = run_of(config)
    if run is None or run.deal is None:
        return None
    from pytest_gpuinfra.session.scheduler import HostScheduling

    session = config.stash[_SESSION]

    def hosts_of(worker: str, nodeids: Sequence[str]) -> list[str | None]:
        items = run.reported_items(worker)
        if [nodeid for nodeid, _ in items] != list(nodeids):
            pytest.exit(
                f"gpuinfra: a plugin changed the items of worker {worker} in pytest_collection_finish, so that nobody "
                "knows their hosts; leave it out (-p no:NAME), or let it use pytest_collection_modifyitems",
                returncode=pytest.ExitCode.INTERNAL_ERROR,
            )
        return [alias for _, alias in items]

    def on_total(items: int) -> None:
        session.testscollected = items  # xdist notes what one worker has

    run.scheduling = HostScheduling(run.deal, hosts_of, on_total)
    return run.scheduling


@pytest.hookimpl(optionalhook=True, tryfirst=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int | None:
    """With `-n auto`, one worker a host, 32 at most: they wait for targets, not for this machine's cores."""
    run = _make_run(config)
    return min(max(1, len(run.selected)), _AUTO_WORKERS) if run is not None else None


@pytest.hookimpl(wrapper=True, trylast=True)
def pytest_unconfigure(config: pytest.Config) -> Generator[None, None, None]:
    """End the connections, whatever happened."""
    try:
        return (yield)
    finally:
        run = run_of(config)
        if run is not None:
            run.close()
            config.stash[_INTERRUPTS].restore()
