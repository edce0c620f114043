"""
Which engine a process belongs to, and which rank it is.

Source: command lines and process titles of SGLang 0.5 ("sglang::scheduler_TP0", "sglang::scheduler_DP0_TP1"), vLLM 0.10
("VLLM::Worker_TP0", "VLLM::EngineCore"), text-generation-inference 3 (text-generation-server, --tp-rank by RANK),
llama.cpp (llama-server), TensorRT-LLM 1.0 (trtllm-serve, mpi4py workers).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from pytest_gpuinfra.subjects.service.process import ServiceProcess

_ENGINES: tuple[tuple[str, re.Pattern[str]], ...] = (
    ("SGLang", re.compile(r"\bsglang(?:\.launch_server|::| serve\b|/|\b)")),
    ("vLLM", re.compile(r"\bvllm(?:\.entrypoints|::| serve\b|/bin)|\bVLLM::|/vllm\b")),
    ("TGI", re.compile(r"\btext-generation-(?:launcher|server|router)\b|\btext_generation_server\b")),
    ("llama.cpp", re.compile(r"\bllama-server\b|\bllama_cpp\.server\b")),
    ("TensorRT-LLM", re.compile(r"\btrtllm-(?:serve|llmapi-launch)\b|\btensorrt_llm\b")),
)
_RANK = re.compile(r"(?:^|[_:\s])TP(?P<tp>\d{1,18})(?:[_\s]|$)")
_GROUP = re.compile(r"(?:^|[_:\s])(?:DP|PP)\d+(?=[_\s])")


def find_engine(processes: Iterable[ServiceProcess]) -> str | None:
    """Give the engine by the processes' command lines and titles; None if none of them is known."""
    processes = tuple(processes)
    for name, pattern in _ENGINES:
        if any(pattern.search(" ".join(process.argv)) for process in processes):
            return name
    return None


def find_ranks(processes: Sequence[ServiceProcess]) -> tuple[ServiceProcess, ...]:
    """
    Give the processes that are a rank, in the order of their titles' numbers; () if none says so.

    Titles tell it ("..._TP3"); where no title does, none is found.
    """
    found = []
    for process in processes:
        match = _RANK.search(process.title) if process.renamed else None
        if match:
            group = _GROUP.findall(process.title)
            found.append(((*group, f"{int(match['tp']):06}"), process))
    return tuple(process for _, process in sorted(found, key=lambda pair: pair[0]))
