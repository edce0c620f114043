"""What hosts send: frames, the probe's answer, events of GPU programs, samples, and the tunnel's messages."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import json
import threading
from collections.abc import Iterator
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from pytest_gpuinfra.capture.capture import take_capture
from pytest_gpuinfra.capture.spool import Spool
from pytest_gpuinfra.connection.tunnel import Tunnel
from pytest_gpuinfra.diagnosis.gather import findings_of
from pytest_gpuinfra.endpoint.stream import StreamAnswer
from pytest_gpuinfra.errors import EndpointError, FactUnavailable, GpuInfraError
from pytest_gpuinfra.gather.gpu import GpuRuns, GpuRunSettings
from pytest_gpuinfra.gather.participation import ParticipationRun
from pytest_gpuinfra.host.host import GpuHost
from pytest_gpuinfra.on_target.plan import SamplingPlan
from pytest_gpuinfra.record.snapshot import snapshot_of
from pytest_gpuinfra.subjects.groups.part import parse_host_part
from pytest_gpuinfra.subjects.kernel_log.log import KernelLog
from tests.fuzz import Target
from tests.fuzz.hostile import TOKEN, HostileConnection, event_output, frame, last, output, probe_output, session
from tests.recorded.story import Story, events

RECORDED = Path(__file__).parents[1] / "recorded"
TEXTS = st.one_of(
    st.text(max_size=40),
    st.text(st.characters(categories=["Cs", "Cc", "Cf"]), max_size=8),
    st.sampled_from(
        [
            "",
            "0",
            "-1",
            "\n",
            "9" * 30,
            "9" * 5000,
            "²",
            "nan",
            "0000:01:00.0",
            "ENOENT: gone",
            "\x00?{",
            "[" * 5000,
            "{}",
        ]
    ),
)
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.sampled_from([10**400, -1, 1 << 63, 1 << 64]),
    st.floats(),
    TEXTS,
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=8,
)


@st.composite
def changed(draw: st.DrawFn, value: Any) -> Any:
    """Give a JSON array or object with one to three places replaced, removed or renamed; of a text, cut or filled."""
    root = [copy.deepcopy(value)]
    for _ in range(draw(st.integers(1, 3))):
        holder: Any = root
        key: Any = 0
        while isinstance(holder[key], dict | list) and holder[key] and (holder is root or draw(st.integers(0, 9))):
            holder = holder[key]
            key = draw(st.sampled_from(sorted(holder) if isinstance(holder, dict) else range(len(holder))))
        change = draw(st.sampled_from(["value", "text", "text", "remove", "rename", "empty"]))
        if change == "text" and isinstance(holder[key], str):
            text = holder[key]
            place = draw(st.integers(0, len(text)))
            holder[key] = text[:place] + draw(st.just("") | TEXTS) + draw(st.sampled_from(["", text[place:]]))
        elif change == "remove" and isinstance(holder, dict):
            del holder[key]
        elif change == "rename" and isinstance(holder, dict):
            holder[draw(TEXTS)] = holder.pop(key)
        elif change == "empty":
            holder[key] = type(holder[key])()
        else:
            holder[key] = draw(VALUES)
    return root[0]


@st.composite
def frames(draw: st.DrawFn) -> bytes:
    """Give what a session may write that is not quite the runner's."""
    part = st.one_of(
        st.binary(max_size=60),
        st.just(TOKEN),
        st.builds(frame, st.sampled_from([b"o", b"e", b"x", b"?", b"\0"]), st.binary(max_size=60)),
        st.builds(lambda value: frame(b"x", json.dumps(value).encode("utf-8", "surrogatepass")), VALUES),
        st.builds(lambda status, late: last(status, timed_out=late), SCALARS, SCALARS),
        st.just(probe_output({})),
        st.builds(lambda value: output(json.dumps(value).encode()), VALUES),
        st.sampled_from([b"[" * 100000, frame(b"x", b"[" * 60000), b"o\xff\xff\xff\xff"]),
    )
    said = b"".join(draw(st.lists(part, max_size=5)))
    return draw(st.sampled_from([TOKEN, TOKEN, b""])) + said


@cache
def story() -> tuple[GpuHost, dict[str, Any]]:
    """Give a host with GPUs, a container and a service, and what was gathered of it."""
    made = Story(cuda=events())
    return made.host(), made.gathered()


@contextlib.contextmanager
def talking(said: bytes) -> Iterator[HostileConnection]:
    """Give a connection to a host that says this."""
    connection = HostileConnection(said)
    try:
        yield connection
    finally:
        connection.close()


def check_frames(said: bytes) -> None:
    """A capture is made of it, or says why not; it can be written down either way."""
    with talking(said) as connection:
        capture = take_capture(connection, [{"id": "a", "kind": "node", "items": []}], reached_by="x", timeout_s=5.0)
    json.dumps(capture.to_json(), ensure_ascii=False).encode()
    with contextlib.suppress(GpuInfraError):
        capture.node("a")


def check_answers(answers: Any) -> None:
    """Every fact of such a host is a value or an error of ours, and so are diagnosis, comparison and spool."""
    host, gathered = story()
    with talking(session(probe_output(answers))) as connection:
        capture = take_capture(connection, host.capture.requests, reached_by="x", timeout_s=20.0)
    json.dumps(capture.to_json(), ensure_ascii=False).encode()
    capture = dataclasses.replace(capture, alias=host.alias)
    spool = Spool()
    try:
        capture = spool.put(capture)
        seen = GpuHost(dataclasses.replace(host.selected, capture=capture), capture, _nobody)
        for whole in (lambda: seen.facts, lambda: seen.facts.service, lambda: seen.facts.container):
            with contextlib.suppress(GpuInfraError):
                _every_fact(whole())
        findings_of(seen, gathered)
        snapshot_of(host.alias, host.selected.spec.model_dump(mode="json", exclude={"group"}), capture, gathered)
    finally:
        spool.close()


def _every_fact(facts: Any) -> None:
    for name in dir(type(facts)):
        if isinstance(getattr(type(facts), name), cached_property | property):
            with contextlib.suppress(GpuInfraError):
                getattr(facts, name)


def _nobody(_: object) -> Any:
    raise FactUnavailable("x", "nobody is to be reached")


def check_events(lines: list[Any]) -> None:
    """A run of a GPU program with these events is read, or refused in our own words."""

    def baseline() -> KernelLog:
        raise FactUnavailable("x", "there is none")

    said = session(event_output(line if isinstance(line, str) else json.dumps(line) for line in lines))
    with talking(said) as connection:
        runs = GpuRuns(
            "evil",
            GpuRunSettings(()),
            lambda: connection,
            lambda: connection,
            baseline,
            lambda: "b",
            on_progress=_printed,
        )
        with contextlib.suppress(GpuInfraError):
            run = runs.cuda
            _ = (run.program.stand_in, run.program.incomplete_reason, [str(one) for one in run.program.transfers])
        json.dumps(runs.gathered(), ensure_ascii=False).encode("utf-8")


def _printed(line: str) -> None:
    assert line.isprintable(), line


def check_host_part(lines: list[Any]) -> None:
    """A host's part in an all-reduce over hosts is read, or refused in our own words."""
    with contextlib.suppress(GpuInfraError):
        part = parse_host_part(json.dumps(line) for line in lines)
        _ = (part.proven, [rank.held for rank in part.ranks], [str(one) for one in part.reached])


def check_samples(lines: list[Any]) -> None:
    """A sampling with these lines is read, or refused in our own words."""
    results: list[StreamAnswer | EndpointError] = [EndpointError("no answer")]
    with talking(session(event_output(json.dumps(line) for line in lines))) as connection:
        run = ParticipationRun(
            "evil", (), None, SamplingPlan(), lambda _: contextlib.nullcontext(results), lambda: connection, lambda: "b"
        )
        with contextlib.suppress(GpuInfraError):
            _ = [str(gpu) for gpu in run.seen.gpus], [str(one) for one in run.seen.processes.values()]
        json.dumps(run.gathered(), ensure_ascii=False).encode()


def check_tunnel(lines: list[Any]) -> None:
    """A tunnel whose far end says this is refused in our own words, and no thread of it dies."""
    died: list[Any] = []
    before, threading.excepthook = threading.excepthook, died.append
    try:
        said = session(event_output(line if isinstance(line, str) else json.dumps(line) for line in lines))
        opened = Tunnel(connection := HostileConnection(said), "127.0.0.1", 1)
        with contextlib.closing(connection), opened as tunnel, contextlib.suppress(GpuInfraError, OSError):
            tunnel.probe(1.0)
    finally:
        threading.excepthook = before
    assert not died, died


def lines_of(*parts: str) -> list[Any]:
    """Give recorded events."""
    return [json.loads(line) for line in RECORDED.joinpath(*parts).read_text(encoding="utf-8").splitlines()]


def targets() -> list[Target]:
    """Give the targets."""
    cuda = [event for event in lines_of("gpu-programs", "h200-cuda.jsonl") if event["event"] != "progress"]
    few = [event for place, event in enumerate(cuda) if event["event"] != "pair" or place % 5 == 0]
    groups = json.loads((RECORDED / "h200" / "hosts-sockets.json").read_text(encoding="utf-8"))["hosts"]
    said = next(host["gathered"]["collectives"] for host in groups.values() if host["gathered"].get("collectives"))
    whole = next(iter(said.values()))["runs"]["whole"]
    part = [json.loads(line) for line in next(iter(whole.values()))["lines"]]
    gpu = {"pci": "0000:01:00.0", "activity_percent": 3.0, "memory_used_mib": 9.0, "power_w": None}
    samples = [
        {"event": "start", "source": "NVML", "boot_id": "b", "gpus": [{"pci": gpu["pci"], "uuid": "u", "name": "n"}]},
        {"event": "process", "pid": 7, "serves": None, "name": "n", "title": "t", "parents": [1], "cgroup": "/"},
        {"event": "sample", "at_s": 0.1, "gpus": [{**gpu, "processes": [{"pid": 7, "memory_mib": 3.0}]}]},
        {"event": "end", "samples": 1, "reason": "duration"},
    ]
    tunnel = [{"id": 1, "opened": True}, {"id": 1, "data": "AAAA"}, {"id": 1, "end": True}, {"id": 1, "error": "E"}]
    answers = st.deferred(lambda: changed(dict(story()[0].capture.answers)))
    return [
        Target("wire-frames", frames(), check_frames, 40),
        Target("wire-answers", answers, check_answers, 25),
        Target("wire-events", changed(few), check_events, 25),
        Target("wire-host-part", changed(part), check_host_part, 100),
        Target("wire-samples", changed(samples), check_samples, 30),
        Target("wire-tunnel", changed(tunnel), check_tunnel, 20),
    ]
