"""
Bounds while something is read: files, directories and the output of programs, of which others choose the size.

This file imports nothing of ours and runs on Python 3.6 and later with the standard library only.
It travels with the probe and with the sampler.
"""

import errno
import fnmatch
import os
import select
import signal
import stat
import subprocess
import time

STDERR_MAX = 65536
NAMES_MAX = 16384
LOOKED_AT_MAX = 1000000
LEFT_BEHIND_S = 1.0
O_PATH = 0o10000000  # open(2); a Python that was built against old headers lacks the name


def name_text(name):
    """Give a name of the file system as a line that any encoding takes; what does not fit as backslash escapes."""
    return os.fsencode(name).decode("utf-8", "backslashreplace").replace("\n", "\\x0a")


def open_regular(path):
    """
    Open a file for reading, without ever opening a FIFO, a device or a socket, which could wait or do something.

    The path may be exchanged by others meanwhile: what was looked at is what is opened (open(2), O_PATH).

    Raises:
        OSError: It cannot be opened; EISDIR for a directory, EINVAL for what is neither file nor directory.
    """
    place = os.open(path, O_PATH | os.O_CLOEXEC)
    try:
        mode = os.fstat(place).st_mode
        if stat.S_ISDIR(mode):
            raise OSError(errno.EISDIR, os.strerror(errno.EISDIR))
        if not stat.S_ISREG(mode):
            raise OSError(errno.EINVAL, "no regular file (a FIFO, device or socket)")
        try:
            return os.open("/proc/self/fd/%d" % place, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
        except FileNotFoundError:  # the file is there: it is /proc that is not
            raise OSError(errno.ENXIO, "/proc is not mounted") from None
    finally:
        os.close(place)


def pieces_of(path):
    """Give a file's bytes piece by piece; OSError as `open_regular`, or what reading met."""
    descriptor = open_regular(path)
    try:
        while True:
            piece = os.read(descriptor, 65536)
            if not piece:
                return
            yield piece
    finally:
        os.close(descriptor)


def read_start(path, limit):
    """Give at most limit + 1 bytes of a file: one more than the limit tells that there is more."""
    parts = []
    size = 0
    for piece in pieces_of(path):
        parts.append(piece)
        size += len(piece)
        if size > limit:
            break
    return b"".join(parts)[: limit + 1]


def lines_of(path, limit):
    """
    Give a file's lines, one at a time.

    Raises:
        OSError: EFBIG where it is longer than the limit, after the lines up to there; else as `pieces_of`.
    """
    rest = b""
    size = 0
    for piece in pieces_of(path):
        size += len(piece)
        if size > limit:
            raise OSError(errno.EFBIG, "longer than %d bytes" % limit)
        lines = (rest + piece).split(b"\n")
        rest = lines.pop()
        for line in lines:
            yield line
    if rest:
        yield rest


def names_in(path, patterns=None):
    """
    List a directory, or those names that one of some patterns matches; sorted.

    Raises:
        OSError: It cannot be listed; EFBIG where that are more than NAMES_MAX names, or LOOKED_AT_MAX were looked at.
    """
    found = []
    looked_at = 0
    with os.scandir(path) as entries:
        for entry in entries:
            looked_at += 1
            if not patterns or any(fnmatch.fnmatchcase(entry.name, pattern) for pattern in patterns):
                found.append(entry.name)
            if len(found) > NAMES_MAX or looked_at > LOOKED_AT_MAX:
                raise OSError(errno.EFBIG, "more than %d names" % min(looked_at - 1, LOOKED_AT_MAX))
    return sorted(found)


class Output:
    """
    What a program printed, as far as its limits went.

    Attributes:
        out: Standard output.
        err: Standard error.
        over: "out" or "err" where that was longer than its limit: the program was killed then; else "".
        in_time: Whether it ended within its time.
        status: Its exit status, negative for a signal; None where it was killed and did not even end then.
    """

    def __init__(self):
        self.out = b""
        self.err = b""
        self.over = ""
        self.in_time = True
        self.status = None


def run_bounded(argv, limit, timeout_s, **how):
    """
    Run a program, reading no more of its output than the limit and STDERR_MAX.

    It has a process group of its own, which is killed when a limit or the time is over, and when the program has ended
    and something that it left behind still holds its output.

    Args:
        argv: Program and arguments.
        limit: Bytes of standard output.
        timeout_s: Seconds for it and its output.
        how: More for subprocess.Popen: env, cwd, preexec_fn, pass_fds, executable.

    Returns:
        An Output.

    Raises:
        OSError, ValueError, subprocess.SubprocessError: It cannot be started.
    """
    process = subprocess.Popen(
        argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True, **how
    )
    until = time.monotonic() + timeout_s
    output = Output()
    try:
        out, err = process.stdout.fileno(), process.stderr.fileno()
        kept = move({out: limit, err: STDERR_MAX}, until, process, output)
        output.out, output.err = kept[out], kept[err]
        output.over = "out" if len(output.out) > limit else "err" if len(output.err) > STDERR_MAX else ""
    finally:
        end_group(process, output, until)
    return output


def move(limits, until, process, output):
    """Read from descriptors until they end, one is over its limit, or the time is over; gives bytes by descriptor."""
    parts = {descriptor: [] for descriptor in limits}
    sizes = dict.fromkeys(limits, 0)
    still = set(limits)
    ended_at = None
    while still and all(sizes[one] <= limits[one] for one in limits):
        now = time.monotonic()
        if ended_at is None and process.poll() is not None:
            ended_at = now
        if ended_at is not None and now - ended_at > LEFT_BEHIND_S:
            break
        if now >= until:
            output.in_time = False
            break
        for descriptor in select.select(list(still), [], [], min(0.2, until - now))[0]:
            piece = os.read(descriptor, 65536)
            if piece:
                parts[descriptor].append(piece)
                sizes[descriptor] += len(piece)
            else:
                still.discard(descriptor)
    return {one: b"".join(parts[one])[: limits[one] + 1] for one in limits}


def end_group(process, output, until):
    """See a program off: wait for one that closed its output, else kill its group; its status goes to the output."""
    if not output.over and output.in_time:
        try:
            process.wait(max(0.0, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            output.in_time = False
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except OSError:
        pass  # nobody is left
    try:
        output.status = process.wait(1.0)
    except subprocess.TimeoutExpired:
        pass  # it hangs in the kernel
    process.stdout.close()
    process.stderr.close()
