"""
A child of ours that is as another process: nothing of a service's own is started in any other way.

It imports nothing of ours and runs on Python 3.6 and later with the standard library only.
It travels with the probe, with the GPU programs and with launch.py.

`Subject` opens a process once and holds it: its directory of /proc, so that a reused number is another process;
its executable, root, working directory and namespaces, so that no path that it wrote is ever looked up.
`begin` forks a child that joins those of its namespaces that differ from ours and its control groups (device rules,
firewalls and limits hang on them), takes on its limits, groups, users and capabilities and sets no_new_privs. Where its
process namespace is another one, what is born into that has no more than those already, below a process of ours that
keeps what it leaves behind, so that it can be ended. What the child then is is read from /proc by its parent and
compared; only after that it executes the held file.
Whatever cannot be had ends in Refused, before anything of the process's is loaded: it is never run with more.

What a process is confined by and /proc does not show cannot be compared: Landlock rules.
Source: proc(5), setns(2), capabilities(7), prctl(2), cgroups(7), keyctl(2), credentials(7).
"""

import ctypes
import errno
import fcntl
import os
import re
import resource
import select
import signal
import stat
import time

NAMESPACES = (
    ("net", 0x40000000),
    ("ipc", 0x08000000),
    ("uts", 0x04000000),
    ("time", 0x00000080),
    ("cgroup", 0x02000000),
    ("mnt", 0x00020000),
    ("pid", 0x20000000),
    ("user", 0x10000000),
)
"""Names and flags in the order in which they are joined: the user namespace last, since it takes our rights away."""
LIBC = ctypes.CDLL(None, use_errno=True)
SET_PDEATHSIG, SET_DUMPABLE, SET_KEEPCAPS, CAPBSET_READ, CAPBSET_DROP = 1, 4, 8, 23, 24
SET_CHILD_SUBREAPER, SET_NO_NEW_PRIVS, CAP_AMBIENT = 36, 38, 47
AMBIENT_RAISE, AMBIENT_CLEAR_ALL = 2, 4
CAP_SYS_PTRACE = 19
CAPABILITY_VERSION = 0x20080522
KEYCTL = {"x86_64": 250, "aarch64": 219, "ppc64le": 271, "s390x": 280, "riscv64": 219}
JOIN_SESSION_KEYRING = 1
O_PATH = 0o10000000
DESCRIPTORS_MAX = 4096
GRACE_S = 0.5  # less than that of whoever asks a relay to end, so that the dead are collected in their own namespace
RIGHTS = ("Uid", "Gid", "Groups", "CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb", "NoNewPrivs", "Seccomp")
UNCONFINED = re.compile(r"unconfined$|(?:[^:]*:){2}(?:unconfined_t|unconfined_service_t)(?::|$)|$")
LEAVES_FILES = re.compile(r"(?:NCCL|CUDA|NVIDIA|TORCH|PYTORCH|OMP|LD)_.*(?:DUMP|TRACE|PROFIL|DEBUG_FILE|DEBUG_INFO)")
"""Variables of a process by which a library would write files; PYTHONINSPECT would keep an interpreter from ending."""
PYTHON = re.compile(r"(?:python|pypy)[\d.]*(?: \(deleted\))?\Z")
"""Names of executables that are a Python."""
FLAGS = re.compile(rb"-[EIsSOuBP]+\Z")


class Refused(Exception):
    """It cannot be run as that process; the text says why."""


def refuse(what, error):
    """Raise Refused for an OSError."""
    name = errno.errorcode.get(error.errno, "") if error.errno else ""
    raise Refused("%s: %s%s" % (what, name + ": " if name else "", error.strerror or error))


def call(function, *arguments):
    """Call the C library, and raise OSError where it returns -1."""
    result = getattr(LIBC, function)(*[ctypes.c_ulong(one) if isinstance(one, int) else one for one in arguments])
    if result == -1:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result


def read_at(directory, name, limit=1 << 20):
    """Give the bytes of a file below an open directory, up to a limit."""
    descriptor = os.open(name, os.O_RDONLY | os.O_CLOEXEC, dir_fd=directory)
    try:
        parts, size = [], 0
        while size < limit:
            part = os.read(descriptor, min(65536, limit - size))
            if not part:
                break
            parts.append(part)
            size += len(part)
        return b"".join(parts)
    finally:
        os.close(descriptor)


def parse_status(data):
    """Give the fields of /proc/PID/status by name."""
    pairs = (line.partition(":") for line in data.decode("utf-8", "backslashreplace").split("\n"))
    return {name: value.strip() for name, _, value in pairs}


def parse_cgroups(data):
    """Give the control groups of /proc/PID/cgroup: path by controllers; "" for those of version 2."""
    lines = [line.split(":", 2) for line in data.decode("utf-8", "surrogateescape").split("\n")]
    return {line[1]: line[2] for line in lines if len(line) == 3}


def numbers(text):
    """Give the numbers of a field of status."""
    return [int(one) for one in text.split()]


class Subject:
    """
    A process that a child is to be like.

    Args:
        pid: Its number in our process namespace.
        started: Its start time in clock ticks since boot (field 22 of /proc/PID/stat); None for whichever has the
            number now.

    Attributes:
        executable: Path of its executable as the kernel shows it, without " (deleted)".
        argv: Its command line as it stands in its memory, bytes; it may have written anything there.
        environment: Its environment, likewise. bytes by bytes.

    Raises:
        Refused: It is gone, another one, or cannot be read whole.
    """

    def __init__(self, pid, started=None):
        self.pid = pid
        self.held = []
        if pid <= 1:
            raise Refused("process %d is nothing to run as" % pid)
        try:
            self._open(started)
        except OSError as error:
            self.close()
            if error.errno in (errno.ENOENT, errno.ESRCH):
                raise Refused("process %d is gone" % pid) from None
            refuse("process %d cannot be read" % pid, error)
        except Refused:
            self.close()
            raise

    def _hold(self, descriptor):
        self.held.append(descriptor)
        return descriptor

    def _open(self, started):
        path_only = O_PATH | os.O_CLOEXEC
        self.proc = self._hold(os.open("/proc/%d" % self.pid, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
        state, self.started = self._state()
        if started is not None and started != self.started:
            raise Refused("process %d is another one than the one that was looked at" % self.pid)
        if state in "ZXx":
            raise Refused("process %d has ended (state %s)" % (self.pid, state))
        try:
            link = os.readlink("exe", dir_fd=self.proc)
        except OSError as error:
            if error.errno == errno.ENOENT and os.path.isdir("/proc/%d" % self.pid):
                raise Refused("process %d has no executable: it is the kernel's own" % self.pid) from None
            raise
        before = self._rights()
        self.status = parse_status(read_at(self.proc, "status"))
        self.executable = link[: -len(" (deleted)")] if link.endswith(" (deleted)") else link
        self.exe = self._hold(os.open("exe", path_only, dir_fd=self.proc))
        self.root = self._hold(os.open("root", path_only | os.O_DIRECTORY, dir_fd=self.proc))
        self.cwd = self._hold(os.open("cwd", path_only | os.O_DIRECTORY, dir_fd=self.proc))
        self.namespaces = {}
        for name, _ in NAMESPACES:
            if os.path.exists("/proc/self/ns/" + name):
                descriptor = os.open("ns/" + name, os.O_RDONLY | os.O_CLOEXEC, dir_fd=self.proc)
                self.namespaces[name] = self._hold(descriptor)
        self.cgroups = parse_cgroups(read_at(self.proc, "cgroup"))
        self.limits = parse_limits(read_at(self.proc, "limits"))
        self.label = read_label(self.proc)
        self.argv = read_at(self.proc, "cmdline").rstrip(b"\0").split(b"\0")
        block = read_at(self.proc, "environ", 1 << 22)
        self.environment = dict(piece.split(b"=", 1) for piece in block.split(b"\0") if b"=" in piece[1:])
        if self._rights() != before or self._state()[1] != self.started:
            raise Refused("process %d changed its rights or its program while it was looked at" % self.pid)

    def _state(self):
        fields = read_at(self.proc, "stat").rpartition(b")")[2].split()
        return fields[0].decode(), int(fields[19])

    def _rights(self):
        """Give all that would make it another one in the middle of a reading."""
        status = parse_status(read_at(self.proc, "status"))
        place = [same_file(os.stat(name, dir_fd=self.proc)) for name in ("root", "exe", "ns/user", "ns/mnt")]
        return [status.get(name) for name in RIGHTS], place

    def identity(self, name):
        """Give its users ("Uid") or groups ("Gid"): real, effective, saved, of the file system."""
        return numbers(self.status[name])

    def capabilities(self, name):
        """Give one of its capability sets as a number."""
        return int(self.status["Cap" + name], 16)

    def child_environment(self, without=()):
        """Give its environment for a child: without what makes a library write files, and without these (bytes)."""
        return {
            name: value
            for name, value in self.environment.items()
            if not LEAVES_FILES.match(name.decode("utf-8", "replace"))
            and name != b"PYTHONINSPECT"
            and name not in without
        }

    def close(self):
        """Let go of it."""
        for descriptor in self.held:
            os.close(descriptor)
        self.held = []


def interpreter_argv(subject):
    """Give the beginning of the argv of a process's Python: its name, by which it finds a venv, and flags. bytes."""
    first = subject.argv[0]
    if not PYTHON.match(os.path.basename(first.decode("utf-8", "replace"))):
        return [os.fsencode(subject.executable)]  # it has been renamed
    flags = []
    for word in subject.argv[1:]:
        if not FLAGS.match(word):
            break
        flags.append(word)
    return [first, *flags]


def same_file(found):
    """Give what makes two stat results one file."""
    return found.st_dev, found.st_ino


def parse_limits(data):
    """Give (soft, hard) by the number of each limit, from /proc/PID/limits, whose lines come in that order."""
    lines = [line[26:].split() for line in data.decode().splitlines()[1:]]
    value = {"unlimited": resource.RLIM_INFINITY}
    return [tuple(value[one] if one in value else int(one) for one in line[:2]) for line in lines]


def read_label(directory):
    """Give the label of a security module (AppArmor, SELinux); "" where there is none."""
    try:
        return read_at(directory, "attr/current").decode("utf-8", "replace").strip("\0\n ")
    except OSError:
        return ""


def check_confinement(subject):
    """Refuse where it is confined by something that a child of ours cannot take on."""
    own_proc = os.open("/proc/self", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        own = parse_status(read_at(own_proc, "status"))
        label = read_label(own_proc)
    finally:
        os.close(own_proc)
    theirs, ours = int(subject.status.get("Seccomp", "0")), int(own.get("Seccomp", "0"))
    count = int(subject.status.get("Seccomp_filters", "0" if not theirs else "-1"))
    if theirs and (ours != theirs or count < 0 or int(own.get("Seccomp_filters", "0")) < count):
        raise Refused(
            "process %d runs under %s, which a child of ours would not have"
            % (subject.pid, "%d seccomp filters" % count if count > 0 else "a seccomp filter")
        )
    if subject.label != label and not UNCONFINED.match(subject.label) and enforced():
        raise Refused(
            "process %d is confined as %s, and a child of ours would be %s"
            % (subject.pid, subject.label, label or "nothing")
        )


def enforced():
    """Whether a security module's label has effect; SELinux says so, and AppArmor's always have."""
    try:
        with open("/sys/fs/selinux/enforce") as stream:
            return stream.read().strip() != "0"
    except OSError:
        return True


def cgroup_mounts():
    """Give the mounts of control groups: (root, mount point, controllers, whether version 2)."""
    found = []
    with open("/proc/self/mountinfo", errors="surrogateescape") as stream:
        for line in stream:
            fields, _, rest = line.partition(" - ")
            kind, _, options = rest.strip().split(" ", 2)
            if kind in ("cgroup", "cgroup2"):
                root, place = fields.split()[3:5]
                found.append((root, place.replace("\\040", " "), options.split(","), kind == "cgroup2"))
    return found


def cgroup_directory(controllers, path):
    """Give the directory of a control group here."""
    for root, place, options, second in cgroup_mounts():
        fits = second if not controllers else not second and set(controllers.split(",")) <= set(options)
        if fits and (root == "/" or path == root or path.startswith(root + "/")):
            directory = place + (path if root == "/" else path[len(root) :])
            if ".." not in directory.split("/") and os.path.isdir(directory):
                return directory
    raise Refused("the control group %s:%s cannot be reached from here, so it cannot be joined" % (controllers, path))


def read_number(path):
    """Give the number in a file; None where there is none."""
    try:
        with open(path) as stream:
            return int(stream.read())
    except (OSError, ValueError):
        return None


def check_room(directory, needed):
    """Refuse where a control group's memory has no room for a child: the service itself might be killed for it."""
    while directory.count("/") > 3:
        for most, used in (
            ("memory.max", "memory.current"), ("memory.limit_in_bytes", "memory.usage_in_bytes"),
        ):  # fmt: skip
            limit, taken = (read_number(os.path.join(directory, name)) for name in (most, used))
            if limit is not None and taken is not None and limit - taken < needed:
                raise Refused(
                    "its control group %s has room for %d MiB more, and %d MiB may be needed"
                    % (directory, max(0, limit - taken) >> 20, needed >> 20)
                )
        directory = os.path.dirname(directory)


def open_cgroups(subject, needed):
    """Give descriptors of the cgroup.procs of those of its control groups that are not ours."""
    with open("/proc/self/cgroup", "rb") as stream:
        own = parse_cgroups(stream.read())
    found = []
    for controllers, path in subject.cgroups.items():
        if own.get(controllers) == path:
            continue
        directory = cgroup_directory(controllers, path)
        check_room(directory, needed)
        try:
            found.append(os.open(directory + "/cgroup.procs", os.O_WRONLY | os.O_CLOEXEC))
        except OSError as error:
            refuse("its control group %s cannot be joined" % directory, error)
    return found


def begin(subject, argv, environment, keep=(), needed=256 << 20, executable=None):
    """
    Start a child as a process; standard input, output and error are ours.

    Args:
        subject: The process.
        argv: Words, str or bytes; the first is mere data.
        environment: bytes or str by name.
        keep: Descriptors beside the three that the child has, as 3, 4, ...
        needed: Bytes of memory that it may come to need.
        executable: Descriptor of another file to execute; None for the process's own.

    Returns:
        What `relay` takes: (child of ours, the process that has executed the file, descriptor). They are one process,
        and None, where the process namespace is ours; else the descriptor tells the wait status, as text, and the
        child holds whatever the process leaves behind.

    Raises:
        Refused: It could not be made as the process is, and has ended.
    """
    check_confinement(subject)
    privileged = os.geteuid() == 0
    groups = open_cgroups(subject, needed) if privileged else []  # an ordinary user gives none of its own rights here
    for descriptor in (0, 1, 2, *keep):
        hand_over(descriptor, subject)
    subject.other_users = "user" in subject.namespaces and differs("user", subject.namespaces["user"])
    elsewhere = "pid" in subject.namespaces and differs("pid", subject.namespaces["pid"])
    report_read, report_write = os.pipe()
    gate_read, gate_write = os.pipe()
    ends_read, ends_write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(report_read)
            os.close(gate_write)
            executable = subject.exe if executable is None else executable
            if elsewhere:
                step[0] = "its pid namespace cannot be joined"
                call("setns", subject.namespaces["pid"], dict(NAMESPACES)["pid"])
            report_write, gate, executable, ends = become(
                subject, groups, privileged, (report_write, gate_read, executable, ends_write, *keep)
            )
            if elsewhere:
                step[0] = "a child in its pid namespace"
                descend(ends)
            os.close(ends)
            os.write(report_write, b"R")
            if os.read(gate, 1) != b"G":
                os._exit(126)
            os.execve(executable, argv, environment)
        except OSError as error:
            os.write(report_write, ("%s: %s" % (step[0], error.strerror or error)).encode())
        except BaseException as error:
            os.write(report_write, ("%s: %s" % (step[0], error)).encode("utf-8", "replace"))
        finally:
            os._exit(126)
    for descriptor in (report_write, gate_read, ends_write, *groups):
        os.close(descriptor)
    try:
        lowest = wait_for_exec(subject, child, report_read, gate_write)
    except Refused:
        os.close(ends_read)
        end_child(child)
        raise
    finally:
        os.close(report_read)
        os.close(gate_write)
    if not elsewhere:
        os.close(ends_read)
    return child, lowest, ends_read if elsewhere else None


step = [""]  # what the child is about to do, for its error


def hand_over(descriptor, subject):
    """Give a pipe to the process's user: by name (/dev/stdout) only its owner can open it."""
    try:
        if os.geteuid() == 0 and stat.S_ISFIFO(os.fstat(descriptor).st_mode):
            os.fchown(descriptor, subject.identity("Uid")[1], subject.identity("Gid")[1])
    except OSError:
        pass  # it can be written to all the same


def differs(name, descriptor):
    """Whether a namespace is another one than ours."""
    return same_file(os.fstat(descriptor)) != same_file(os.stat("/proc/self/ns/" + name))


def descend(ends):
    """
    Go on in the process namespace that was joined: a child of a child of this process returns.

    The one between is of that namespace, with no more rights than the process has: orphans there become its children.
    It writes the wait status of the one below it, and stays until it is killed.
    """
    below = os.fork()
    if below:
        os.closerange(0, DESCRIPTORS_MAX)
        os.waitpid(below, 0)
        os._exit(0)
    call("prctl", SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    call("prctl", SET_DUMPABLE, 0, 0, 0, 0)
    call("prctl", SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    below = os.fork()
    if below == 0:
        os.setsid()  # what it does to its own group is not done to us
        call("prctl", SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
        return
    os.closerange(0, ends)  # its /proc need not show us
    os.closerange(ends + 1, DESCRIPTORS_MAX)
    while True:
        try:
            ended, status = os.wait()
        except ChildProcessError:
            signal.pause()
            continue
        if ended == below:
            os.write(ends, b"%d" % status)


def wait_for_exec(subject, child, report, gate):
    """See the child become ready, compare it, let it go, and see it execute; gives the number that it has."""
    lowest = child
    first = os.read(report, 1)
    if first == b"R":
        lowest = [child, *descendants(child)][-1]
        compare(subject, lowest)
        os.write(gate, b"G")
        first = b""
    rest = first + os.read(report, 4096)
    if rest:
        raise Refused("process %d: %s" % (subject.pid, rest.decode("utf-8", "replace")))
    if not alive(lowest):
        raise Refused("process %d: the child as it ended before it ran anything" % subject.pid)
    return lowest


def descendants(pid):
    """Give the processes below one, parents first; those that cannot be read are left out."""
    found = [pid]
    for parent in found:
        try:
            for task in os.listdir("/proc/%d/task" % parent):
                with open("/proc/%d/task/%s/children" % (parent, task)) as stream:
                    found += [int(one) for one in stream.read().split()]
        except (OSError, ValueError):
            continue
    return found[1:]


def kill_below(pid, but=()):
    """Kill whatever is below a process, and what that starts meanwhile."""
    for _ in range(50):
        left = [one for one in descendants(pid) if one not in but]
        if not left:
            return
        for one in left:
            send(one, signal.SIGKILL)
        time.sleep(0.01)


def alive(child):
    """Whether a child has a number still; one that has ended is left for whoever waits."""
    return os.path.exists("/proc/%d" % child)


def end_child(child):
    """Kill and collect a child."""
    try:
        os.kill(child, signal.SIGKILL)
    except OSError:
        pass
    try:
        os.waitpid(child, 0)
    except OSError:
        pass


def become(subject, groups, privileged, keep):
    """Take on everything of a process; gives the descriptors of `keep` as they are afterwards. In the child only."""
    step[0] = "a session of its own"
    close_all_but((0, 1, 2, *keep, *groups, *subject.held))
    for number in range(1, 65):
        try:
            signal.signal(number, signal.SIG_DFL)
        except (OSError, ValueError):
            continue
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    os.setsid()
    if privileged and capability_get()[0] >> CAP_SYS_PTRACE & 1:  # or our parent could not compare us
        call("prctl", SET_DUMPABLE, 0, 0, 0, 0)  # nobody in there can look into us while we still hold rights
    new_keyring()
    step[0] = "its control group cannot be joined"
    for descriptor in groups:
        os.write(descriptor, b"0")
    enter(subject)
    take_limits(subject)
    take_identity(subject)
    take_capabilities(subject)
    step[0] = "closing what is ours"
    moved = hand_on(keep[4:], keep[:4])
    call("prctl", SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    step[0] = "executing its file"
    return moved


def close_all_but(keep):
    """Close every other descriptor of this process, which has one thread."""
    for name in os.listdir("/proc/self/fd"):
        if int(name) not in keep:
            try:
                os.close(int(name))
            except OSError:
                pass  # the listing's own


def hand_on(given, ours):
    """Make descriptors 3, 4, ... of those that are given; gives where ours are afterwards. An execution closes ours."""
    above = 3 + len(given)
    moved = [fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, above) for descriptor in (*given, *ours)]
    for number, descriptor in enumerate(moved[: len(given)]):
        os.dup2(descriptor, 3 + number)
    return moved[len(given) :]


def new_keyring():
    """Leave our session's keys behind, where the kernel has keys at all."""
    number = KEYCTL.get(os.uname()[4])
    if number is not None:
        LIBC.syscall(ctypes.c_long(number), ctypes.c_long(JOIN_SESSION_KEYRING), None)


def enter(subject):
    """Join its namespaces but those of users and processes, then its root and its working directory."""
    for name, flag in NAMESPACES:
        descriptor = subject.namespaces.get(name)
        if name not in ("user", "pid") and descriptor is not None and differs(name, descriptor):
            step[0] = "its %s namespace cannot be joined" % name
            call("setns", descriptor, flag)
            if name == "mnt":
                break  # /proc may be another one from here on; the mount namespace is the last of these
    step[0] = "its root directory cannot be entered"
    if same_file(os.stat("/")) != same_file(os.fstat(subject.root)):
        os.fchdir(subject.root)
        os.chroot(".")
    step[0] = "its working directory cannot be entered"
    os.fchdir(subject.cwd)


def take_limits(subject):
    """Take on its limits where they can be had, and never more; no core dump is left."""
    step[0] = "its limits"
    for number, given in enumerate(subject.limits):
        theirs = (0, 0) if number == resource.RLIMIT_CORE else given
        try:
            resource.setrlimit(number, theirs)
        except (OSError, ValueError):
            ours = resource.getrlimit(number)
            least = [min(ours[place], theirs[place], key=lambda one: (one == -1, one)) for place in (0, 1)]
            resource.setrlimit(number, tuple(least))
    if "Umask" in subject.status:
        os.umask(int(subject.status["Umask"], 8))


def take_identity(subject):
    """Take on its groups and users, then its user namespace; capabilities stay until they are set."""
    groups = numbers(subject.status["Groups"])
    step[0] = "its groups cannot be taken on"
    if sorted(set(groups)) != sorted(set(os.getgroups())):
        os.setgroups(groups)
    call("prctl", SET_KEEPCAPS, 1, 0, 0, 0)
    step[0] = "its group cannot be taken on"
    if list(os.getresgid()) != subject.identity("Gid")[:3]:
        os.setresgid(*subject.identity("Gid")[:3])
    step[0] = "its user cannot be taken on"
    if list(os.getresuid()) != subject.identity("Uid")[:3]:
        os.setresuid(*subject.identity("Uid")[:3])
    descriptor = subject.namespaces.get("user")
    if descriptor is not None and subject.other_users:
        step[0] = "its user namespace cannot be joined"
        permitted = capability_get()[1]
        capability_set(permitted, permitted, 0)
        call("setns", descriptor, dict(NAMESPACES)["user"])


def take_capabilities(subject):
    """Set its capabilities, and nothing that an execution could regain beyond what it has in effect."""
    in_effect = subject.capabilities("Prm") & subject.capabilities("Eff")
    inheritable = subject.capabilities("Inh") & in_effect
    permitted = capability_get()[1]
    capability_set(permitted, permitted, 0)
    step[0] = "its capability bounding set cannot be taken on"
    bounding = subject.capabilities("Bnd") & in_effect
    for number in range(64):
        if LIBC.prctl(CAPBSET_READ, ctypes.c_ulong(number), 0, 0, 0) == 1 and not bounding >> number & 1:
            try:
                call("prctl", CAPBSET_DROP, number, 0, 0, 0)
            except OSError:
                if not subject.capabilities("Bnd") >> number & 1 or 0 in os.getresuid():
                    raise  # an execution as root would give it
    step[0] = "its capabilities cannot be taken on"
    if LIBC.prctl(CAP_AMBIENT, ctypes.c_ulong(AMBIENT_CLEAR_ALL), 0, 0, 0) == -1 and ctypes.get_errno() != errno.EINVAL:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    wanted = in_effect & capability_get()[1]
    capability_set(wanted, wanted, inheritable & wanted)
    for number in range(64):
        if subject.capabilities("Amb") & inheritable & wanted & (1 << number):
            call("prctl", CAP_AMBIENT, AMBIENT_RAISE, number, 0, 0)
    step[0] = "no_new_privs cannot be set"
    call("prctl", SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    call("prctl", SET_KEEPCAPS, 0, 0, 0, 0)


def capability_get():
    """Give our own (effective, permitted, inheritable) sets as numbers."""
    header = (ctypes.c_uint32 * 2)(CAPABILITY_VERSION, 0)
    data = (ctypes.c_uint32 * 6)()
    call("capget", ctypes.byref(header), ctypes.byref(data))
    return tuple(data[place] | data[place + 3] << 32 for place in range(3))


def capability_set(effective, permitted, inheritable):
    """Set our own capability sets."""
    header = (ctypes.c_uint32 * 2)(CAPABILITY_VERSION, 0)
    low = [one & 0xFFFFFFFF for one in (effective, permitted, inheritable)]
    high = [one >> 32 for one in (effective, permitted, inheritable)]
    call("capset", ctypes.byref(header), ctypes.byref((ctypes.c_uint32 * 6)(*low, *high)))


def compare(subject, child):
    """Refuse a child that is anything more, or anywhere else, than the process; /proc tells what it is."""
    own = os.open("/proc/%d" % child, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        got = parse_status(read_at(own, "status"))
        theirs = subject.status
        wrong = [name for name in ("Uid", "Gid") if numbers(got[name])[:3] != numbers(theirs[name])[:3]]
        wrong += [name for name in ("Uid", "Gid") if not set(numbers(got[name])) <= set(numbers(theirs[name]))]
        wrong += ["Groups"] if set(numbers(got["Groups"])) != set(numbers(theirs["Groups"])) else []
        wrong += [
            "Cap" + name
            for name in ("Inh", "Prm", "Eff", "Bnd", "Amb")
            if int(got.get("Cap" + name, "0"), 16) & ~int(theirs.get("Cap" + name, "0"), 16)
        ]
        wrong += ["NoNewPrivs"] if got.get("NoNewPrivs", "1") != "1" else []
        for name, descriptor in subject.namespaces.items():
            if same_file(os.fstat(descriptor)) != same_file(os.stat("ns/" + name, dir_fd=own)):
                wrong.append("the %s namespace" % name)
        for name, descriptor in (("root", subject.root), ("cwd", subject.cwd)):
            if same_file(os.fstat(descriptor)) != same_file(os.stat(name, dir_fd=own)):
                wrong.append("the %s directory" % name)
        if os.geteuid() == 0 and parse_cgroups(read_at(own, "cgroup")) != subject.cgroups:
            wrong.append("the control group")
    except OSError as error:
        refuse("what the child as process %d is cannot be read" % subject.pid, error)
    finally:
        os.close(own)
    if wrong:
        raise Refused("a child as process %d is not as that is: %s" % (subject.pid, ", ".join(sorted(set(wrong)))))


def relay(started):
    """Wait for what `begin` started and end as it ended; asked to end, ask it, then kill it. Never returns."""
    child, lowest, ends = started

    def ask(number, _frame):
        send(lowest, number)
        send(lowest, signal.SIGCONT)
        signal.setitimer(signal.ITIMER_REAL, GRACE_S)

    signal.signal(signal.SIGALRM, lambda _number, _frame: send(lowest, signal.SIGKILL))
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(number, ask)
    nothing = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(nothing, descriptor)
    if ends is None:
        status = os.waitpid(child, 0)[1]
    else:
        status = int(os.read(ends, 16) or int(signal.SIGKILL))
        kill_below(child, but=descendants(child)[:1])
        end_child(child)
    if os.WIFSIGNALED(status):
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        if os.WTERMSIG(status) not in (signal.SIGKILL, signal.SIGSTOP):
            signal.signal(os.WTERMSIG(status), signal.SIG_DFL)
        os.kill(os.getpid(), os.WTERMSIG(status))
    os._exit(os.WEXITSTATUS(status) if os.WIFEXITED(status) else 1)


def send(child, number):
    """Send a signal, if there is still whom to send it to."""
    try:
        os.kill(child, number)
    except OSError:
        pass


def die_with(parent):
    """Ask the kernel to kill this process when its parent ends."""
    call("prctl", SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != parent:
        os._exit(4)


def output_of(subject, argv, environment, timeout_s, limit, executable=None):
    """
    Run a file of a process as that process, and read what it writes.

    Args:
        timeout_s: Seconds until it is killed.
        limit: Bytes of each output that are read; more ends it.
        executable: As of `begin`.

    Returns:
        (standard output, standard error, wait status), bytes and the status of waitpid(2); the status is None where
        it was killed at the deadline or for its flood of output.

    Raises:
        Refused: It could not be started as that process.
    """
    pipes = [os.pipe() for _ in range(3)]
    parent = os.getpid()
    child = os.fork()
    if child == 0:
        try:
            die_with(parent)
            writers = [pipe[1] for pipe in pipes]
            close_all_but((*writers, *subject.held, executable))
            os.setpgid(0, 0)
            os.chdir("/")
            start_on(subject, argv, environment, writers, executable)
        finally:
            os._exit(1)
    readers = [pipe[0] for pipe in pipes]
    for pipe in pipes:
        os.close(pipe[1])
    texts, whole = read_outputs(readers, time.monotonic() + timeout_s, limit)
    for descriptor in readers:
        os.close(descriptor)
    if not whole:
        send(child, signal.SIGTERM)
        until = time.monotonic() + 2 * GRACE_S
        while time.monotonic() < until and not os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT):
            time.sleep(0.01)
        kill_below(child)
        send(child, signal.SIGKILL)
    status = os.waitpid(child, 0)[1]
    if texts[2]:
        raise Refused(texts[2].decode("utf-8", "replace"))
    return texts[0], texts[1], status if whole else None


def start_on(subject, argv, environment, writers, executable):
    """Start the file on pipes (output, error, why not), and end as it ends; never returns."""
    nothing = os.open(os.devnull, os.O_RDONLY)
    out, err, why = [fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, 3) for descriptor in writers]
    for source, target in ((nothing, 0), (out, 1), (err, 2)):
        os.dup2(source, target)
    for descriptor in (nothing, out, err, *writers):
        if descriptor > 2:
            os.close(descriptor)
    try:
        started = begin(subject, argv, environment, executable=executable)
    except Refused as refused:
        os.write(why, str(refused).encode("utf-8", "replace"))
        os._exit(126)
    os.close(why)
    relay(started)


def read_outputs(readers, until, limit):
    """Read pipes to their ends; gives (their bytes, whether all ended in time and within the limit)."""
    texts = dict.fromkeys(readers, b"")
    still = list(readers)
    while still:
        ready = select.select(still, [], [], max(0.0, until - time.monotonic()))[0]
        if not ready:
            return [texts[one] for one in readers], False
        for descriptor in ready:
            data = os.read(descriptor, 65536)
            texts[descriptor] += data
            if len(texts[descriptor]) > limit:
                return [texts[one] for one in readers], False
            if not data:
                still.remove(descriptor)
    return [texts[one] for one in readers], True
