"""Commands in containers over the host's one connection: real pct (a stand-in), lxc, nspawn, docker, and ssh."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from pytest_gpuinfra.connection.container import Container, parse_container
from pytest_gpuinfra.connection.local import LocalConnection
from pytest_gpuinfra.connection.nested import connect_container
from pytest_gpuinfra.connection.protocol import Connection
from pytest_gpuinfra.connection.ssh import SshConnection
from pytest_gpuinfra.connection.testinfra import host_over
from pytest_gpuinfra.errors import CommandTimeout, FactUnavailable, UnreachableError
from pytest_gpuinfra.host.capture import capture_host
from pytest_gpuinfra.inventory.inventory import parse_inventory
from pytest_gpuinfra.subjects.container.facts import ContainerFacts
from tests.plugin.conftest import run_pytest

from .docker import NAME, DockerHost
from .nspawn import NspawnHost

pytestmark = pytest.mark.lab
NSPAWN = (
    "mkdir -p /srv/n1 && mount --bind / /srv/n1 && "
    "systemd-run -q --unit=n1 systemd-nspawn -q -D /srv/n1 -M n1 --register=no --keep-unit sleep 100000"
)


@pytest.fixture(scope="module")
def outer(booted_lab_host: NspawnHost) -> Iterator[SshConnection]:
    """Give the connection to the lab host."""
    booted_lab_host.reset()
    opened = SshConnection(booted_lab_host.alias, booted_lab_host.destination, config=str(booted_lab_host.ssh_config))
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def docker() -> Iterator[DockerHost]:
    """Give this machine with a docker daemon of its own."""
    with DockerHost() as host, pytest.MonkeyPatch.context() as patch:
        for name, value in host.environment.items():
            patch.setenv(name, value)
        yield host


def give_nspawn(host: NspawnHost) -> None:
    """Start a container under systemd-nspawn in the lab host, by this machine's own binary (both are Debian 12)."""
    if host.shell("systemctl is-active n1", check=False).stdout.strip() != "active":
        binary = Path("/usr/bin/systemd-nspawn").read_bytes().hex()
        write = "import sys; open('/usr/bin/systemd-nspawn', 'wb').write(bytes.fromhex(sys.stdin.read()))"
        host.shell(["python3", "-c", write], stdin=binary)
        host.shell("chmod 755 /usr/bin/systemd-nspawn")
        host.shell(NSPAWN)
        time.sleep(0.5)


KINDS = ["pct:101", "lxc:101", "nspawn:n1", "ssh:lab-a-ct101", f"docker:{NAME}"]


@pytest.fixture(scope="module", params=KINDS)
def inner(request: pytest.FixtureRequest, outer: SshConnection, booted_lab_host: NspawnHost) -> Iterator[Connection]:
    """Give the connection into a container of each kind that can run here."""
    container = parse_container(request.param)
    if container.kind == "docker":
        request.getfixturevalue("docker")
        opened = connect_container(LocalConnection("here"), container)
    else:
        if container.kind == "nspawn":
            give_nspawn(booted_lab_host)
        opened = connect_container(outer, container)
    yield opened
    opened.close()


def processes(mark: str) -> list[str]:
    """Give this machine's processes, those of all hosts and containers among them, that have a mark."""
    shown = subprocess.run(["ps", "-e", "-o", "args="], capture_output=True, text=True, check=True).stdout
    return [line for line in shown.splitlines() if f"sleep {mark}" in line and "python" not in line]


def gone(mark: str) -> bool:
    """Tell whether no process has a mark any more, soon."""
    limit = time.monotonic() + 5
    while processes(mark) and time.monotonic() < limit:
        time.sleep(0.05)
    return not processes(mark)


def test_command_runs_inside_with_argv_stdin_and_env(inner: Connection) -> None:
    """No shell reads the arguments; output, errors and exit status are the command's."""
    code = "import os, sys; print(sys.argv[1:], os.environ['X'], sys.stdin.read()); sys.stderr.write('e'); exit(7)"
    ended = inner.run(["python3", "-c", code, "a b", "$HOME", "'"], stdin=b"in", env={"X": "y z"})
    assert ended.stdout == "['a b', '$HOME', \"'\"] y z in\n"
    assert (ended.stderr, ended.exit_status) == ("e", 7)


def test_it_is_another_system_than_the_hosts(inner: Connection) -> None:
    """The process number one is the container's own."""
    first = inner.run(["cat", "/proc/1/cmdline"]).stdout
    own = inner.run(["readlink", "/proc/self/ns/pid"]).stdout
    assert first
    assert own.strip() != os.readlink("/proc/self/ns/pid")


def test_megabytes_pass_whole(inner: Connection) -> None:
    """Both ways at the same time."""
    data = os.urandom(1 << 19).hex().encode()
    assert inner.run(["cat"], stdin=data).stdout_bytes == data


def test_output_is_streamed(inner: Connection) -> None:
    """A line is seen while the command still runs."""
    seen: list[tuple[str, float]] = []
    inner.run(
        ["sh", "-c", "echo first; sleep 0.5; echo second"],
        on_output=lambda _, text: seen.append((text, time.monotonic())),
    )
    assert [text for text, _ in seen] == ["first\n", "second\n"]
    assert seen[1][1] - seen[0][1] > 0.3


def test_deadline_kills_the_process_group_inside(inner: Connection) -> None:
    """Grandchildren die too, also those in a session of their own."""
    mark = f"87{os.getpid()}1"
    with pytest.raises(CommandTimeout, match="was killed"):
        inner.run(["sh", "-c", f"sleep {mark} & setsid sleep {mark} & sleep {mark}"], timeout_s=0.7)
    assert gone(mark)


def test_killed_controller_leaves_nothing_inside(inner: Connection, outer: SshConnection) -> None:
    """kill -9 of the controller in the middle of a command."""
    mark = f"87{os.getpid()}2"
    name = inner.name.partition("/")[2]
    host = f"SshConnection('lab', {outer.destination!r}, config={outer.config!r})"
    code = (
        "from pytest_gpuinfra.connection.local import LocalConnection\n"
        "from pytest_gpuinfra.connection.ssh import SshConnection\n"
        "from pytest_gpuinfra.connection.nested import connect_container\n"
        "from pytest_gpuinfra.connection.container import parse_container\n"
        f"outer = {'LocalConnection' + repr(('here',))[:-2] + ')' if name.startswith('docker') else host}\n"
        f"inner = connect_container(outer, parse_container({name!r}))\n"
        f"inner.run(['sh', '-c', 'echo up; sleep {mark}; true'], on_output=lambda *_: print('up', flush=True))"
    )
    controller = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    assert controller.stdout
    assert controller.stdout.readline() == b"up\n"
    assert processes(mark)
    controller.kill()
    controller.wait()
    controller.stdout.close()
    assert gone(mark)


def test_program_is_sent_along(inner: Connection) -> None:
    """A Python program of the controller's runs in the container's own python3."""
    ended = inner.run_program("import sys; print(sys.stdin.readline())", {"a": 1}, timeout_s=20)
    assert ended.stdout.strip() == '{"a": 1}'


def test_facts_of_host_and_container_come_together(inner: Connection, outer: SshConnection) -> None:
    """One round trip, whatever the kind; two where the container has an address of its own."""
    container = parse_container(inner.name.partition("/")[2])
    host = LocalConnection("here") if container.kind == "docker" else outer
    raw = {"hosts": {"x": {"container": str(container), "expect": {"container": {"shm_min_gib": 0.01}}}}}
    before = host.round_trips
    capture = capture_host(host, parse_inventory(raw, "x").hosts["x"], [], reached_by="x", timeout_s=40)
    facts = ContainerFacts(capture, container)
    assert capture.error is None
    assert (capture.round_trips - before) == (2 if container.kind == "ssh" else 1)
    assert facts.boot_id
    assert facts.space("/dev/shm").size_bytes > 1 << 20
    if container.kind != "nspawn":  # nobody registered it with machined
        assert facts.state.running


def test_container_that_is_not_there_is_said(outer: SshConnection, docker: DockerHost) -> None:
    """Its name, what the tool said, and what to do."""
    for host, name, words in (
        (outer, "pct:777", "777.conf' does not exist"),
        (outer, "lxc:nowhere", "nowhere"),
        (outer, "nspawn:nowhere", "no machine nowhere is running"),
        (outer, "incus:nowhere", "incus: not found"),
        (LocalConnection("here"), "docker:nowhere", "No such container"),
    ):
        with pytest.raises(UnreachableError, match="the container was not entered") as caught:
            connect_container(host, parse_container(name)).run(["true"])
        assert words in str(caught.value)


def test_stopped_docker_container_is_seen(docker: DockerHost) -> None:
    """Its state is read, its inside is not there, and the rest of the host's facts are untouched."""
    docker.docker("stop", "-t", "0", NAME)
    try:
        raw = {"hosts": {"x": {"container": f"docker:{NAME}"}}}
        host = LocalConnection("here")
        capture = capture_host(host, parse_inventory(raw, "x").hosts["x"], [], reached_by="x", timeout_s=40)
        facts = ContainerFacts(capture, Container("docker", NAME))
        assert facts.state.word == "exited"
        assert capture.node("boot")["boot_id"].text
        with pytest.raises(FactUnavailable, match="is not running"):
            _ = facts.boot_id
    finally:
        docker.docker("start", NAME)


def test_modules_of_testinfra_answer_inside_the_nested_container(outer: SshConnection) -> None:
    """Service, file, process, package, sysctl, socket, mount and more, in the container, over the host's connection."""
    host = host_over(connect_container(outer, Container("pct", "101")))
    service = host.service("infer")
    assert (service.is_running, service.is_enabled, service.is_valid, service.is_masked) == (True, True, True, False)
    assert service.systemd_properties["MainPID"] == str(host.process.filter(ppid=1, comm="python3")[0].pid)
    assert not host.service("no-such").is_running
    file = host.file("/opt/infer/infer.py")
    assert (file.is_file, file.user, file.group, file.mode & 0o400) == (True, "root", "root", 0o400)
    assert file.contains("def run_rank")
    assert file.size == len(file.content) > 1000
    assert len(file.sha256sum) == 64
    assert host.file("/etc").is_directory
    assert not host.file("/nowhere").exists
    assert host.file("/proc/1/exe").is_symlink
    ranks = [process for process in host.process.filter(user="root") if process.args.startswith("infer::scheduler")]
    assert len(ranks) == 2
    assert host.package("python3").is_installed
    assert host.package("python3").version.startswith("3.11")
    assert not host.package("no-such").is_installed
    assert host.sysctl("kernel.ostype") == "Linux"
    assert host.socket("tcp://0.0.0.0:30000").is_listening
    assert not host.socket("tcp://0.0.0.0:30001").is_listening
    assert host.mount_point("/proc").filesystem == "proc"
    assert host.user("op").uid == 1000
    assert host.group("root").gid == 0
    assert host.system_info.distribution == "debian"
    assert host.interface("eth0").addresses[0] == "10.10.0.101"
    assert host.environment()["PATH"]
    assert host.exists("systemctl")
    assert host.check_output("echo %s", "a b; c") == "a b; c"


def test_testinfra_has_our_deadline(outer: SshConnection) -> None:
    """A command that hangs ends in our error, not in a session that hangs with it."""
    host = host_over(connect_container(outer, Container("pct", "101")), timeout_s=0.7)
    with pytest.raises(CommandTimeout):
        host.run("sleep 60")


USERS_TEST = '''
def test_host_and_container_by_testinfra(gpu_host, gpu_container):
    """The user's own checks, in testinfra's words."""
    assert gpu_host.testinfra.service("ssh").is_running
    assert not gpu_host.testinfra.file("/opt/infer").exists
    assert gpu_container.testinfra.service("infer").is_running
    assert gpu_container.testinfra.file("/opt/infer/infer.py").is_file


def test_host_and_container_by_run(gpu_host, gpu_container):
    """The user's own commands."""
    assert gpu_host.run("hostname").stdout == "lab-a\\n"
    assert gpu_container.run("hostname").stdout == "ct101\\n"


def test_service_facts(gpu_service, gpu_service_processes):
    """What was seen of the service."""
    assert gpu_service.variable("NCCL_PROTO").values[0].value == "LL"
    assert len(gpu_service.ranks) == 2
    assert gpu_service.transport.words == "SHM"
    assert gpu_service.python.version.startswith("3.11")


def test_wrong(gpu_container):
    """Evidence of what testinfra ran is in the report of a failure, too."""
    assert gpu_container.testinfra.file("/nowhere").exists
'''


def test_users_tests_reach_host_and_container(lab_host: NspawnHost, tmp_path: Path) -> None:
    """With only the plugin: fixtures, testinfra's modules and commands, on the host and inside."""
    (tmp_path / "test_mine.py").write_text(USERS_TEST)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    (tmp_path / "gpuinfra.toml").write_text(
        f'[hosts.lab-a]\naddress = "{lab_host.destination}"\ncontainer = "pct:101"\nservice = "infer"\n'
    )
    ended = run_pytest(
        tmp_path, "test_mine.py", "--gpu-host=lab-a", f"--gpu-ssh-config={lab_host.ssh_config}", "-q", "-n0"
    )
    assert "1 failed, 3 passed" in ended.stdout, ended.stdout + ended.stderr
    assert "test_wrong" in ended.stdout
