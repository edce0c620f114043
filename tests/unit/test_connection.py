"""Running things on a target, shown on this machine: deadlines, streaming, and nothing left behind."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from pytest_gpuinfra.connection.bootstrap import remote_command
from pytest_gpuinfra.connection.local import LocalConnection
from pytest_gpuinfra.connection.pipe import PipeConnection, close_all
from pytest_gpuinfra.errors import CommandTimeout, ProbeError


@pytest.fixture
def connection() -> Iterator[LocalConnection]:
    """Give a connection to this machine."""
    opened = LocalConnection("here")
    yield opened
    opened.close()


def running(mark: str) -> list[str]:
    """Give the processes of this machine that have a mark in their command line, zombies left out."""
    found = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            text = file.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if mark in text and "pytest" not in text.split(mark)[0][-200:]:
            found.append(text)
    return found


def gone(mark: str, within_s: float = 5.0) -> bool:
    """Tell whether no process has the mark any more, soon."""
    limit = time.monotonic() + within_s
    while running(mark):
        if time.monotonic() > limit:
            return False
        time.sleep(0.05)
    return True


def test_command_gets_argv_stdin_and_env_and_gives_everything_back(connection: LocalConnection) -> None:
    """No shell reads the arguments; output and errors come apart; the exit status is the command's."""
    script = "import os, sys; print(sys.argv[1:], os.environ['X'], sys.stdin.read()); sys.stderr.write('e'); exit(7)"
    ended = connection.run(["python3", "-c", script, "a b", "$HOME", "'"], stdin=b"in", env={"X": "y z"})
    assert ended.stdout == "['a b', '$HOME', \"'\"] y z in\n"
    assert (ended.stderr, ended.exit_status) == ("e", 7)


def test_large_input_and_output_pass_whole(connection: LocalConnection) -> None:
    """Megabytes both ways at the same time."""
    data = os.urandom(1 << 20).hex().encode()
    assert connection.run(["cat"], stdin=data).stdout.encode() == data


def test_command_that_is_not_there_and_one_that_is_killed(connection: LocalConnection) -> None:
    """127 with the reason, and the signal as a negative status."""
    ended = connection.run(["no-such-program"])
    assert (ended.exit_status, ended.stderr) == (127, "no-such-program: No such file or directory\n")
    assert connection.run(["sh", "-c", "kill -9 $$"]).exit_status == -9


def test_output_is_streamed(connection: LocalConnection) -> None:
    """The callback sees a line while the command still runs."""
    seen: list[tuple[str, float]] = []
    connection.run(
        ["sh", "-c", "echo first; sleep 0.5; echo second"],
        on_output=lambda name, text: seen.append((text, time.monotonic())),
    )
    assert [text for text, _ in seen] == ["first\n", "second\n"]
    assert seen[1][1] - seen[0][1] > 0.3


def test_deadline_kills_the_whole_process_group(connection: LocalConnection) -> None:
    """Grandchildren die too, also those in a session of their own."""
    mark = f"86{os.getpid()}1"
    with pytest.raises(CommandTimeout, match="was killed"):
        connection.run(["sh", "-c", f"sleep {mark} & setsid sleep {mark} & sleep {mark}"], timeout_s=0.5)
    assert gone(mark)


def test_what_a_command_leaves_behind_is_ended(connection: LocalConnection) -> None:
    """A command that ends and leaves a process in the background leaves none."""
    mark = f"86{os.getpid()}2"
    assert connection.run(["sh", "-c", f"sleep {mark} >/dev/null 2>&1 & echo done"]).stdout == "done\n"
    assert gone(mark)


def test_killed_controller_leaves_nothing(tmp_path: Path) -> None:
    """kill -9 of the controller in the middle of a command: the command is gone at once."""
    mark = f"86{os.getpid()}3"
    code = (
        "from pytest_gpuinfra.connection.local import LocalConnection\n"
        f"LocalConnection('here').run(['sh', '-c', 'echo up; sleep {mark}'], "
        "on_output=lambda *_: print('up', flush=True))"
    )
    controller = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    assert controller.stdout
    assert controller.stdout.readline() == b"up\n"
    assert running(f"sleep {mark}")
    controller.send_signal(signal.SIGKILL)
    controller.wait()
    controller.stdout.close()
    assert gone(f"sleep {mark}")


def test_program_sees_the_end_of_its_input_when_the_session_is_closed() -> None:
    """A program's standard input stays open; closing the connection ends it and the program."""
    opened = LocalConnection("here")
    mark = f"86{os.getpid()}4"
    source = f"import subprocess, sys; print(sys.stdin.readline(), flush=True); subprocess.run(['sleep', '{mark}'])"
    said = threading.Event()

    def run() -> None:
        with pytest.raises(ProbeError):
            opened.run_program(source, {"a": 1}, timeout_s=60, on_output=lambda *_: said.set())

    thread = threading.Thread(target=run)
    thread.start()
    assert said.wait(20)
    opened.close()
    thread.join(20)
    assert not thread.is_alive()
    assert gone(mark)


def test_program_that_raises_shows_its_traceback(connection: LocalConnection) -> None:
    """A program of ours that dies says where, by its exit status and standard error."""
    ended = connection.run_program("raise KeyError('lost')", None, timeout_s=20)
    assert ended.exit_status == 1
    assert "KeyError: 'lost'" in ended.stderr


def test_round_trips_are_counted(connection: LocalConnection) -> None:
    """Each command is one."""
    connection.run(["true"])
    connection.run(["true"])
    assert connection.round_trips == 2


def test_no_python3_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without python3 gets a clear ending."""
    monkeypatch.setattr("pytest_gpuinfra.connection.local.remote_command", _without_python)
    with pytest.raises(ProbeError, match="no python3 in the PATH"):
        LocalConnection("here").run(["true"])


def _without_python(*, sudo: bool = False) -> str:
    return (
        remote_command(sudo=sudo).replace("f python3;", "f no-such-python;").replace("f platform-python;", "f neither;")
    )


class NoisyConnection(LocalConnection):
    """A login that prints before and after, on both streams."""

    def _session_argv(self) -> list[str]:
        argv = super()._session_argv()
        return ["/bin/sh", "-c", 'echo "Welcome"; echo oops >&2; "$@"; echo bye', "sh", *argv]


def test_noise_of_a_login_shell_is_told_apart() -> None:
    """What a shell prints before and after the command is no part of its output."""
    ended = NoisyConnection("noisy").run(["echo", "mine"])
    assert (ended.stdout, ended.stderr) == ("mine\n", "")


class BrokenConnection(PipeConnection):
    """A session that ends in the middle of a frame."""

    def _session_argv(self) -> list[str]:
        argv = LocalConnection("x")._session_argv()
        return ["/bin/sh", "-c", '"$@" | head -c 200', "sh", *argv]


def test_session_that_breaks_off_is_an_error() -> None:
    """Half an answer is no answer."""
    with pytest.raises(ProbeError, match="the session ended before the command did"):
        BrokenConnection("broken").run(["seq", "100000"])


def test_closed_connection_runs_nothing() -> None:
    """After close, a command is refused."""
    opened = LocalConnection("here")
    opened.close()
    opened.close()
    with pytest.raises(ProbeError, match="closed already"):
        opened.run(["true"])


SHADOW = "raise SystemExit('imported from the directory that it started in')\n"


def test_nothing_is_imported_from_the_directory_that_it_starts_in(
    connection: LocalConnection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A home directory may hold a json.py."""
    for name in ("os", "json", "select", "signal", "struct", "re"):
        (tmp_path / f"{name}.py").write_text(SHADOW)
    monkeypatch.chdir(tmp_path)
    ended = connection.run_program("import json, re; print(json.dumps(1))", {}, timeout_s=20)
    assert (ended.exit_status, ended.stdout) == (0, "1\n")


@pytest.mark.parametrize("python", [None, sys.executable])
def test_no_compiled_file_is_written(
    connection: LocalConnection, python: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where Python's own library has none, as in many images."""
    monkeypatch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)
    monkeypatch.setenv("PYTHONPYCACHEPREFIX", str(tmp_path))
    subprocess.run([sys.executable, "-c", "import json"], check=True)
    assert list(tmp_path.rglob("*.pyc"))
    shutil.rmtree(tmp_path)
    connection.run_program("import json, logging", {}, timeout_s=20, python=python, site=True)
    assert not list(tmp_path.rglob("*.pyc"))


@pytest.mark.parametrize("site", [True, False])
def test_program_gets_site_packages_if_it_wants_them(
    connection: LocalConnection, *, site: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without them, what the machine's owner lets every Python do at its start is not done."""
    (tmp_path / "sitecustomize.py").write_text("print('customized')\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    look = "import sys; print(any(path.endswith('-packages') for path in sys.path))"
    ended = connection.run_program(look, {}, timeout_s=20, site=site)
    customized = ["customized"] if os.geteuid() else []  # root takes no code out of its login's variables
    assert ended.stdout.split() == ([*customized, "True"] if site else ["False"])


def test_remote_command_is_plain_for_any_shell() -> None:
    """No sign that sh, csh or fish read differently, within single quotes."""
    inside = remote_command().partition("'")[2].rpartition("'")[0]
    assert not set("'!\n\\`") & set(inside)


def flooding(mark: str, sign: str) -> str:
    """Give Python that prints a sign without end."""
    return f"import os\nwhile True: os.write({sign}, b'{mark} ' * 4096)"


@pytest.mark.parametrize("stream", ["1", "2"])
def test_command_that_prints_without_end_is_cut_off(connection: LocalConnection, stream: str) -> None:
    """Its reason is said, and it does not run on."""
    mark = f"flood{stream}{os.getpid()}"
    with pytest.raises(ProbeError, match="printed more than 16 MiB, and was ended"):
        connection.run(["python3", "-c", flooding(mark, stream)], timeout_s=120)
    assert gone(mark)


@pytest.mark.parametrize("stream", ["1", "2"])
def test_login_shell_that_prints_without_end_is_cut_off(stream: str) -> None:
    """Before the runner has spoken, nothing but noise is there; it does not fill the memory."""

    class Flooding(LocalConnection):
        def _session_argv(self) -> list[str]:
            return [sys.executable, "-c", flooding("noise", stream)]

    with pytest.raises(ProbeError, match=r"printed more than 8 MiB that nobody asked for.*'.*noise noise.*'"):
        Flooding("here").run(["true"])


def test_session_opened_early_serves_the_first_command() -> None:
    """The first command takes the session that was begun; a second begins its own; none is left over."""
    opened = LocalConnection("here")
    opened.open_early()
    began = opened._early
    assert began is not None
    assert opened.run(["echo", "one"]).stdout == "one\n"
    assert began.poll() is not None
    assert opened.run(["echo", "two"]).stdout == "two\n"
    assert opened.round_trips == 2
    opened.close()


def test_session_opened_early_and_never_used_ends_with_the_connection() -> None:
    """No process and no pipe of it stay."""
    opened = LocalConnection("here")
    opened.open_early()
    began = opened._early
    assert began is not None
    assert began.poll() is None
    opened.close()
    assert began.poll() is not None
    assert began.stdout is not None
    assert began.stdout.closed


class Deaf(LocalConnection):
    """A session that heeds neither the end of its input nor a polite signal, as a hanging login may not."""

    def __init__(self, mark: str, *, closes: bool = False) -> None:
        super().__init__("deaf")
        self._mark, self._closes = mark, closes

    def _session_argv(self) -> list[str]:
        if self._closes:  # another thread closes the connection just now
            self.close()
        return ["/bin/sh", "-c", f'trap "" TERM; while :; do sleep 0.1; done; : {self._mark}']


def test_what_has_no_time_to_end_is_killed() -> None:
    """A session that outlives the time for all of them would outlive this process."""
    connection = Deaf("mark-of-the-deaf")
    connection.open_early()
    limit = time.monotonic() + 5
    while not running("mark-of-the-deaf"):
        assert time.monotonic() < limit
    close_all(0.1)
    assert gone("mark-of-the-deaf", within_s=1.0)
    connection.close()


def test_session_that_starts_while_its_connection_is_closed_ends_at_once() -> None:
    """Whoever closed the connection could not see it."""
    connection = Deaf("mark-of-the-late", closes=True)
    with pytest.raises(ProbeError, match="closed already"):
        connection.run(["true"])
    assert gone("mark-of-the-late", within_s=1.0)
