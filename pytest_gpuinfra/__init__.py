"""
pytest-gpuinfra: may this GPU host take traffic?

The public names; importing them imports no hook, and each is loaded on first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

__version__ = "0.1.0"

if TYPE_CHECKING:
    from pytest_gpuinfra.capture.capture import Capture, take_capture
    from pytest_gpuinfra.capture.evidence import explain
    from pytest_gpuinfra.connection.protocol import CommandResult, Connection
    from pytest_gpuinfra.errors import (
        CommandTimeout,
        EndpointError,
        FactUnavailable,
        GpuInfraError,
        InventoryError,
        ParseError,
        ProbeError,
        RecordingError,
        UnreachableError,
    )
    from pytest_gpuinfra.host.facts import HostFacts
    from pytest_gpuinfra.host.host import GpuHost
    from pytest_gpuinfra.inventory.inventory import Expectation, HostSpec, Inventory, read_inventory
    from pytest_gpuinfra.record.recording import Recording, read_recording
    from pytest_gpuinfra.session.items import ExpectedValue, GpuDevice

_HOME = {
    "Capture": "capture.capture",
    "CommandResult": "connection.protocol",
    "CommandTimeout": "errors",
    "Connection": "connection.protocol",
    "EndpointError": "errors",
    "Expectation": "inventory.inventory",
    "ExpectedValue": "session.items",
    "FactUnavailable": "errors",
    "GpuDevice": "session.items",
    "GpuHost": "host.host",
    "GpuInfraError": "errors",
    "HostFacts": "host.facts",
    "HostSpec": "inventory.inventory",
    "Inventory": "inventory.inventory",
    "InventoryError": "errors",
    "ParseError": "errors",
    "ProbeError": "errors",
    "Recording": "record.recording",
    "RecordingError": "errors",
    "UnreachableError": "errors",
    "explain": "capture.evidence",
    "read_inventory": "inventory.inventory",
    "read_recording": "record.recording",
    "take_capture": "capture.capture",
}

__all__ = [
    "Capture",
    "CommandResult",
    "CommandTimeout",
    "Connection",
    "EndpointError",
    "Expectation",
    "ExpectedValue",
    "FactUnavailable",
    "GpuDevice",
    "GpuHost",
    "GpuInfraError",
    "HostFacts",
    "HostSpec",
    "Inventory",
    "InventoryError",
    "ParseError",
    "ProbeError",
    "Recording",
    "RecordingError",
    "UnreachableError",
    "explain",
    "read_inventory",
    "read_recording",
    "take_capture",
]


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
