"""An account that is less than root: what it sees is what root sees or ERROR, and what its sudoers file cannot do."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from pytest_gpuinfra.connection.ssh import SshConnection

from .judge import SUITES, LabOutcomes, judge
from .nspawn import NspawnHost

pytestmark = pytest.mark.lab

SERVICE = r"""
useradd --system svc
printf 'OMP_NUM_THREADS=4\nNCCL_PROTO=LL\n' >/etc/keeper.env
chmod 600 /etc/keeper.env
mkdir -m 700 /etc/closed
cat >/etc/systemd/system/keeper.service <<'UNIT'
[Service]
User=svc
EnvironmentFile=/etc/keeper.env
ExecStart=/usr/bin/python3 -c "import time; time.sleep(1e9)"
[Install]
WantedBy=multi-user.target
UNIT
systemctl daemon-reload
systemctl -q enable --now keeper
"""
"""A service of another user, with a file that root alone reads, and a directory that root alone looks into."""

EXPECT = """
files_absent = ["/etc/closed/gpu.conf"]

[hosts.lab-a.expect.service]
enabled = true
environment = { OMP_NUM_THREADS = "4", NCCL_PROTO = "LL", NCCL_P2P_LEVEL = false }
python = "/usr/bin/python3*"

[defaults]
"""
ON_HOST = 'service = "keeper"\n'
IN_CONTAINER = 'service = "infer"\ncontainer = "pct:101"\n'

FAULTS = r"""
printf '<3>NVRM: Xid (PCI:0000:01:00): 79, pid=1, GPU has fallen off the bus.\n' | /usr/local/sbin/lab-kmsg
touch /etc/closed/gpu.conf
systemctl stop gpu-persistence
sed -i s/NCCL_PROTO=LL/NCCL_PROTO=Simple/ /etc/keeper.env
systemctl restart keeper
"""
XID = "test_no_xid_on_the_gpu[01:00.0]"
FAULTY = {
    XID,
    "test_file_is_absent[/etc/closed/gpu.conf]",
    "test_unit_is_in_the_expected_state[gpu-persistence.service]",
    "test_variable_is_in_effect_in_every_process[NCCL_PROTO]",
}
RIGHT = ("permission", "root", "not permitted")
"""One of these stands in each message about a missing right."""

PROCESSES = frozenset(
    {
        "test_python_is_the_expected_one[]",
        "test_running_process_is_newer_than_its_files[]",
        *(
            f"test_variable_is_in_effect_in_every_process[{name}]"
            for name in ("NCCL_P2P_LEVEL", "NCCL_PROTO", "OMP_NUM_THREADS")
        ),
    }
)
CLOSED = frozenset({"test_file_is_absent[/etc/closed/gpu.conf]"})
JOURNAL = frozenset(
    {
        "test_drafts_in_the_services_log_are_accepted[]",
        "test_engine_admits_no_fallback[]",
        "test_nccl_of_the_service_is_in_order[]",
        "test_no_error_in_the_services_log[]",
        "test_service_is_not_started_again_and_again[]",
        "test_service_was_not_killed_for_memory[]",
    }
)


@dataclass(frozen=True, slots=True)
class Account:
    """
    A way to be less than root on the lab's host.

    Attributes:
        arguments: For pytest.
        prepare: Shell text, run as root on the host; it may use what `gpuinfra sudoers` prints, as $SUDOERS.
        unseen: Items that then end in ERROR on the healthy host, beside those on the kernel's log.
        sees_log: Whether the kernel's log can be read.
    """

    arguments: tuple[str, ...]
    prepare: str
    unseen: frozenset[str]
    sees_log: bool


INSTALL = 'printf %s "$SUDOERS" | install -m 0440 /dev/stdin /etc/sudoers.d/gpuinfra'
ACCOUNTS = {
    "plain": Account((), "true", PROCESSES | CLOSED | JOURNAL, sees_log=False),
    "journal": Account((), "usermod -aG systemd-journal op", PROCESSES | CLOSED, sees_log=True),
    "read": Account(("--gpu-sudo-read",), INSTALL, PROCESSES, sees_log=True),
    "read-by-pty": Account(
        ("--gpu-sudo-read",),
        f"{INSTALL}; echo Defaults use_pty | install -m 0440 /dev/stdin /etc/sudoers.d/pty",
        PROCESSES,
        sees_log=True,
    ),
    "root": Account(
        ("--gpu-sudo",),
        "echo 'op ALL=(ALL) NOPASSWD: ALL' | install -m 0440 /dev/stdin /etc/sudoers.d/all",
        frozenset(),
        sees_log=True,
    ),
}


def sudoers(user: str) -> str:
    """Give what the command line prints."""
    argv = [sys.executable, "-c", "from pytest_gpuinfra.cli import main; main()", "sudoers", f"--user={user}"]
    return subprocess.run(argv, check=True, capture_output=True, text=True).stdout


def give(host: NspawnHost, account: Account) -> None:
    """Bring the host's user op into an account's state."""
    host.shell(
        "rm -f /etc/sudoers.d/all /etc/sudoers.d/pty /etc/sudoers.d/gpuinfra; gpasswd -d op systemd-journal || true"
    )
    host.shell(f"SUDOERS=$(cat; echo x); SUDOERS=${{SUDOERS%x}}; {account.prepare}", stdin=sudoers("op"))


@dataclass
class Compared:
    """Runs on one host: as root over ssh, and as each account, with nothing wrong and with faults."""

    healthy: dict[str, LabOutcomes]
    faulty: dict[str, LabOutcomes]
    container: dict[str, LabOutcomes]


@pytest.fixture(scope="module")
def compared(booted_lab_host: NspawnHost, tmp_path_factory: pytest.TempPathFactory) -> Compared:
    """Judge one host as root and as each account, at level passive."""
    host = booted_lab_host
    host.reset()
    host.shell(SERVICE)
    folder = tmp_path_factory.mktemp("accounts")

    def judged(names: Sequence[str], expect: str) -> dict[str, LabOutcomes]:
        level = ("--gpu-level=passive", str(SUITES / "serving"))
        seen = {"": judge(host, "nspawn", folder, expect=expect, arguments=level)}
        for name in names:
            give(host, ACCOUNTS[name])
            arguments = (*level, *ACCOUNTS[name].arguments)
            seen[name] = judge(host, "nspawn", folder, expect=expect, user="op", arguments=arguments)
        return seen

    healthy = judged(list(ACCOUNTS), EXPECT + ON_HOST)
    container = judged(["plain", "read", "root"], EXPECT + IN_CONTAINER)
    host.shell(FAULTS)
    return Compared(healthy, judged(list(ACCOUNTS), EXPECT + ON_HOST), container)


def differences(root: LabOutcomes, other: LabOutcomes) -> dict[str, tuple[str, str]]:
    """Give the items that ended otherwise, with both endings; an item of one run alone among them."""
    return {
        item: (root.outcomes.get(item, "absent"), other.outcomes.get(item, "absent"))
        for item in {**root.outcomes, **other.outcomes}
        if root.outcomes.get(item) != other.outcomes.get(item)
    }


@pytest.mark.parametrize("name", ACCOUNTS)
def test_healthy_host_is_seen_as_root_sees_it_or_not_at_all(name: str, compared: Compared) -> None:
    """Exactly the items whose right is missing end in ERROR, and each says so and what to do; all others as root's."""
    root, seen, account = compared.healthy[""], compared.healthy[name], ACCOUNTS[name]
    assert root.ended("failed", "error") == [], root.output
    assert len(root.ended("passed")) > 60

    log = {item for item in seen.ended("error") if ": kernel log: " in seen.messages[item]}
    assert len(log) > 10 if not account.sees_log else not log, seen.output
    assert set(seen.ended("error")) - log == account.unseen, seen.output
    assert set(differences(root, seen).values()) <= {("passed", "error"), ("skipped", "error")}
    for item in seen.ended("error"):
        message = seen.messages[item]
        assert "what to do: " in message, message
        assert any(word in message.lower() for word in RIGHT), message


@pytest.mark.parametrize("name", ACCOUNTS)
def test_fault_that_root_sees_never_passes(name: str, compared: Compared) -> None:
    """What fails as root fails, or is ERROR where the right to see it is missing."""
    root, seen, account = compared.faulty[""], compared.faulty[name], ACCOUNTS[name]
    assert set(root.ended("failed")) >= FAULTY, root.output

    assert set(differences(root, seen).values()) <= {(ending, "error") for ending in ("passed", "failed", "skipped")}
    hidden = account.unseen if account.sees_log else account.unseen | {XID}
    assert FAULTY & set(seen.ended("failed")) == FAULTY - hidden
    assert FAULTY & set(seen.ended("error")) == FAULTY & hidden


@pytest.mark.parametrize("name", ["plain", "read", "root"])
def test_container_is_entered_by_root_alone(name: str, compared: Compared) -> None:
    """Where the container's tool wants root, every item of the container is ERROR and says that; none is FAILED."""
    root, seen = compared.container[""], compared.container[name]
    ended = differences(root, seen)
    if name == "root":
        assert ended == {}
        return
    assert set(ended.values()) <= {(was, "error") for was in ("passed", "failed", "skipped")}, seen.output
    unseen = [item for item in ended if "please run as root" in seen.messages[item]]
    assert "test_container_runs[]" in unseen
    assert "test_service_is_active[]" in unseen
    assert len(unseen) > 8


@pytest.fixture
def reading_host(booted_lab_host: NspawnHost) -> Iterator[NspawnHost]:
    """A host whose user op has the sudoers file, and where a user svc is."""
    host = booted_lab_host
    host.reset()
    give(host, ACCOUNTS["read"])
    host.shell("id svc 2>/dev/null || useradd --system svc; mkdir -p -m 700 /etc/closed")
    yield host
    give(host, ACCOUNTS["plain"])


def connect(host: NspawnHost, *, sudo: bool) -> SshConnection:
    """Give a connection as op, with the reading rights or without."""
    return SshConnection(host.alias, f"op@{host.address}", config=str(host.ssh_config), sudo="read" if sudo else False)


def test_sudoers_file_is_accepted(reading_host: NspawnHost) -> None:
    """visudo(8) finds nothing wrong with it, strictly, and sudo lists no other command for the account."""
    checked = reading_host.shell("visudo -c -s -f /etc/sudoers.d/gpuinfra")
    assert "parsed OK" in checked.stdout
    listed = reading_host.shell("sudo -l -U op").stdout.partition("may run the following commands")[2]
    assert listed.count("/usr/bin/setpriv ") == 2
    assert listed.count("/usr/bin/python3") == 1
    assert listed.count("NOPASSWD") == 1


ATTEMPTS = r'''
import ctypes, json, os, signal, socket, subprocess, sys

libc = ctypes.CDLL(None, use_errno=True)
done = {}

def attempt(name, act):
    """Keep "" for what succeeded, else why it did not."""
    try:
        result = act()
        if result not in (None, 0):
            raise OSError(ctypes.get_errno() or result, "refused")
        done[name] = ""
    except (OSError, subprocess.SubprocessError) as error:
        done[name] = "%s: %s" % (type(error).__name__, error)

def write(path, flags=os.O_WRONLY):
    os.close(os.open(path, flags, 0o600))

def raise_ambient(number):
    return libc.prctl(47, 2, number, 0, 0)

attempt("write /etc/passwd", lambda: write("/etc/passwd"))
attempt("make a file in /etc", lambda: write("/etc/gpuinfra-was-here", os.O_WRONLY | os.O_CREAT))
attempt("make a file in a closed directory", lambda: write("/etc/closed/x", os.O_WRONLY | os.O_CREAT))
attempt("write a sudoers file", lambda: write("/etc/sudoers.d/more", os.O_WRONLY | os.O_CREAT))
attempt("remove /etc/passwd", lambda: os.rename("/etc/passwd", "/etc/passwd.gone"))
attempt("chmod /etc/shadow", lambda: os.chmod("/etc/shadow", 0o666))
attempt("chown /etc/shadow", lambda: os.chown("/etc/shadow", os.getuid(), -1))
attempt("link /etc/shadow", lambda: os.link("/etc/shadow", os.path.expanduser("~op/shadow")))
attempt("write a sysctl", lambda: write("/proc/sys/kernel/hostname"))
attempt("become uid 0", lambda: os.setresuid(0, 0, 0))
attempt("become another user", lambda: os.setuid(int(PLAN["svc"])))
attempt("become group 0", lambda: os.setresgid(0, 0, 0))
attempt("take groups", lambda: os.setgroups([0]))
attempt("mount", lambda: libc.mount(b"none", b"/mnt", b"tmpfs", 0, None))
attempt("chroot", lambda: os.chroot("/"))
attempt("make a device node", lambda: os.mknod("/tmp/gpuinfra-node", 0o20666, os.makedev(1, 1)))
attempt("signal PID 1", lambda: os.kill(1, 0))
attempt("seize PID 1", lambda: libc.ptrace(0x4206, 1, 0, 0))
attempt("seize another user's process", lambda: libc.ptrace(0x4206, int(PLAN["other"]), 0, 0))
attempt("write PID 1's memory", lambda: write("/proc/1/mem", os.O_RDWR))
attempt("read another user's environment", lambda: write("/proc/%s/environ" % PLAN["other"], os.O_RDONLY))
attempt("enter PID 1's namespaces", lambda: libc.setns(os.open("/proc/1/ns/mnt", os.O_RDONLY), 0))
attempt("raise sys_ptrace", lambda: raise_ambient(19))
attempt("raise sys_admin", lambda: raise_ambient(21))
attempt("raise dac_override", lambda: raise_ambient(1))
attempt("bind port 80", lambda: socket.socket().bind(("127.0.0.1", 80)))
attempt("sudo id", lambda: subprocess.check_call(["sudo", "-n", "id"]))
attempt("its own sudo rule from inside", lambda: subprocess.check_call(["sudo", "-n"] + PLAN["words"] + ["-c", "0"]))
attempt("su", lambda: subprocess.check_call(["su", "-c", "id"], stdin=subprocess.DEVNULL))
attempt("reboot", lambda: subprocess.check_call(["systemctl", "reboot", "--no-ask-password"]))
attempt("stop a unit", lambda: subprocess.check_call(["systemctl", "stop", "ssh", "--no-ask-password"]))
attempt("read /etc/shadow", lambda: write("/etc/shadow", os.O_RDONLY))
status = open("/proc/self/status").read()
seen = {line.split(":")[0]: line.split(":")[1].split() for line in status.splitlines()}
print(json.dumps({"done": done, "status": {k: v for k, v in seen.items() if k[:3] in ("Uid", "Gid", "Cap", "NoN")}}))
'''
MAY = {"read /etc/shadow"}
CAPABILITIES = f"{1 << 2 | 1 << 34:016x}"  # CAP_DAC_READ_SEARCH, CAP_SYSLOG


def granted_words(user: str) -> list[str]:
    """Give the command that the sudoers file grants, up to python3; from the file's own text."""
    line = next(line for line in sudoers(user).splitlines() if "/usr/bin/python3" in line)
    return line.strip().partition(" *")[0].replace("\\", "").split()


def test_account_reads_and_does_nothing_else(reading_host: NspawnHost) -> None:
    """What comes on standard input is an ordinary account with two capabilities; every attempt at more is refused."""
    host = reading_host
    host.shell("systemd-run --quiet --uid=svc --unit=bystander sleep infinity")
    pid = host.shell("systemctl show -p MainPID --value bystander").stdout.strip()
    svc = host.shell("id -u svc").stdout.strip()
    connection = connect(host, sudo=True)
    plan = {"other": pid, "svc": svc, "words": granted_words("op")}
    try:
        program = "import json, sys\nPLAN = json.loads(sys.stdin.readline())\n" + ATTEMPTS
        ended = connection.run_program(program, plan, timeout_s=30)
    finally:
        connection.close()
        host.shell("systemctl stop bystander")
    assert ended.exit_status == 0, ended.stderr
    seen = json.loads(ended.stdout.splitlines()[-1])

    assert {name for name, refusal in seen["done"].items() if not refusal} == MAY
    assert len(seen["done"]) > 30
    status = seen["status"]
    assert status["Uid"] == ["1000"] * 4
    assert status["Gid"] == ["1000"] * 4
    assert [status[f"Cap{which}"] for which in ("Inh", "Prm", "Eff", "Bnd", "Amb")] == [[CAPABILITIES]] * 5
    assert status["NoNewPrivs"] == ["1"]


def other_commands(words: list[str]) -> dict[str, list[str]]:
    """Give commands like the one that is granted, by what is another: words left out, changed, added, torn, joined."""
    made = {
        "a shell": ["/bin/sh"],
        "Python itself": ["/usr/bin/python3"],
        "setpriv alone": [words[0], "/usr/bin/python3"],
    }
    last = len(words) - 1
    for place, word in enumerate(words[1:last], 1):
        made[f"without {word}"] = [*words[:place], *words[place + 1 :]]
        made[f"{word} joined to the next"] = [*words[:place], f"{word} {words[place + 1]}", *words[place + 2 :]]
        made[f"from {word} on one word"] = [*words[:place], " ".join(words[place:])]
        joined = " ".join(words[place:])
        made[f"from {word} on one word, root behind it"] = [*words[:place], joined, "--reuid=root", "/usr/bin/python3"]
        made[f"{word} twice"] = [*words[: place + 1], word, *words[place + 1 :]]
        option, sign, value = word.partition("=")
        if sign:
            for more in ("root", "0", "+all", f"{value},+sys_admin"):
                made[f"{option}={more}"] = [*words[:place], f"{option}={more}", *words[place + 1 :]]
                made[f"{option}={more} behind it"] = [*words[:last], f"{option}={more}", words[last]]
            made[f"{option} torn"] = [*words[:place], option, value, *words[place + 1 :]]
    for python in ("/bin/sh", "python3", "/tmp/python3", "/usr/bin/python3.11", "/usr/bin/../bin/python3", "-d"):
        made[f"{python} in place of python3"] = [*words[:last], python]
    made["options behind python3"] = [*words, "--reuid=root", "/usr/bin/python3"]
    for more in (["-E"], ["-g", "root"], ["-u", "svc"], ["-D", "/root"], ["PYTHONPATH=/tmp"], ["LD_PRELOAD=/tmp/x.so"]):
        made[f"sudo {' '.join(more)}"] = [*more, *words]
    for name in ("root", "svc"):
        made[f"as {name}"] = [word.replace("=op", f"={name}") for word in words]
    return made


TRY = r"""
import json, subprocess, sys
shown = {}
for name, words in json.loads(sys.stdin.readline()).items():
    code = "print(open('/proc/self/status').read())"
    ended = subprocess.run(["sudo", "-n"] + words + ["-I", "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    shown[name] = [ended.returncode, ended.stdout.decode(), ended.stderr.decode()]
print(json.dumps(shown))
"""


def test_no_other_command_is_granted(reading_host: NspawnHost) -> None:
    """Of commands like the granted one, sudo refuses each, or setpriv does, or it runs with the same rights."""
    words = granted_words("op")
    tried = {"the granted one": words, **other_commands(words)}
    connection = connect(reading_host, sudo=False)
    try:
        ended = connection.run_program(TRY, tried, timeout_s=60)
    finally:
        connection.close()
    shown = json.loads(ended.stdout)

    assert shown["the granted one"][0] == 0, shown["the granted one"]
    assert len(shown) > 50
    ran = {name: output for name, (status, output, _) in shown.items() if status == 0}
    assert set(ran) == {"the granted one"}
    assert f"CapPrm:\t{CAPABILITIES}\n" in ran["the granted one"]
    assert "Uid:\t1000\t1000\t1000\t1000\n" in ran["the granted one"]


OWN_SERVICE = r"""
site=/home/op/.local/lib/python3.11/site-packages
install -d -o op -g op /home/op/.local /home/op/.local/lib /home/op/.local/lib/python3.11 $site
echo 'import os; open("/tmp/starts", "a").write(open("/proc/self/status").read())' >$site/spy.pth
cat >/etc/systemd/system/own.service <<'UNIT'
[Service]
Type=exec
User=op
ExecStart=/usr/bin/python3 -c "import time; time.sleep(1e9)"
UNIT
systemctl daemon-reload
systemctl restart own
until [ -s /tmp/starts ]; do sleep 0.05; done
rm -f /tmp/starts
"""
"""A service of the very account that logs in; each start of its Python writes down which rights it has."""


def test_service_of_the_account_itself_gets_no_capability(reading_host: NspawnHost, tmp_path: Path) -> None:
    """Its Python is started to see what it starts with, and has nothing of what the reader was given."""
    reading_host.shell(OWN_SERVICE)
    expect = 'service.python = "/usr/bin/python3*"\n\n[defaults]\nservice = "own"\n'
    arguments = ("--gpu-level=passive", "--gpu-sudo-read", str(SUITES / "serving"))
    seen = judge(reading_host, "nspawn", tmp_path, user="op", expect=expect, arguments=arguments)
    starts = reading_host.shell("cat /tmp/starts; rm -r /tmp/starts /home/op/.local; systemctl stop own").stdout

    assert seen.outcomes["test_python_is_the_expected_one[]"] == "passed", seen.output
    assert "CapEff:" in starts
    assert {line.split()[1] for line in starts.splitlines() if line.startswith(("CapPrm", "CapEff", "CapAmb"))} == {
        f"{0:016x}"
    }


def test_restricted_key_is_enough(reading_host: NspawnHost, tmp_path: Path) -> None:
    """With "restrict" in authorized_keys (no pty, no forwarding of anything) the host is judged as before."""
    keys = "/home/op/.ssh/authorized_keys"
    reading_host.shell(f"cp -p {keys} {keys}.kept; sed -i 's/^/restrict /' {keys}")
    seen = judge(reading_host, "nspawn", tmp_path, user="op", arguments=("--gpu-sudo-read",))
    reading_host.shell(f"mv {keys}.kept {keys}")

    assert seen.ended("failed", "error") == [], seen.output
    assert len(seen.ended("passed")) > 40


def test_missing_sudoers_file_is_named(booted_lab_host: NspawnHost, tmp_path: Path) -> None:
    """Without the file every item is ERROR, and says what to lay down."""
    give(booted_lab_host, ACCOUNTS["plain"])
    seen = judge(booted_lab_host, "nspawn", tmp_path, user="op", arguments=("--gpu-sudo-read",))

    assert seen.ended("passed", "failed") == []
    assert len(seen.ended("error")) > 40
    assert all("gpuinfra sudoers --user=NAME" in seen.messages[item] for item in seen.ended("error"))
