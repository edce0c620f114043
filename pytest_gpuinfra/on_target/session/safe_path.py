"""
What root may run and load: files that belong to root and that nobody else may write, along their whole path.

This file imports nothing of ours and runs on Python 3.6 and later with the standard library only.
It travels with the runner, the probe and the GPU programs. For an ordinary user everything is as its PATH has it:
what it runs has that user's rights, and no more.
"""

import ctypes
import os
import stat
import subprocess
import sys

FIXED = (
    *("/usr/local/sbin", "/usr/sbin", "/sbin", "/usr/local/bin", "/usr/bin", "/bin"),
    *("/run/current-system/sw/bin", "/snap/bin", "/opt/bin"),
)
LINKS_MAX = 40
LOADS = ("LD_PRELOAD", "LD_AUDIT", "PYTHON", "BASH_ENV", "CUDA_INJECTION", "NCCL_NET_PLUGIN", "NCCL_TUNER_PLUGIN")
"""Beginnings of variables by which a login would have other code run in what root starts."""
LIBRARIES = ("/lib", "/usr/lib", "/lib64", "/usr/lib64", "/run/opengl-driver/lib")


class UnsafeError(Exception):
    """Root must not run or load it; the text says what and why."""


def guarded():
    """Whether we are root, and not as a service's process, which loads what is its own with its own rights."""
    return os.geteuid() == 0 and not getattr(sys, "gpuinfra_as_another", False)


def why_unsafe(path):
    """
    Say what of an absolute path somebody else than root may write; None where nobody may, or where we are not root.

    Every directory on the way is looked at, also those through which symbolic links lead. A directory that all may
    write is none that matters where it is sticky and what is taken from it belongs to root.

    Raises:
        OSError: It is not there, or cannot be looked at.
    """
    if not guarded():
        return None
    left = [part for part in path.split("/") if part][::-1]
    at, links = "/", 0
    trouble = _trouble(at, os.lstat(at))
    while left and trouble is None:
        part = left.pop()
        if part == "..":
            at = os.path.dirname(at)
            continue
        if part == ".":
            continue
        here = os.path.join(at, part)
        found = os.lstat(here)
        trouble = _trouble(here, found)
        if not stat.S_ISLNK(found.st_mode):
            at = here
            continue
        links += 1
        if links > LINKS_MAX:
            return "%s leads through too many links" % path
        target = os.readlink(here)
        left += [part for part in target.split("/") if part][::-1]
        at = "/" if target.startswith("/") else at
    return trouble


def _trouble(path, found):
    if found.st_uid != 0:
        return "%s belongs to user %d" % (path, found.st_uid)
    sticky_directory = stat.S_ISDIR(found.st_mode) and found.st_mode & stat.S_ISVTX
    if found.st_mode & 0o022 and not stat.S_ISLNK(found.st_mode) and not sticky_directory:
        return "%s may be written by others (mode %04o)" % (path, stat.S_IMODE(found.st_mode))
    return None


def check(path):
    """Raise UnsafeError where somebody else than root may write a file; OSError where it is not there."""
    why = why_unsafe(path)
    if why:
        raise UnsafeError("root does not run or load %s: %s" % (path, why))


def resolve(command):
    """
    Give what to execute for a command: the path of a bare name as root; as it is, for anybody else.

    Raises:
        UnsafeError: It is only where others may write.
        FileNotFoundError: It is nowhere.
    """
    if os.geteuid() != 0:
        return command
    if "/" in command:
        check(os.path.abspath(command))
        return command
    unsafe = None
    for directory in list(FIXED) + os.environ.get("GPUINFRA_LOGIN_PATH", os.environ.get("PATH", "")).split(":"):
        path = os.path.join(directory, command)
        if not directory.startswith("/") or not os.path.isfile(path) or not os.access(path, os.X_OK):
            continue
        try:
            check(path)
            return path
        except UnsafeError as error:
            unsafe = unsafe or error
        except OSError:
            continue
    if unsafe:
        raise unsafe
    raise FileNotFoundError(2, os.strerror(2), command)


def clean_environment():
    """As root, leave no code of the login's in the environment, and a PATH that nobody else may write."""
    if os.geteuid() != 0:
        return
    for name in list(os.environ):
        if name.startswith(LOADS):
            del os.environ[name]
    login = os.environ.get("PATH", "")
    os.environ["GPUINFRA_LOGIN_PATH"] = login
    os.environ["PATH"] = ":".join(place for place in dict.fromkeys([*FIXED, *login.split(":")]) if _is_safe(place))
    libraries = os.environ.get("LD_LIBRARY_PATH")
    if libraries is not None:
        os.environ["LD_LIBRARY_PATH"] = ":".join(place for place in libraries.split(":") if _is_safe(place))


def _is_safe(place):
    try:
        return place.startswith("/") and why_unsafe(place) is None
    except OSError:
        return False


def load_library(name):
    """
    Load a shared library by its name: as root, only one that nobody else may write.

    Raises:
        UnsafeError: The one that the loader would take may be written by others.
        OSError: There is none, or it cannot be loaded.
    """
    if not guarded():
        return ctypes.CDLL(name)
    for path in _library_candidates(name):
        if os.path.isfile(path) and _kind_of_code(path) == _kind_of_code("/proc/self/exe"):
            check(path)
            return ctypes.CDLL(path)
    raise OSError("%s: cannot open shared object file: No such file or directory" % name)


def _library_candidates(name):
    """Give where the loader looks for a library, in its order: LD_LIBRARY_PATH, its cache, its own directories."""
    yield from (os.path.join(place, name) for place in os.environ.get("LD_LIBRARY_PATH", "").split(":") if place)
    try:
        ask = [resolve("ldconfig"), "-p"]
        shown = subprocess.run(ask, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=10, check=False).stdout
    except (OSError, UnsafeError, subprocess.SubprocessError):
        shown = b""
    for line in shown.decode("utf-8", "surrogateescape").split("\n"):
        known, _, path = line.strip().partition(" => ")
        if known.split(" ", 1)[0] == name and path.startswith("/"):
            yield path
    triplet = os.uname()[4] + "-linux-gnu"
    yield from (os.path.join(place, triplet, name) for place in LIBRARIES[:2])
    yield from (os.path.join(place, name) for place in LIBRARIES)


def _kind_of_code(path):
    """Give the class and machine of an ELF file. Source: elf(5)."""
    try:
        with open(path, "rb") as stream:
            head = stream.read(20)
    except OSError:
        return None
    return head[:5], head[18:20]
