"""Every fuzz target holds for a small, fixed set of inputs."""

from __future__ import annotations

import pytest

from tests.fuzz import Target, all_targets


@pytest.mark.parametrize("target", all_targets(), ids=lambda target: target.name)
def test_hostile_input_is_accepted_or_refused(target: Target) -> None:
    target.run(target.examples, fixed=True)
