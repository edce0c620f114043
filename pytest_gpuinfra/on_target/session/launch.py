"""
Starts another Python than the runner's own, which has only the standard library: a service's, or one that has torch.

It imports as_process.py and safe_path.py, which travel in front of it (plan.py), and runs on Python 3.6 and later.
The first line of standard input says which; what follows there is for the Python that is started:
    {"process": [pid, start time in ticks] or null, "python": path or null, "bootstrap": text for its `-c`}
A process's Python is started as that process. Any other is started as root only where nobody else may write it and
its packages; root's login has no say in what it imports (safe_path.py), and it starts in "/", which is root's. `python`
null stands for the login's python3.
Where it cannot be started: exit status 126 and one line on standard error that begins with MARK.
"""

import glob
import json
import os
import sys

from as_process import PYTHON, Refused, Subject, begin, interpreter_argv, relay
from safe_path import UnsafeError, check

MARK = "gpuinfra-refused: "
AS_ANOTHER = "import sys\nsys.gpuinfra_as_another = True\n"  # what it loads has that process's rights (safe_path.py)
NEEDED = 2 << 30  # bytes of the host's memory that torch and a context or two come to


def read_line():
    """Read one line of standard input and nothing after it."""
    line = b""
    while not line.endswith(b"\n"):
        part = os.read(0, 1)
        if not part:
            sys.exit(3)
        line += part
    return line


def check_python(path):
    """Raise UnsafeError where others than root may write an interpreter, its virtual environment or its packages."""
    if not os.path.isabs(path):
        raise UnsafeError("%s is no absolute path" % path)
    check(path)
    if os.geteuid() != 0:
        return
    prefixes = {os.path.dirname(os.path.dirname(one)) for one in (path, os.path.realpath(path))}
    places = [os.path.join(prefix, "pyvenv.cfg") for prefix in prefixes]
    for prefix in prefixes | ({"/usr/local"} if "/usr" in prefixes else set()):
        for name in ("site-packages", "dist-packages"):
            for folder in glob.glob(os.path.join(glob.escape(prefix), "lib*", "python3*", name)):
                places.append(folder)
                places += [os.path.join(folder, entry) for entry in os.listdir(folder)]
    for place in places:
        if os.path.lexists(place):
            check(place)


def start(order):
    """Start it; returns only by an exception."""
    bootstrap = order["bootstrap"]
    if order["process"] is None:
        python = order["python"] or sys.executable
        check_python(python)
        os.execv(python, [python, "-B", "-c", bootstrap])
    subject = Subject(*order["process"])
    if not PYTHON.match(os.path.basename(subject.executable)):
        raise Refused("process %d runs %s, which is no Python" % (subject.pid, subject.executable))
    argv = [*interpreter_argv(subject), b"-B", b"-c", (AS_ANOTHER + bootstrap).encode()]
    environment = subject.child_environment(without=(b"CUDA_VISIBLE_DEVICES",))  # devices are chosen by address
    relay(begin(subject, argv, environment, needed=NEEDED))


def main():
    """Do it."""
    order = json.loads(read_line().decode())
    try:
        start(order)
    except (Refused, UnsafeError) as error:
        reason = str(error)
    except OSError as error:
        reason = "%s: %s" % (order["python"] or "the service's Python", error.strerror or error)
    sys.stderr.write(MARK + reason.replace("\n", " ") + "\n")
    sys.stderr.flush()
    os._exit(126)


if __name__ == "__main__":
    main()
