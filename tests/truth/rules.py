"""What must hold between a host and the same host with a reading spoilt, whatever its checks are about."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from tests.truth.spoil import WHOLE, Endings, Place

ANSWERS = {
    ("host_failed_units", "list", "empty"): "systemctl lists no unit: none has failed",
    ("inside_failed_units", "list", "empty"): "systemctl lists no unit: none has failed",
    ("iommu_groups", "devices/", "empty"): "a device of another group stands in that group's own list",
    ("iommu_groups", "devices/", "garbage"): "a device of another group stands in that group's own list",
    ("pci", "driver", "absent"): "no driver is bound",
    ("pci", "driver", "garbage"): "a driver may have any name",
    ("service", "exe", "garbage"): "a program may have any path",
    ("service", "starts", "empty"): "the start lies before the journal's beginning, and none has followed",
    ("service", "stat", "absent"): "the process has ended meanwhile",
    ("service", "text", "absent"): "there is no such file (nccl.conf, environment), so it sets nothing",
    ("service", "text", "empty"): "the file sets nothing",
    ("service", "text", "garbage"): "no line of the file is an assignment, and its reader passes over others",
}
"""Readings that are an answer though they were spoilt, by kind and way, with the reason."""


def broken(found: Mapping[tuple[Place | None, str], Endings]) -> Iterator[str]:
    """Name each rule that is broken, at which place, and by which item."""
    whole = found[None, WHOLE]
    for (place, way), now in found.items():
        if place is None:
            continue
        wrong = any(ending in ("failed", "error") for ending in now.values())
        for item, was in whole.items():
            ending = now.get(item)
            said = f"{place}, {way}: {item}: {was}, then {ending}"
            if was == "failed" and ending == "passed":
                yield f"a fault is hidden: {said}"
            if was in ("failed", "passed") and ending in (None, "skipped") and not wrong:
                yield f"a check is gone, and nothing says so: {said}"
            if was == "passed" and ending == "failed" and way in ("denied", "banner"):
                yield f"what is unknown is told as wrong: {said}"
            goes_by_it = was == "passed" and found[place, "denied"].get(item) == "error"
            if goes_by_it and ending == "passed" and way in ("absent", "empty", "garbage"):
                if (*place.kind, way) in ANSWERS:
                    continue
                yield f"a pass outlives its source: {said}"
