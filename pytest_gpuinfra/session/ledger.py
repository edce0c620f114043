"""
The ledger: which keys of the inventory the items of a run judged, and which part of all checks the run was.

A test says by `gpu_expects` (skipped without it) or `gpu_judges` (judged without it, too) which keys it judges.
A host's items run in one process, so its ledger is complete there when its last item, the ledger's own, begins.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpuinfra.session.items import GpuDevice, Target
from pytest_gpuinfra.session.stash import target_of

if TYPE_CHECKING:
    from pytest_gpuinfra.host.host import GpuHost
    from pytest_gpuinfra.session.session import Session

LEDGER: pytest.StashKey[Ledger] = pytest.StashKey()
MARKS = ("gpu_expects", "gpu_judges")
_HANDED = "gpuinfra_width"
_WORDS = {"gpu": "run of GPU programs", "endpoint": "endpoint's answers", "participation": "sampling under load"}
_SAID = 8


@dataclass
class _Account:
    """
    What became of one host's keys and items.

    Attributes:
        judged: How many items ended in passed, failed or error, by key.
        skipped: Reasons of the items that were skipped instead, by key.
        left_out: Keys that items which the command line left out would have judged.
        items: How many items were collected about it.
        selected: How many of them were left by the command line.
    """

    judged: Counter[str] = field(default_factory=Counter)
    skipped: dict[str, list[str]] = field(default_factory=dict)
    left_out: set[str] = field(default_factory=set)
    items: int = 0
    selected: int = 0


class Ledger:
    """
    Takes down what the items of this process judge.

    Args:
        config: Of the session.
        session: Its hosts.
        suites: Files of the suites, those that a whole run collects.
    """

    def __init__(self, config: pytest.Config, session: Session, suites: Sequence[str]) -> None:
        self._config = config
        self._session = session
        self._suites = frozenset(suites)
        self._collected: set[str] = set()
        self._accounts: dict[str, _Account] = {}
        self._faults: list[str] = []

    def _of(self, alias: str) -> _Account:
        return self._accounts.setdefault(alias, _Account())

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> Generator[None, None, None]:
        """Count what the command line and other plugins leave out."""
        if self._faults:
            raise pytest.UsageError("\n".join(self._faults))
        before = [(item, target) for item in items if (target := target_of(item)) is not None]
        for _, target in before:
            self._of(target.host).items += 1
        self._collected.update(os.path.realpath(path) for path in {str(item.path) for item in items})
        yield
        left = set(map(id, items))
        for item, target in before:
            account = self._of(target.host)
            if id(item) in left:
                account.selected += 1
            else:
                account.left_out.update(self._keys(item, target))

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """Refuse a test that speaks of a key that no inventory has; in a worker of xdist, as an error of collection."""
        fault = _fault_of(metafunc.definition)
        if fault and hasattr(self._config, "workerinput"):
            pytest.fail(fault, pytrace=False)
        elif fault:
            self._faults.append(fault)

    def _keys(self, item: pytest.Item, target: Target) -> Iterator[str]:
        """Give the keys that an item judges, as `HostSpec.declared` spells them."""
        for name in MARKS:
            for mark in item.iter_markers(name):
                for key in mark.args:
                    if key.startswith("device."):
                        if isinstance(target.value, GpuDevice):
                            yield f"devices[{target.value.row}].{key.removeprefix('device.')}"
                    elif key == "devices":
                        rows = len(self._session.hosts[target.host].expect.devices)
                        yield from (f"devices[{row}].pci" for row in range(rows))
                    else:
                        yield key

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Take down which keys an item judged, or why it did not."""
        report = yield
        target = target_of(item)
        if target is None or call.when == "teardown" or (call.when == "setup" and report.passed):
            return report
        account = self._of(target.host)
        for key in self._keys(item, target):
            if report.skipped and not hasattr(report, "wasxfail"):
                reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
                account.skipped.setdefault(key, []).append(reason.removeprefix("Skipped: "))
            else:
                account.judged[key] += 1
        return report

    def judged(self, host: GpuHost) -> Mapping[str, int]:
        """Give how many items judged each key that is declared of a host; 0 for none."""
        account = self._of(host.alias)
        return {key: account.judged[key] for key in host.selected.spec.declared}

    def why_not(self, host: GpuHost, key: str) -> str:
        """Say why nothing judged a key."""
        account = self._of(host.alias)
        reasons = list(dict.fromkeys(account.skipped.get(key, ())))
        return "; ".join(reasons[:3]) or "no check of this run is about it"

    def by_choice(self, host: GpuHost, key: str) -> str:
        """Say how the command line left out what would have judged a key; "" if it did not."""
        account = self._of(host.alias)
        if key in account.left_out or self._missing:
            return self._narrowing
        for reason in account.skipped.get(key, ()):
            if reason.startswith("needs --gpu-level="):
                return f"--gpu-level={self._session.settings.level}"
        kind = _gathered_for(key)
        if self._session.settings.endpoint == "none" and kind in ("endpoint", "participation"):
            return "--gpu-endpoint=none"
        recorded = host.selected.way == "replay" and kind not in ("", *host.selected.gathered)
        able = len(host.computing_gpus) > 1 if kind == "gpu" else bool(host.selected.spec.endpoint)
        return f"the recording holds no {_WORDS[kind]}" if recorded and able else ""

    def narrowed(self, host: GpuHost) -> str:
        """Say which part of all checks of a host this process ran: "8 of 425 checks (-k xid)"; "" for all."""
        account = self._of(host.alias)
        if self._missing:
            return f"{account.selected} check{'s' if account.selected != 1 else ''} ({self._narrowing})"
        if account.selected < account.items:
            return f"{account.selected} of {account.items} checks ({self._narrowing})"
        missed = [key for key, count in self.judged(host).items() if not count and self.by_choice(host, key)]
        if missed:
            more = f" and {len(missed) - _SAID} more" if len(missed) > _SAID else ""
            return f"all but {', '.join(missed[:_SAID])}{more} ({self.by_choice(host, missed[0])})"
        return ""

    @property
    def _missing(self) -> bool:
        """Whether a file of the suites was not collected."""
        return not self._suites <= self._collected

    @property
    def _narrowing(self) -> str:
        """The selection in the command line's words."""
        option = self._config.option
        words = [f"-k {option.keyword}"] if option.keyword else []
        words += [f"-m {option.markexpr}"] if option.markexpr else []
        words += [f"--deselect {one}" for one in option.deselect or ()]
        words += ["--lf"] if getattr(option, "lf", False) else []
        if not words and self._missing:
            words = [self._short(arg) for arg in self._config.args]
        return " ".join(str(word) for word in words[:_SAID]) or "items were left out"

    def _short(self, path: str) -> str:
        """Write a path from the folder of the suites, where it lies in there; else from where pytest was started."""
        root, whole = os.path.dirname(os.path.commonpath(self._suites)), os.path.realpath(path)
        inside = whole.startswith(root + os.sep)
        return os.path.relpath(whole if inside else path, root if inside else self._config.invocation_params.dir)

    @pytest.hookimpl(wrapper=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> Generator[None, None, None]:
        """Hand over to the controller how the run was narrowed, or keep it there, before anything is written."""
        seen = [host for alias, host in self._session.hosts.items() if alias in self._accounts]
        words = {host.alias: words for host in seen if (words := self.narrowed(host))}
        output: dict[str, Any] = getattr(session.config, "workeroutput", {})
        output[_HANDED] = words
        self._session.narrowed.update(words)
        return (yield)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """Take over how a worker's part was narrowed."""
        self._session.narrowed.update(getattr(node, "workeroutput", {}).get(_HANDED, {}))


def _fault_of(test: pytest.Item) -> str:
    """Name the first key in a test's marks that no inventory has; "" if there is none."""
    named = [(mark.name, str(key)) for name in MARKS for mark in test.iter_markers(name) for key in mark.args]
    if not named:
        return ""
    from pytest_gpuinfra.inventory.inventory import Expectation
    from pytest_gpuinfra.inventory.keys import legal_keys, nearest

    legal = legal_keys(Expectation)
    tables = {key[:place] for key in legal for place, sign in enumerate(key) if sign == "."}
    for mark, key in named:
        whole = f"devices.{key.removeprefix('device.')}" if key.startswith("device.") else key
        if whole not in legal | tables:
            return (
                f"gpuinfra: {test.nodeid}: {mark}({key!r}): no such key of the inventory{nearest(whole, sorted(legal))}"
            )
    return ""


def _gathered_for(key: str) -> str:
    """Give the kind of what is gathered after the capture, and judged by a key; "" for what the capture holds."""
    if key.startswith("model.participation."):
        return "participation"
    if key.partition(".")[0] in ("endpoint", "prompts", "model"):
        return "endpoint"
    return "gpu" if key in ("peer_access", "gpu.peer_copy_gb_s_min", "gpu.busbw_gb_s_min") else ""
