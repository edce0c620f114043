"""This repository's own set-up: markers of its tests."""

from __future__ import annotations

import pytest


def pytest_configure(config: pytest.Config) -> None:
    """Declare what the tests are marked with."""
    config.addinivalue_line("markers", "lab: needs root and the lab's Debian packages (a booted container as the host)")
    config.addinivalue_line("markers", "lab_vm: needs root and the lab's virtual machine")
    config.addinivalue_line("markers", "slow: takes minutes; not run by default in CI's fast tier")
