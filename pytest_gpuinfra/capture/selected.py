"""A host of this run: how it is reached, what is expected, what a recording holds of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pytest_gpuinfra.capture.capture import Capture
from pytest_gpuinfra.inventory.inventory import HostSpec


@dataclass(frozen=True)
class SelectedHost:
    """
    One host of this run.

    Attributes:
        alias: Its name in ids, tables and reports.
        way: "ssh", "local" or "replay".
        destination: What ssh(1) takes; "" unless the way is ssh.
        spec: What is expected of it.
        expectation_from: File or recording that the expectation comes from; "" if nothing is expected.
        capture: What the recording holds; None unless the way is replay.
        gathered: What the recording holds beside it: the endpoint's answers.
    """

    alias: str
    way: str
    destination: str
    spec: HostSpec
    expectation_from: str = ""
    capture: Capture | None = None
    gathered: Mapping[str, Any] = field(default_factory=dict)

    @property
    def reached_by(self) -> str:
        """Say how, in the words of a person."""
        return f"ssh {self.destination}" if self.way == "ssh" else self.way
