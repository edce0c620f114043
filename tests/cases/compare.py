"""Compares what a case says was to be read with what the product read; differences in spelling do not count."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pytest_gpuinfra.facts.pci_address import normalise_pci_address

AT_LEAST = frozenset({"edges"})
"""Lists of which a case may name a part: every item that it names must be there, in order."""


def differences(expected: object, observed: object, path: str = "parsed") -> list[str]:
    """
    Name every place where the observed value lacks what is expected of it.

    Numbers are compared to the digits that the case gives, PCI addresses in their one spelling;
    a mapping may hold more than the case asks for, a list may not.
    """
    if isinstance(expected, Mapping):
        return _of_mapping(expected, observed, path)
    if isinstance(expected, list | tuple):
        return _of_list(expected, observed, path)
    if _same(expected, observed):
        return []
    return [f"{path}: expected {expected!r}, read {observed!r}"]


def _of_mapping(expected: Mapping[object, object], observed: object, path: str) -> list[str]:
    if not isinstance(observed, Mapping):
        return [f"{path}: expected {expected!r}, read {observed!r}"]
    found = []
    for key, value in expected.items():
        if key not in observed:
            found.append(f"{path}.{key}: not read at all; expected {value!r}")
        else:
            found += differences(value, observed[key], f"{path}.{key}")
    return found


def _of_list(expected: Sequence[object], observed: object, path: str) -> list[str]:
    if not isinstance(observed, list | tuple):
        return [f"{path}: expected {expected!r}, read {observed!r}"]
    if path.rpartition(".")[2] in AT_LEAST and expected:
        rest = iter(observed)
        return [
            f"{path}[{index}]: {wanted!r} is not among {observed!r}"
            for index, wanted in enumerate(expected)
            if not any(not differences(wanted, item) for item in rest)
        ]
    if len(expected) != len(observed):
        return [f"{path}: expected {len(expected)} items {expected!r}, read {len(observed)}: {observed!r}"]
    found = []
    for index, (wanted, item) in enumerate(zip(expected, observed, strict=True)):
        found += differences(wanted, item, f"{path}[{index}]")
    return found


def _same(expected: object, observed: object) -> bool:
    if isinstance(expected, bool) or isinstance(observed, bool) or expected is None or observed is None:
        return expected is observed
    if isinstance(expected, int | float) and isinstance(observed, int | float):
        digits = len(str(expected).partition(".")[2])
        return round(observed, digits) == expected
    if isinstance(expected, str) and isinstance(observed, str):
        return expected == observed or _address(expected) == _address(observed) != ""
    return expected == observed


def _address(text: str) -> str:
    try:
        return normalise_pci_address(text)
    except ValueError:
        return ""
