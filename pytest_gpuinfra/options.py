"""
The options, each declared once: name, type, default and help stand at the field of `Settings` that holds its value.

`pytest_addoption`, `Settings` itself and README's table are made of these fields.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import pytest

    from pytest_gpuinfra.connection.rights import Sudo

LEVELS = ("passive", "active", "disruptive")

REBOOT_WAIT_S = 1200.0
"""How long a host that is rebooted may take where `--gpu-wait` does not say; servers count their memory for minutes."""


class Option(NamedTuple):
    """
    One option.

    Attributes:
        name: As it is written, "--gpu-host".
        help: What it does, for people; %(default)s in it stands for the default.
        how: What `addoption` takes beside name, destination, default and help.
    """

    name: str
    help: str
    how: Mapping[str, Any]


def _option(name: str, help: str, /, default: object = None, *more: Option, **how: Any) -> Any:
    """
    Declare an option at its field.

    Args:
        name: As it is written.
        help: What it does, for people.
        default: Value where it is not given. That of an option that repeats is (), that of a switch False.
        more: Other options that set the same field.
        how: What `addoption` takes beside them.
    """
    if how.get("action") == "store_true":
        default = False
    elif how.get("action") == "append":
        default = ()
    return field(default=default, metadata={"options": (Option(name, help, how), *more)})


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < 1e6:
        raise argparse.ArgumentTypeError(f"takes a number of seconds above 0, not {text!r}")
    return value


def _page(text: str) -> str:
    if not text.endswith((".md", ".html", ".htm")):
        raise argparse.ArgumentTypeError(f"takes FILE.md or FILE.html, not {text!r}")
    return text


def _endpoint(text: str) -> str:
    from pytest_gpuinfra.connection.destination import url_refusal

    reason = "" if text in ("embedded", "none") else url_refusal(text)
    if reason:
        raise argparse.ArgumentTypeError(f"takes a URL, 'embedded' or 'none': {reason}: {text!r}")
    return text


def _program(text: str) -> str:
    if text.startswith("-") or not text.isprintable() or not text.strip():
        raise argparse.ArgumentTypeError(f"takes a program on the target, not {text!r}")
    return text


def _count(text: str) -> int:
    if not text.isdecimal() or not 0 < int(text) <= 1000:
        raise argparse.ArgumentTypeError(f"takes a number from 1 to 1000, not {text!r}")
    return int(text)


def _shard(text: str) -> tuple[int, int]:
    share, sign, shares = text.partition("/")
    if not (sign and share.isdecimal() and shares.isdecimal() and 1 <= int(share) <= int(shares)):
        raise argparse.ArgumentTypeError(f"takes I/N with I from 1 to N, such as 2/8, not {text!r}")
    return int(share), int(shares)


@dataclass(frozen=True)
class Settings:
    """
    What the command line says; each field has its option's help.

    Attributes:
        keep_connections: Whether what follows a capture runs in this process, so that its connection is of use.
    """

    names: tuple[str, ...] = _option(
        "--gpu-host",
        "host to judge; repeats. An alias of the inventory, a glob of aliases, 'all', a group of it (@rack1), a "
        "hostlist (node[01-64], root@node[1-4,7]), an ssh destination (root@node-a, ssh://root@node-a:2222, anything "
        "that ssh(1) resolves), 'local' for this machine (local:ALIAS: under that name), ansible:FILE[:GROUP], "
        "slurm:PARTITION or slurm:NODES, or replay:FILE for a recording. Without a path, the whole suite runs",
        action="append",
        metavar="HOST",
    )
    inventory: str | None = _option(
        "--gpu-inventory",
        "what is expected of the hosts (default: gpuinfra.toml in this directory, or above it "
        "up to the top of the repository or pytest's root directory)",
        metavar="FILE",
    )
    level: str = _option(
        "--gpu-level",
        "highest level of checks that may run: passive reads, active also loads GPUs and asks the endpoint "
        "for a short while, disruptive also restarts things (default: %(default)s)",
        "active",
        choices=LEVELS,
    )
    sudo: Sudo = _option(
        "--gpu-sudo",
        "on the targets, be root through `sudo -n`",
        False,
        Option(
            "--gpu-sudo-read",
            "on the targets, only read what root reads: every file and the kernel's log, as the account that logs in, "
            "by the sudoers file that `gpuinfra sudoers` prints. What this cannot read ends in ERROR and says so "
            "(docs/security.md)",
            {"action": "store_const", "const": "read"},
        ),
        action="store_true",
    )
    ssh_config: str | None = _option(
        "--gpu-ssh-config", "config file for ssh(1), in place of your own (ssh -F)", metavar="FILE"
    )
    connect_timeout_s: float = _option(
        "--gpu-connect-timeout",
        "until a target must have started python3, its login shell included (default: %(default)g)",
        30.0,
        type=_seconds,
        metavar="SECONDS",
    )
    deadline_s: float = _option(
        "--gpu-deadline",
        "for all passive readings of a host together (default: %(default)g)",
        60.0,
        type=_seconds,
        metavar="SECONDS",
    )
    deadline_all_s: float | None = _option(
        "--gpu-deadline-all",
        "for the passive readings of all hosts together; those that have not answered by then end in ERROR "
        "(default: no limit but each host's own)",
        type=_seconds,
        metavar="SECONDS",
    )
    parallel: int = _option(
        "--gpu-parallel",
        "hosts that are read at the same time; one that takes much longer than the others gives its place to the "
        "next, up to 4 times as many (default: %(default)s)",
        32,
        type=_count,
        metavar="N",
    )
    shard: tuple[int, int] | None = _option(
        "--gpu-shard",
        "of the hosts, only those of share I of N (1/4, 2/4, ...); a host is in the same share whatever other "
        "hosts are named. Each share is a run of its own (docs/fleet.md)",
        type=_shard,
        metavar="I/N",
    )
    subsets: str = _option(
        "--gpu-subsets",
        "all-reduce also over subsets of a host's GPUs: every pair, or every subset (default: %(default)s)",
        "none",
        choices=("none", "pairs", "all"),
    )
    python: str | None = _option(
        "--gpu-python",
        "Python on the target that has torch, for the checks by torch (default: the service's, else python3)",
        type=_program,
        metavar="FILE",
    )
    endpoint: str | None = _option(
        "--gpu-endpoint",
        "inference endpoint of every host, as seen from where the service runs (http://localhost:30000), in place "
        "of the inventory's; it is asked, and its name resolved, there, through a tunnel. 'embedded' starts "
        "llama.cpp's server with a tiny model on this machine (extra 'demo'); 'none' leaves endpoints out",
        type=_endpoint,
        metavar="URL",
    )
    wait_s: float = _option(
        "--gpu-wait",
        "how long to wait until a host is back, its units have settled, and its endpoint is ready (default: look once)",
        0.0,
        type=_seconds,
        metavar="SECONDS",
    )
    prompts: tuple[str, ...] = _option(
        "--gpu-prompts",
        "questions with known answers, beside those that come along; repeats",
        action="append",
        metavar="FILE",
    )
    api_key_env: str | None = _option(
        "--gpu-api-key-env",
        "environment variable that holds the endpoint's API key; the key itself is never written down",
        metavar="NAME",
    )
    recording: str | None = _option(
        "--gpu-recording",
        "where this run's recording goes (default: reports/recordings/TIME.json); 'none' for nowhere",
        metavar="FILE",
    )
    baseline: str | None = _option(
        "--gpu-baseline",
        "an earlier recording: every host must be as it was then, one check for each area of facts",
        metavar="FILE",
    )
    allowed_changes: tuple[str, ...] = _option(
        "--gpu-allow-change",
        "a change since the baseline that was meant, as `gpuinfra compare --allow` takes it; repeats",
        action="append",
        metavar="PATTERN",
    )
    after_reboot: bool = _option(
        "--gpu-after-reboot",
        "every host must have booted since the baseline; with --gpu-wait, wait until it has",
        action="store_true",
    )
    reboot: bool = _option(
        "--gpu-reboot",
        "reboot every host first, all at the same time, wait until it is back, and judge it as with "
        "--gpu-after-reboot; only with --gpu-level=disruptive. Without --gpu-baseline the host is compared with itself "
        f"before the reboot, without --gpu-wait it may take {REBOOT_WAIT_S:.0f} seconds",
        action="store_true",
    )
    summary: tuple[str, ...] = _option(
        "--gpu-summary",
        "write the run on one page: FILE.md for a pull request's comment, FILE.html for a browser or a mail; "
        "repeats. `gpuinfra report RECORDING` makes the same later",
        action="append",
        type=_page,
        metavar="FILE",
    )
    outliers: str = _option(
        "--gpu-outliers",
        "what a host is worth that is slower or hotter than the other hosts of its kind, where there are five or "
        "more: report names it, fail also ends with status 1 (default: %(default)s; docs/outliers.md)",
        "report",
        choices=("report", "fail"),
    )
    unknown: str = _option(
        "--gpu-unknown",
        "what a fact that could not be observed is worth, where nothing was seen wrong: error ends with status 6, "
        "fail with 1, allow with 0 as long as something was observed of every host (default: %(default)s)",
        "error",
        choices=("error", "fail", "allow"),
    )
    keep_connections: bool = True


def declared() -> Iterator[tuple[str, str, object, Option]]:
    """Give field, destination in pytest's options, default and option of all options, in order."""
    for one in fields(Settings):
        options = one.metadata.get("options", ())
        for option in options:
            yield one.name, options[0].name.removeprefix("--").replace("-", "_"), one.default, option


def add_options(parser: pytest.Parser) -> None:
    """Add the options; none of them is required."""
    group = parser.getgroup("gpuinfra", "GPU hosts (pytest-gpuinfra)")
    for _, destination, default, option in declared():
        start = [] if default == () else default
        group.addoption(option.name, dest=destination, default=start, help=option.help, **option.how)


def settings_of(config: pytest.Config) -> Settings:
    """Give what the command line says; a host that is rebooted must have booted, and is waited for."""
    values = {name: config.getoption(destination) for name, destination, _, _ in declared()}
    plain: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}
    alone = config.getoption("dist", "no") == "no" and not config.getoption("numprocesses", None)
    settings = Settings(**plain, keep_connections=alone)
    if settings.reboot:
        settings = replace(settings, after_reboot=True, wait_s=settings.wait_s or REBOOT_WAIT_S)
    return settings
