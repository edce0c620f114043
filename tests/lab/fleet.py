"""A fleet of real sshd hosts, most of them well, some dead, slow, or with another fault; how each has to end."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .sshd import SshdHost, many_hosts

SAID = {
    "normal": "",
    "slow-shell": "",
    "port-closed": "nothing listens on its ssh port",
    "silent": "it did not answer in time",
    "hanging-shell": "no python3 had started there within",
    "flooding": "the session printed more than 8 MiB that nobody asked for",
    "no-python": "the target has no python3 in its PATH",
    "key-refused": "the login was refused",
}
"""What the items of a host say by its variant (see sshd.py): "" where they pass, else the reason of their ERROR."""

ONE_TEST = (
    'def test_release(gpu_kernel_release):\n    """The kernel says which it is."""\n    assert gpu_kernel_release\n'
)


@dataclass(frozen=True)
class Fleet:
    """
    Hosts that are up.

    Attributes:
        hosts: By variant.
        ssh_config: For all of them, by alias.
    """

    hosts: Mapping[str, tuple[SshdHost, ...]]
    ssh_config: Path

    @property
    def hostlist(self) -> str:
        """All of them, as `--gpu-host` takes it; the worst first, which the others must not notice."""
        order = sorted(self.hosts, key=lambda variant: SAID[variant] == "")
        return ",".join(f"{variant}-[001-{len(self.hosts[variant]):03d}]" for variant in order)

    def faults(self, recording: Mapping[str, Any]) -> list[str]:
        """
        Compare what a recording says of each host with how it has to end.

        Returns:
            One line for each host that ended otherwise; [] if all is right.
        """
        results: dict[str, list[Mapping[str, Any]]] = {}
        for result in recording["results"]:
            results.setdefault(result["host"], []).append(result)
        wrong = []
        for variant, hosts in self.hosts.items():
            outcome = "error" if SAID[variant] else "passed"
            for host in hosts:
                seen = results.get(host.alias, [])
                if not seen or any(r["outcome"] != outcome or SAID[variant] not in r["message"] for r in seen):
                    wrong.append(f"{host.alias}: {[(r['outcome'], r['message'][:200]) for r in seen]}")
        return wrong


@contextlib.contextmanager
def mixed_fleet(counts: Mapping[str, int], folder: Path) -> Iterator[Fleet]:
    """
    Start hosts of several variants.

    Args:
        counts: How many of each, by variant; a variant's aliases are VARIANT-001 and so on.
        folder: Where the common ssh configuration is written.
    """
    with contextlib.ExitStack() as stack:
        hosts = {
            variant: tuple(stack.enter_context(many_hosts(count, variant, prefix=variant)))
            for variant, count in counts.items()
        }
        texts = [
            of_variant[0].ssh_config.read_text().replace("Host *\n", f"Host {variant}-*\n")
            for variant, of_variant in hosts.items()
        ]
        config = folder / "ssh_config"
        config.write_text("".join(texts))
        yield Fleet(hosts, config)
