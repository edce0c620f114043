"""The lab's root file systems: built by `build.sh` from Debian packages, cached by a hash of their inputs."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
SUITE = "bookworm"
OLD_SUITE = "bullseye"
OWNER_SHIFT = 100_000
KEEP_UNUSED_S = 3 * 86_400
# What of this machine's apt configuration its packages may not be reachable without.
APT_OPTIONS = ("Acquire::http", "Acquire::https", "Acquire::Check-", "Acquire::Retries")


class LabError(RuntimeError):
    """The lab cannot be built or started; the text says why and what to do."""


@dataclass(frozen=True, slots=True)
class Image:
    """
    One built root file system, never written to after its build.

    Attributes:
        root: Its tree; the lower layer of every host's overlay.
        key: Hash of what it was built from.
    """

    root: Path
    key: str

    @contextlib.contextmanager
    def in_use(self) -> Iterator[None]:
        """Keep the image from being pruned by another run."""
        with (self.root.parent.parent / f"{self.root.parent.name}.lock").open("a") as file:
            fcntl.flock(file, fcntl.LOCK_SH)
            os.utime(file.fileno())
            yield


def require_root() -> None:
    """
    Refuse anybody but root.

    Raises:
        LabError: The effective user is not root.
    """
    if os.geteuid() != 0:
        raise LabError(
            f"the lab needs root (mounts, network namespaces, containers); this is uid {os.geteuid()}. "
            "Run pytest as root, or leave it out: -m 'not lab and not lab_vm'"
        )


def lab_cache() -> Path:
    """Give the directory of built images: GPUINFRA_LAB_CACHE, or one below /var/cache."""
    return Path(os.environ.get("GPUINFRA_LAB_CACHE") or "/var/cache/pytest-gpuinfra-lab")


def read_packages(heading: str) -> tuple[str, ...]:
    """Give the Debian packages that `packages.txt` lists under `[heading]`, in its order."""
    found: list[str] = []
    current = ""
    for raw in (HERE / "packages.txt").read_text().splitlines():
        line = raw.partition("#")[0].strip()
        if line.startswith("["):
            current = line.strip("[]")
        elif line and current == heading:
            found.append(line)
    return tuple(found)


def read_headings() -> tuple[str, ...]:
    """Give the headings of `packages.txt`, in its order."""
    return tuple(re.findall(r"^\[(\S+)\]", (HERE / "packages.txt").read_text(), re.MULTILINE))


def install_packages(*headings: str, progress: Callable[[str], None] | None = None) -> None:
    """
    Install on this machine those packages of `packages.txt` that it lacks.

    Args:
        headings: Headings of `packages.txt`.
        progress: Called with a line of text at each step; printed to stderr by default.

    Raises:
        LabError: Not root, no apt-get, or apt-get failed (its last lines are in the text).
    """
    say = progress or _print_progress
    wanted = [name for heading in headings for name in read_packages(heading)]
    asked = subprocess.run(
        ["dpkg-query", "-W", "-f", "${Package} ${db:Status-Status}\n", *wanted],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    present = {line.split()[0] for line in asked.stdout.splitlines() if line.endswith(" installed")}
    missing = [name for name in wanted if name not in present]
    if not missing:
        return
    require_root()
    if not shutil.which("apt-get"):
        raise LabError(f"the lab needs {', '.join(missing)}, and this machine has no apt-get to install them")
    say(f"installing {', '.join(missing)}")
    apt = ["apt-get", "-qq", "-o", "DPkg::Lock::Timeout=300"]
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    _run([*apt, "update"], environment)
    _run([*apt, "-y", "--no-install-recommends", "install", *missing], environment)


def image_key(kind: str = "lab") -> str:
    """Hash everything that the image of this kind is built from."""
    inputs = hashlib.sha256(f"{kind} {SUITE} {OLD_SUITE} {OWNER_SHIFT} {os.uname().machine}\0".encode())
    for heading in ("container", "host") if kind == "lab" else ("old",):
        inputs.update(f"{heading} {' '.join(read_packages(heading))}\0".encode())
    files = [HERE / "build.sh"]
    if kind == "lab":
        files += sorted(path for path in (HERE / "files").rglob("*") if path.is_file())
    for path in files:
        inputs.update(f"{path.relative_to(HERE)} {path.stat().st_mode & 0o777:o}\0".encode())
        inputs.update(path.read_bytes() + b"\0")
    return inputs.hexdigest()[:16]


def ensure_image(kind: str = "lab", *, progress: Callable[[str], None] | None = None) -> Image:
    """
    Give the image of this kind, building it first if its inputs changed or it is not there.

    Two runs at once build it once: the second waits for the first.
    A build that ends early leaves nothing that could be taken for an image.

    Args:
        kind: "lab" (Debian 12: the host and the container in it) or "old" (Debian 11: oldest Pythons).
        progress: Called with a line of text at each step; printed to stderr by default.

    Returns:
        The image. About 1 min on two cores when it has to be built, no time otherwise.

    Raises:
        LabError: Not root, or a step of the build failed (its last lines are in the text).
    """
    say = progress or _print_progress
    require_root()
    key = image_key(kind)
    cache = lab_cache()
    image = Image(cache / f"{kind}-{key}" / "root", key)
    if image.root.is_dir():
        (cache / f"{kind}-{key}.lock").touch()
        return image
    cache.mkdir(mode=0o755, parents=True, exist_ok=True)
    with (cache / "build.lock").open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("another run is building an image; waiting for it")
            fcntl.flock(lock, fcntl.LOCK_EX)
        if image.root.is_dir():
            return image
        install_packages("controller", progress=say)
        for left_over in cache.glob("building-*"):
            shutil.rmtree(left_over)
        work = Path(tempfile.mkdtemp(prefix="building-", dir=cache))
        work.chmod(0o755)
        try:
            started = time.monotonic()
            say(f"building the {kind} image {key}: about a minute")
            _build(kind, work, say)
            work.rename(image.root.parent)
            say(f"built in {time.monotonic() - started:.0f} s: {image.root}")
        finally:
            shutil.rmtree(work, ignore_errors=True)
        _prune(cache, keep=image.root.parent.name)
    return image


def oldest_python(kind: str = "pypy3.7") -> list[str]:
    """
    Give a command line that runs an old Python on this machine; arguments are appended, a program goes to stdin.

    It sees a read-only Debian 11 with a private /tmp, and this machine's network.

    Args:
        kind: "pypy3.7" (PyPy 7.3.5, the oldest that Debian's packages still have) or "cpython3.9".
    """
    image = ensure_image("old")
    interpreter = {"pypy3.7": "/usr/bin/pypy3", "cpython3.9": "/usr/bin/python3.9"}[kind]
    alone = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--"]
    return [*alone, str(HERE / "old-python.sh"), str(image.root), interpreter]


def _build(kind: str, work: Path, say: Callable[[str], None]) -> None:
    suite = SUITE if kind == "lab" else OLD_SUITE
    with tempfile.TemporaryDirectory() as folder:
        sources = Path(folder, "sources.list")
        sources.write_text(_apt_sources(suite))
        environment = {
            **os.environ,
            "LAB_APT_OPTIONS": _apt_options(),
            **{f"PACKAGES_{name}": " ".join(read_packages(name)) for name in ("container", "host", "old")},
        }
        build = [str(HERE / "build.sh"), kind, str(work), suite, str(sources), str(HERE / "files")]
        # A mount and a PID namespace of its own: an ended build leaves no mount and no process.
        alone = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "--"]
        _run([*alone, *build], environment, say)
    if kind == "lab":
        shift_owners(work / "root/var/lib/lxc/101/rootfs", OWNER_SHIFT)


def _apt_sources(suite: str) -> str:
    """Make one-line sources for `suite` out of those that this machine itself uses for Debian."""
    shown = subprocess.run(
        ["apt-get", "indextargets", "--format", "$(REPO_URI) $(CODENAME) $(COMPONENT)",
         "Created-By: Packages", "Origin: Debian"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    lines: list[str] = []
    for line in shown.stdout.splitlines():
        uri, codename, component = line.split()
        if codename.partition("-")[0] == SUITE and component == "main":
            if suite != SUITE and "-" in codename:
                continue  # an old suite's updates may have gone from the mirror; its main part stays
            lines.append(f"deb {uri} {codename.replace(SUITE, suite)} {component}\n")
    return "".join(lines)


def _apt_options() -> str:
    dumped = subprocess.run(["apt-config", "dump"], capture_output=True, text=True, check=False).stdout
    return "\n".join(line for line in dumped.splitlines() if line.startswith(APT_OPTIONS) and '""' not in line)


def shift_owners(tree: Path, shift: int) -> None:
    """Add `shift` to the owner and group of everything below and at `tree`, keeping modes."""
    linked: set[int] = set()
    for folder, names, files in os.walk(tree):
        for path in [folder, *(os.path.join(folder, name) for name in files)] + [
            link for name in names if os.path.islink(link := os.path.join(folder, name))
        ]:
            facts = os.lstat(path)
            if facts.st_nlink > 1 and not os.path.isdir(path):
                if facts.st_ino in linked:
                    continue
                linked.add(facts.st_ino)
            os.lchown(path, facts.st_uid + shift, facts.st_gid + shift)
            if facts.st_mode & 0o6000 and not os.path.islink(path):
                os.chmod(path, facts.st_mode & 0o7777)  # chown clears setuid and setgid


def _prune(cache: Path, keep: str) -> None:
    """Remove images that nobody has used for some days."""
    for image in cache.glob("*-*/root"):
        name = image.parent.name
        lock = cache / f"{name}.lock"
        used = lock if lock.exists() else image
        if name == keep or time.time() - used.stat().st_mtime < KEEP_UNUSED_S:
            continue
        with lock.open("a") as file, contextlib.suppress(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(image.parent)
            lock.unlink()


def _run(argv: list[str], environment: dict[str, str], say: Callable[[str], None] | None = None) -> None:
    """Run a step of the build: lines that begin with "lab: " are progress, the last explain a failure."""
    last: list[str] = []
    with subprocess.Popen(
        argv,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if say and line.startswith("lab: "):
                say(line.removeprefix("lab: ").rstrip())
            last = [*last[-19:], line]
    if process.returncode:
        raise LabError(f"{argv[0]} ended with status {process.returncode}. Its last lines:\n{''.join(last)}")


def _print_progress(line: str) -> None:
    print(f"lab: {line}", file=sys.stderr, flush=True)
