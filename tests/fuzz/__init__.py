"""
Hostile input, made by hypothesis, given to what users run.

Each module fuzz_*.py of this folder has `targets()`, a list of `Target`. `test_fuzz.py` runs all of them with a small
budget that is the same on every run; `python -m tests.fuzz --minutes 30` looks for new inputs until the time is up.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis.strategies import SearchStrategy


@dataclass(frozen=True)
class Target:
    """
    One way in for input of others.

    Attributes:
        name: Its name in test ids and on the command line.
        strategy: What makes its input.
        check: Takes one input; raises if the product does anything but accept it or refuse it in its own words.
        examples: Inputs in a run of the tests, all of which take some seconds.
    """

    name: str
    strategy: SearchStrategy[Any]
    check: Callable[[Any], None]
    examples: int = 30

    def run(self, examples: int, *, fixed: bool) -> None:
        """
        Try some inputs; `check`'s exception, with the smallest input that shows it, if one fails.

        Args:
            examples: How many.
            fixed: The same ones on every run; else new ones.
        """
        budget = settings(
            max_examples=examples,
            deadline=None,
            derandomize=fixed,
            database=None,
            suppress_health_check=list(HealthCheck),
        )

        def tried(value: Any) -> None:
            self.check(value)

        budget(given(value=self.strategy)(tried))()


def all_targets() -> list[Target]:
    """Give the targets of every module fuzz_*.py here, by module and in its order."""
    names = sorted(module.name for module in pkgutil.iter_modules(__path__) if module.name.startswith("fuzz_"))
    return [target for name in names for target in importlib.import_module(f"{__name__}.{name}").targets()]
