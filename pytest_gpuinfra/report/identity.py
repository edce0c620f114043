"""
What an item is, in a form that outlives reboots and reports: where it is filed, its title, its harm, its history.

allure-pytest derives ids from the node id, which holds the path as seen from the working directory and whatever a
parameter looks like. Ours are made of the host's alias, the requirement and the target: a GPU is its place in the
inventory, so that a renumbered bus is the same history; where nothing is expected of devices it is its PCI address.
"""

from __future__ import annotations

import hashlib
import inspect
import re
from dataclasses import dataclass

import pytest

from pytest_gpuinfra.fixtures.suites import suites_path
from pytest_gpuinfra.inventory.inventory import Expectation
from pytest_gpuinfra.session.items import GpuDevice, Target
from pytest_gpuinfra.subjects.transfers.pair import DirectedPair

_SEVERITY = (
    (r"::.*(as_fast|bandwidth|speed|throughput|is_not_too_hot)", "minor"),
    (r"test_(single_gpu|peer_copies|all_reduce|endpoint_answers)\.", "blocker"),
    (r"test_(iommu|driver_binding|kernel_log|confidential|endpoint_ready)\.|::.*reports_no_fault", "critical"),
    (r"test_(baseline|service_drift)\.", "normal"),
    (r"::.*(persistence|temperature|link_)", "minor"),
)
"""Level of harm by file and test: wrong results, no service or isolation, what may become that, speed."""


@dataclass(frozen=True, slots=True)
class Identity:
    """
    What reports say of an item.

    Attributes:
        area: Folder of the suite: "host", "gpu", "serving".
        file: Its file, in words: "kernel log".
        title: The requirement in words.
        description: Why it matters; Markdown.
        severity: "blocker", "critical", "normal", "minor" or "trivial".
        full_name: Stable name of the requirement, without the target.
        test_case: Stable id of the requirement, 32 hexadecimal digits.
        history: Stable id of the requirement on this target of this host.
        subject: What it is about, for people: "GPU 61:00.0"; "" for the host itself.
    """

    area: str
    file: str
    title: str
    description: str
    severity: str
    full_name: str
    test_case: str
    history: str
    subject: str


def identify(item: pytest.Item, target: Target, expect: Expectation) -> Identity:
    """Tell what an item about a host is."""
    doc = inspect.getdoc(getattr(item, "function", None)) or item.name
    title, _, rest = doc.partition("\n")
    area, path = _place(item)
    name = getattr(item, "originalname", None) or item.name.partition("[")[0]
    parts = [part.name for part in item.listchain() if isinstance(part, pytest.Class)]
    full_name = "::".join([path, *parts, name])
    others = _other_parameters(item, target)
    subject = _subject(target)
    return Identity(
        area=area,
        file=item.path.stem.removeprefix("test_").replace("_", " "),
        title=title.strip().rstrip(".") + "".join(f" [{word}]" for word in (subject, others) if word),
        description=inspect.cleandoc(rest).strip() or title,
        severity=severity(full_name),
        full_name=full_name,
        test_case=_digest("case", full_name),
        history=_digest("history", target.host, full_name, stable_label(target, expect), others),
        subject=subject,
    )


def severity(full_name: str) -> str:
    """Give the level of harm of a requirement by its stable name."""
    return next((word for pattern, word in _SEVERITY if re.search(pattern, full_name)), "normal")


def stable_label(target: Target, expect: Expectation) -> str:
    """Name a target so that renumbered buses change nothing: GPUs by their place in the inventory, if they have one."""
    places = {address: place for place, address in enumerate(a for row in expect.devices for a in row.pci)}

    def word(address: str | None) -> str:
        return f"gpu#{places[address]}" if address in places else str(address)

    value = target.value
    if isinstance(value, GpuDevice):
        return word(value.pci_address)
    if isinstance(value, DirectedPair):
        return " to ".join(word(address) for address in (value.src, value.via, value.dst) if address)
    return f"{target.kind} {target.label}" if target.label else ""


def _subject(target: Target) -> str:
    if isinstance(target.value, GpuDevice):
        return f"GPU {target.label}"
    if isinstance(target.value, DirectedPair):
        return f"GPU {target.label.replace('-to-', ' to ')}"
    return target.label


def _place(item: pytest.Item) -> tuple[str, str]:
    """Give area and stable path: below the suites for ours, below the ini file for a user's own, else the name."""
    path = item.path
    if path.is_relative_to(suites_path()):
        return path.parent.name, path.relative_to(suites_path()).as_posix()
    root = item.config.inipath.parent if item.config.inipath else path.parent
    return "own", path.relative_to(root).as_posix() if path.is_relative_to(root) else path.name


def _other_parameters(item: pytest.Item, target: Target) -> str:
    """Give the ids of the item's own parameters, without the target's."""
    identity = str(getattr(getattr(item, "callspec", None), "id", ""))
    words = [word for word in (identity.removeprefix(target.id), identity.removesuffix(target.id)) if word != identity]
    return words[0].strip("-") if words else ""


def _digest(*words: str) -> str:
    return hashlib.md5("\n".join(words).encode(), usedforsecurity=False).hexdigest()
