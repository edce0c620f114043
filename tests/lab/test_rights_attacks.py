"""Processes of every make, hostile ones among them, that a program of ours is to be run as: as them, or ERROR."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pytest_gpuinfra.connection.local import LocalConnection
from pytest_gpuinfra.errors import CommandTimeout, ProbeError

pytestmark = pytest.mark.lab
PYTHON = str(Path("/usr/bin/python3").resolve())
USER = 4242
AS_USER = ["setpriv", f"--reuid={USER}", f"--regid={USER}", "--clear-groups"]
SPACES = ("user", "mnt", "pid", "net", "ipc", "uts", "cgroup")
CAPABILITIES = ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")
MARKS = itertools.count()
WAIT = "import os, sys, time; os.write(1, b'up'); time.sleep(600)"
LOOK = f"""
import json, os
status = dict(line.rstrip().split(":", 1) for line in open("/proc/self/status"))
spaces = {{name: os.readlink("/proc/self/ns/" + name) for name in {SPACES}}}
print(json.dumps({{"status": status, "spaces": spaces, "root": os.stat("/").st_ino}}))
"""
Started = Callable[..., int]


@pytest.fixture
def started() -> Iterator[Started]:
    """Start a service: started(command, **options of Popen) gives the number of the process that says that it is up."""
    running: list[subprocess.Popen[bytes]] = []

    def start(command: list[str], **options: object) -> int:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True, cwd="/", **options)  # type: ignore[call-overload]
        running.append(process)
        assert process.stdout.read(2) == b"up"
        return youngest(process.pid)

    yield start
    for process in running:
        with contextlib.suppress(OSError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def youngest(pid: int) -> int:
    """Give the last of a chain of processes that each wait for the next."""
    while below := Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        pid = int(below[0])
    return pid


def age(pid: int) -> int:
    """Give a process's start time in ticks."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])


def run_as(pid: int, source: str = LOOK, *, started_ticks: int | None = None, timeout_s: float = 30) -> str:
    """Run a program as a process, as torch_program is run beside a service."""
    connection = LocalConnection("here")
    try:
        process = (pid, age(pid) if started_ticks is None else started_ticks)
        ended = connection.run_program(source, {}, timeout_s=timeout_s, process=process)
        assert ended.exit_status == 0, ended.stderr
        return ended.stdout
    finally:
        connection.close()


def more(pid: int, shown: str) -> list[str]:
    """Give what a program had, by its own report, that the process has not; its uids as its own namespace has them."""
    look = ["nsenter", f"--target={pid}", "--user", "--preserve-credentials", "cat", f"/proc/{pid}/status"]
    theirs = os.readlink(f"/proc/{pid}/ns/user") != os.readlink("/proc/self/ns/user")
    text = subprocess.run(look if theirs else look[-2:], capture_output=True, text=True, check=True).stdout
    own = dict(line.split(":", 1) for line in text.splitlines())
    found = json.loads(shown)
    got = found["status"]
    wrong = [name for name in ("Uid", "Gid") if not set(got[name].split()) <= set(own[name].split())]
    wrong += [name for name in ("Uid", "Gid") if got[name].split()[:2] != own[name].split()[:2]]
    wrong += ["Groups"] if set(got["Groups"].split()) != set(own["Groups"].split()) else []
    wrong += [name for name in CAPABILITIES if int(got[name], 16) & ~int(own[name], 16)]
    wrong += [one for one in SPACES if found["spaces"][one] != os.readlink(f"/proc/{pid}/ns/{one}")]
    wrong += ["root"] if found["root"] != os.stat(f"/proc/{pid}/root").st_ino else []
    return wrong + (["NoNewPrivs"] if got["NoNewPrivs"].strip() != "1" else [])


def ids(*uids: int) -> list[str]:
    """Give the command of a Python that has these real, effective and saved users."""
    return [PYTHON, "-c", f"import os; os.setresuid{uids}; {WAIT}"]


def copied(folder: Path, mode: int = 0o755, capabilities: str = "") -> str:
    """Give a Python of its own, with a mode and capabilities of the file."""
    path = folder / "python3"
    shutil.copy(PYTHON, path)
    for place in (folder, *folder.parents[:-2]):
        place.chmod(place.stat().st_mode | 0o055)
    path.chmod(mode)
    if capabilities:
        subprocess.run(["setcap", capabilities, str(path)], check=True)
    return str(path)


MAKES: dict[str, Callable[[Path], list[str]]] = {
    "user": lambda _: [*AS_USER, PYTHON, "-c", WAIT],
    "user in groups": lambda _: ["setpriv", "--reuid=4242", "--regid=100", "--groups=20,44", PYTHON, "-c", WAIT],
    "root without capabilities": lambda _: ["setpriv", "--bounding-set=-all", "--inh-caps=-all", PYTHON, "-c", WAIT],
    "root with less": lambda _: ["setpriv", "--bounding-set=-sys_admin,-sys_ptrace", PYTHON, "-c", WAIT],
    "ambient": lambda _: [
        *AS_USER, "--inh-caps=+net_raw,+sys_nice", "--ambient-caps=+net_raw,+sys_nice", PYTHON, "-c", WAIT,
    ],
    "saved root": lambda _: ids(USER, USER, 0),
    "effective root": lambda _: ids(USER, 0, 0),
    "real root": lambda _: ids(0, USER, USER),
    "user namespace": lambda _: [*AS_USER, "unshare", "--user", "--map-root-user", PYTHON, "-c", WAIT],
    "user namespace, unmapped": lambda _: [*AS_USER, "unshare", "--user", PYTHON, "-c", WAIT],
    "every namespace": lambda _: [
        *AS_USER, "unshare", "--user", "--map-root-user", "--mount", "--net", "--ipc", "--uts", "--cgroup",
        "--pid", "--fork", "--mount-proc", PYTHON, "-c", WAIT,
    ],
    "process namespace of root's": lambda _: [
        "unshare", "--pid", "--fork", "--mount", "--mount-proc", *AS_USER, PYTHON, "-c", WAIT,
    ],
    "setuid file": lambda folder: [*AS_USER, copied(folder, 0o4755), "-c", WAIT],
    "file with capabilities": lambda folder: [*AS_USER, copied(folder, capabilities="cap_net_raw+ep"), "-c", WAIT],
    "file with capabilities, dropped": lambda folder: [
        *AS_USER, "--no-new-privs", copied(folder, capabilities="cap_net_raw+ep"), "-c", WAIT,
    ],
    "deleted file": lambda folder: [
        copied(folder), "-c", f"import os; os.unlink(os.readlink('/proc/self/exe')); {WAIT}",
    ],
    "unshared after its start": lambda _: [
        "unshare", "--mount", "--net", PYTHON, "-c",
        f"import ctypes; assert ctypes.CDLL(None).unshare(0x02000000 | 0x04000000) == 0; {WAIT}",
    ],
    "root of its own": lambda folder: [
        PYTHON, "-c",
        "import os, ctypes; c = ctypes.CDLL(None); assert c.unshare(0x20000) == 0;"
        " assert c.mount(b'none', b'/', None, 0x44000, None) == 0;"
        f" assert c.mount(b'/', b'{folder}', None, 4096 | 16384, None) == 0; os.chroot('{folder}');"
        f" os.chdir('/'); {WAIT}",
    ],
}  # fmt: skip


@pytest.mark.parametrize("make", MAKES)
def test_program_is_as_the_process_and_never_more(make: str, started: Started, tmp_path: Path) -> None:
    """Users, groups, capabilities, namespaces and root are exactly the process's, capabilities perhaps fewer."""
    pid = started(MAKES[make](tmp_path))
    assert more(pid, run_as(pid)) == []


def refusal(pid: int, **options: object) -> str:
    """Give why a program was not run as a process."""
    with pytest.raises(ProbeError) as caught:
        run_as(pid, **options)  # type: ignore[arg-type]
    assert caught.value.remedy
    return caught.value.reason


def test_python_that_lies_in_memory(started: Started) -> None:
    """Its file has no name that a Python has: nobody can say what it is."""
    code = (
        f"import os; held = os.memfd_create('python3'); os.write(held, open({PYTHON!r}, 'rb').read());"
        f" os.execve(held, ['python3', '-c', {WAIT!r}], {{}})"
    )
    pid = started([*AS_USER, PYTHON, "-c", code])
    assert "runs /memfd:python3, which is no Python" in refusal(pid)


def test_process_that_has_ended_and_waits_to_be_collected() -> None:
    """A zombie has a number still, and is nothing to run as."""
    with subprocess.Popen(["true"]) as process:
        limit = time.monotonic() + 10
        while " Z " not in Path(f"/proc/{process.pid}/stat").read_text() and time.monotonic() < limit:
            time.sleep(0.01)
        assert "has ended" in refusal(process.pid)


def test_process_that_is_gone_or_another_one(started: Started) -> None:
    """A number alone is nobody: the start time has to be the same."""
    pid = started([*AS_USER, PYTHON, "-c", WAIT])
    assert "is another one" in refusal(pid, started_ticks=age(pid) - 1)
    assert "is gone" in refusal(1 << 22, started_ticks=1)


def test_process_of_the_kernel_and_the_first_one() -> None:
    """A thread of the kernel runs no file; nothing is run as PID 1."""
    kernels = [
        int(one) for one in os.listdir("/proc") if one.isdigit() and not Path(f"/proc/{one}/cmdline").read_bytes()
    ]
    ours = [pid for pid in kernels if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1] in "02"]
    for pid in ours[:1]:
        assert "the kernel's own" in refusal(pid)
    assert "nothing to run as" in refusal(1)


def test_filtered_process_is_refused(started: Started) -> None:
    """Under seccomp a child of ours would be without the filter; it is not run."""
    code = (
        "import ctypes, struct; c = ctypes.CDLL(None); c.prctl(38, 1, 0, 0, 0);"
        " allow = ctypes.create_string_buffer(struct.pack('HBBI', 6, 0, 0, 0x7FFF0000));"
        " program = ctypes.create_string_buffer(struct.pack('HxxxxxxP', 1, ctypes.addressof(allow)));"
        " assert c.prctl(22, 2, program, 0, 0) == 0;"
    )
    pid = started([*AS_USER, PYTHON, "-c", code + WAIT])
    assert "seccomp filter" in refusal(pid)


def test_program_of_another_kind_is_no_python(started: Started, tmp_path: Path) -> None:
    """What it calls itself does not make it one."""
    pid = started(["/bin/bash", "-c", "exec -a python3 bash -c 'printf up; kill -STOP $$'"])
    assert "which is no Python" in refusal(pid)


def test_file_that_may_not_be_executed_any_more(started: Started, tmp_path: Path) -> None:
    """A file system that was mounted noexec meanwhile: ERROR, and no other file is taken in its place."""
    code = f"import subprocess; subprocess.run(['mount', '-o', 'remount,noexec', {str(tmp_path)!r}], check=True); "
    script = f'mount -t tmpfs none {tmp_path} && cp {PYTHON} {tmp_path}/python3 && exec {tmp_path}/python3 -c "$0"'
    pid = started(["unshare", "--mount", "sh", "-c", script, code + WAIT])
    assert "executing its file: Permission denied" in refusal(pid)


def test_argv_and_environment_that_are_no_text(started: Started) -> None:
    """A name that is no text in argv, bytes that are no text and two megabytes of them in the environment."""
    code = (
        "import ctypes, os; env = {b'A\\xff%d' % n: b'\\xfe' * 120000 for n in range(12)};"
        f" os.execve({PYTHON!r}, [b'\\xff\\n', b'-c', {WAIT!r}], env)"
    )
    pid = started([*AS_USER, PYTHON, "-c", code])
    assert more(pid, run_as(pid)) == []


def left(mark: str) -> list[str]:
    """Give the processes that have a mark, once they had time to go."""
    limit = time.monotonic() + 5
    while time.monotonic() < limit:
        shown = subprocess.run(["ps", "-e", "-o", "pid=,args="], capture_output=True, text=True, check=True).stdout
        found = [line for line in shown.splitlines() if mark in line and "ps -e" not in line]
        if not found:
            return []
        time.sleep(0.05)
    return found


def daemon(mark: str, ending: str) -> str:
    """Give a program that leaves a process behind in a session of its own, below two that end so."""
    code = f"import os, time\nfor _ in range(2):\n    if os.fork():\n        {ending}\n    os.setsid()\n"
    return code + f"os.execv('/bin/sleep', ['sleep', {mark!r}])"


@pytest.mark.parametrize("make", ["user", "process namespace of root's"])
@pytest.mark.parametrize("ending", ["os._exit(0)", "time.sleep(600)"])
def test_nothing_stays_that_left_the_session(make: str, ending: str, started: Started, tmp_path: Path) -> None:
    """Grandchildren in sessions of their own are gone at the end, whether the program ends or is killed."""
    mark = f"86{os.getpid()}"
    pid = started(MAKES[make](tmp_path))
    with contextlib.suppress(CommandTimeout, AssertionError):
        run_as(pid, daemon(mark, ending), timeout_s=3)
    assert left(f"sleep {mark}") == []


def attacker(number: str) -> str:
    """Give a service that sends a signal to every other process of its user, for ever."""
    return f"""
import os, signal
os.write(1, b"up")
while True:
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) != os.getpid():
            try:
                if os.stat("/proc/" + name).st_uid == os.getuid():
                    os.kill(int(name), signal.{number})
            except OSError:
                pass
"""


@pytest.mark.parametrize("number", ["SIGSTOP", "SIGKILL"])
def test_service_that_stops_or_kills_the_program(number: str, started: Started) -> None:
    """The deadline holds, or the end is an ERROR; nothing of the program's stays."""
    pid = started([*AS_USER, PYTHON, "-c", attacker(number)])
    mark = f"85{os.getpid()}"
    with pytest.raises((ProbeError, CommandTimeout, AssertionError)):
        run_as(pid, f"import os; os.execv('/bin/sleep', ['sleep', '{mark}'])", timeout_s=3)
    os.kill(pid, signal.SIGKILL)
    assert left(mark) == []


@pytest.mark.parametrize(
    "source",
    [
        "import os\nwhile True:\n    os.write(1, b'x' * 65536)",
        "import os\nwhile True:\n    os.write(2, b'x' * 65536)",
        "import os, time\nos.closerange(0, 256)\ntime.sleep(600)",
        "import os, signal\nos.killpg(0, signal.SIGSTOP)",
        "import os, signal\nos.killpg(0, signal.SIGKILL)",
    ],
    ids=["output", "errors", "closed pipes", "stopped group", "killed group"],
)
@pytest.mark.parametrize("make", ["user", "process namespace of root's"])
def test_program_that_misbehaves_ends(make: str, source: str, started: Started, tmp_path: Path) -> None:
    """What floods, closes its pipes, or stops or kills its own group ends by the deadline or a bound, as an error."""
    mark = f"84{next(MARKS)}-{os.getpid()}"
    pid = started(MAKES[make](tmp_path))
    with pytest.raises((ProbeError, CommandTimeout, AssertionError)):
        run_as(pid, f"import ctypes\nctypes.CDLL(None).prctl(15, b'{mark}')\n{source}", timeout_s=3)
    assert named(mark) == []


def named(mark: str) -> list[str]:
    """Give the processes that have called themselves so, the dead that nobody has collected among them."""
    limit = time.monotonic() + 5
    while time.monotonic() < limit:
        shown = subprocess.run(["ps", "-e", "-o", "stat=,comm="], capture_output=True, text=True, check=True).stdout
        found = [line for line in shown.splitlines() if mark in line]
        if not found:
            return []
        time.sleep(0.05)
    return found


WATCH = """
import os
held = os.open("/watched", os.O_WRONLY | os.O_CREAT)
os.write(1, b"up")
while True:
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) != os.getpid():
            try:
                with open("/proc/" + name + "/status") as status:
                    os.write(held, "".join(line for line in status if line.startswith("CapPrm")).encode())
            except OSError:
                pass
"""


def test_process_namespace_never_holds_one_with_more_rights(started: Started, tmp_path: Path) -> None:
    """From its birth in there a child has the process's rights: who may trace others there gains nothing by it."""
    watch = WATCH.replace("/watched", str(tmp_path / "watched"))
    space = ["unshare", "--pid", "--fork", "--mount", "--mount-proc", "--propagation=unchanged"]
    pid = started([*space, "setpriv", "--bounding-set=-all,+sys_ptrace", PYTHON, "-c", watch])
    own = int(Path(f"/proc/{pid}/status").read_text().partition("CapPrm:")[2].split()[0], 16)
    for _ in range(3):
        assert more(pid, run_as(pid)) == []
    observed = {int(line.split()[1], 16) for line in (tmp_path / "watched").read_text().splitlines()}
    assert observed
    assert [hex(one) for one in observed if one & ~own] == []


def test_service_that_changes_its_user_all_the_time(started: Started) -> None:
    """It is run as one of the two, whole, or not at all: no user of the one with a capability of the other."""
    code = f"import os; os.write(1, b'up')\nwhile True:\n    os.setresuid({USER}, {USER}, 0); os.setresuid(0, 0, 0)"
    pid = started([PYTHON, "-c", code])
    for _ in range(5):
        with contextlib.suppress(ProbeError):
            status = json.loads(run_as(pid))["status"]
            uids = [int(one) for one in status["Uid"].split()[:2]]
            assert uids in ([0, 0], [USER, USER])
            assert uids[0] == 0 or int(status["CapPrm"], 16) == 0


@pytest.mark.parametrize("theirs", ["bin/python3", "lib/python3.11/site-packages/one.pth", "pyvenv.cfg", "."])
def test_python_that_others_may_change_is_not_run_by_root(theirs: str) -> None:
    """What `--gpu-python` names, with everything of its that is imported: ERROR with the path and whose it is."""
    with contextlib.ExitStack() as stack:
        folder = Path(f"/opt/gpuinfra-venv-{os.getpid()}")
        stack.callback(shutil.rmtree, folder)
        for place in ("bin", "lib/python3.11/site-packages"):
            (folder / place).mkdir(parents=True)
        python = folder / "bin/python3"
        shutil.copy(PYTHON, python)
        (folder / "pyvenv.cfg").write_text("home = /usr/bin\n")
        (folder / "lib/python3.11/site-packages/one.pth").write_text(f"import os; os.mkdir({str(folder / 'ran')!r})\n")
        connection = LocalConnection("here")
        stack.callback(connection.close)
        assert connection.run_program("print(1)", {}, timeout_s=30, python=str(python)).stdout == "1\n"
        assert (folder / "ran").is_dir()
        (folder / "ran").rmdir()
        os.chown(folder / theirs, USER, USER)
        with pytest.raises(ProbeError) as caught:
            connection.run_program("print(1)", {}, timeout_s=30, python=str(python))
        assert f"{folder / theirs} belongs to user {USER}" in caught.value.reason
        assert not (folder / "ran").exists()
