"""
Whether the engine's own all-reduce, which goes over CUDA IPC past NCCL, is off, and why.

Source: vLLM vllm/distributed/device_communicators/custom_all_reduce.py (0.4 to 0.32) and the same file in SGLang
(0.4 to 0.5): "Custom allreduce is disabled because ...". Its being off says nothing of NCCL's own P2P.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from pytest_gpuinfra.capture.reading import Reading

_DISABLED = re.compile(
    r"Custom allreduce is disabled (?P<reason>(?:because|due to|since) .+?)(?:\. |\.?$)", re.MULTILINE
)


@dataclass(frozen=True, slots=True)
class EngineAllReduce:
    """
    What an engine says of its own all-reduce.

    Attributes:
        disabled_because: Its words; None if it does not say that it is off.
    """

    disabled_because: str | None


def parse_engine_allreduce(reading: Reading) -> EngineAllReduce:
    """
    Read an engine's log.

    Raises:
        FactUnavailable: There is no log.
    """
    match = _DISABLED.search(reading.require())
    return EngineAllReduce(match["reason"] if match else None)
