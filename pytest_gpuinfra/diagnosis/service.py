"""The service: which of its processes lack the fallback, what it was started from, and whether it does its work."""

from __future__ import annotations

import re
from collections.abc import Sequence

from pytest_gpuinfra.capture.reading import Reading
from pytest_gpuinfra.diagnosis.finding import Confidence, Finding, Step, some
from pytest_gpuinfra.diagnosis.observations import Observations, ServiceSeen, Unknown, known, reasons
from pytest_gpuinfra.diagnosis.path import pair_words, wrong_transfers
from pytest_gpuinfra.masking import first_of
from pytest_gpuinfra.subjects.path_safety.judge import (
    CUSTOM_SWITCH,
    IPC_MECHANISMS,
    NCCL_SWITCH,
    custom_all_reduce_in_effect,
    peer_arguments_in_effect,
)
from pytest_gpuinfra.subjects.service.engine_allreduce import parse_engine_allreduce
from pytest_gpuinfra.subjects.service.environment import ProcessValue

_NAME, _LEVEL = "NCCL_P2P_DISABLE", "NCCL_P2P_LEVEL"
_OFF_LEVELS = ("LOC", "0")
_SMALL_GIB = 1 / 16
"""Docker's and Podman's default of 64 MiB: too small for the segments of more than a few of NCCL's channels."""
_NO_SHM = re.compile(
    r"creating shared memory segment|/dev/shm/nccl-\S+.*No space left"
    r"|No space left on device.*(?:/dev/shm|shared memory)"
    r"|unable to (?:open|allocate) shared memory|insufficient shared memory \(shm\)",
    re.IGNORECASE,
)
_NO_GPU = re.compile(
    r"No CUDA GPUs are available|no CUDA-capable device|CUDA driver initialization failed|cudaErrorNoDevice"
    r"|Failed to initialize NVML|NVML Shared Library Not Found|Found no NVIDIA driver|system not yet initialized",
    re.IGNORECASE,
)


def fallback_missing(seen: Observations) -> Finding | None:
    """Find that NCCL's way past the peers is not in effect in the running processes, and which layer lacks it."""
    service, needs = seen.service, _needs(seen)
    if service is None or not needs or _stopped(service) or _alone(seen):
        return None
    transport = known(service.transport)
    if transport is not None and transport.words == "SHM" and len(transport.by_rank) == 2 and not service.wants_switch:
        return None
    switch = known(service.switch)
    if switch is None:
        if not isinstance(service.switch, Unknown) or not wrong_transfers(seen):
            return None
        return Finding(
            key="fallback-unknown",
            title=f"nobody can tell whether NCCL's fallback ({NCCL_SWITCH}) is in effect in {service.name}",
            rung="engine",
            confidence="possible",
            evidence=tuple(needs),
            unseen=reasons(environment_of_the_service=service.switch),
            steps=(Step("read it as root (--gpu-sudo)", "nothing"), _set_and_restart(service)),
        )
    kept_off = _off_by_level(service)
    bare = [value for value in switch.values if value.known and value.value != "1" and value.process not in kept_off]
    dark = [value for value in switch.values if not value.known and value.process not in kept_off]
    if not (bare or (dark and wrong_transfers(seen))):
        return _not_shared(service, needs, switch.values, kept_off)
    have = [value for value in switch.values if value.known and value.value == "1"]
    lacking = "unknown" if not bare else "missing" if all(value.value is None for value in bare) else "not 1"
    confidence: Confidence = (
        "possible" if not bare else "certain" if _strong(seen) or service.wants_switch else "likely"
    )
    evidence = some([str(value) for value in bare])
    evidence += [f"it is in effect in {', '.join(value.process for value in have[:3])}"] if have else []
    evidence += _layer_words(service, bare)
    evidence += [f"the ranks share: {transport}"] if transport is not None else []
    return Finding(
        key="fallback-missing",
        title=f"NCCL's fallback is not in effect in {'some processes of ' if have or not bare else ''}{service.name}: "
        f"{_NAME} is {lacking}",
        rung="engine",
        confidence=confidence,
        evidence=(*evidence, *needs),
        unseen=(
            *some([str(value) for value in dark], 2),
            *reasons(layers=service.layers, transport_in_use=service.transport, peer_copies=seen.transfers),
        ),
        steps=(_set_and_restart(service),),
    )


def _not_shared(
    service: ServiceSeen, needs: list[str], switch: Sequence[ProcessValue], kept_off: frozenset[str]
) -> Finding | None:
    """Find ranks that share no memory although the peers are switched off: asked for and seen are two facts."""
    transport, state = known(service.transport), known(service.state)
    if transport is None or transport.words == "SHM" or state is None or state.active_state != "active":
        return None
    ways = [NCCL_SWITCH] if any(value.known and value.value == "1" for value in switch) else []
    level = known(service.level)
    values = {one.value for one in level.values if one.process in kept_off} if level is not None else set()
    ways += [f"{_LEVEL}={value}" for value in sorted(value for value in values if value)]
    if not ways:
        return None
    return Finding(
        key="fallback-not-seen",
        title=f"{' and '.join(ways)} is set in {service.name}, and its ranks are not seen to share memory",
        rung="engine",
        confidence="likely",
        evidence=(f"the ranks: {transport}", *needs),
        unseen=("NCCL's own log: which transport each channel has",),
        steps=(
            Step(
                "start it once with NCCL_DEBUG=INFO and look for `via SHM` or `via P2P`: nccl.conf or a wrapper may "
                "set the variable again, or the engine goes past NCCL",
                "a restart of the service",
            ),
        ),
    )


def custom_all_reduce(seen: Observations) -> Finding | None:
    """Find that the engine's own all-reduce, which NCCL's variables do not reach, is on where peers are not right."""
    service = seen.service
    needs = _needs(seen)
    if service is None or not needs or _stopped(service) or _alone(seen):
        return None
    if not (_strong(seen) or seen.peer_access == "blocked" or any(one.target for one in known(seen.refused) or ())):
        return None
    over_ipc = [one for one in known(seen.transfers) or () if one.mechanism in IPC_MECHANISMS]
    bad = [one for one in over_ipc if one.observed_wrong]
    if over_ipc and all(one.outcome == "right" for one in over_ipc) and not _refused_peers(seen):
        return None
    engine, journal = known(service.engine), known(service.journal)
    arguments = known(service.arguments)
    on = custom_all_reduce_in_effect((engine or "").lower(), arguments)
    others = peer_arguments_in_effect((engine or "").lower(), arguments)
    if (on is False and not others) or (on is None and not (bad and engine in ("SGLang", "vLLM", None))):
        return None
    text = "\n".join(line.message for line in journal.lines) if journal is not None else ""
    said = parse_engine_allreduce(Reading("the service's log", text)).disabled_because
    if said is not None and not others:
        return None
    many = len(known(seen.gpus) or ()) > 2
    confidence: Confidence = "certain" if bad and (others or not many) else "likely"
    if on is None or (many and not (bad or others or _refused_peers(seen) or _strong(seen))):
        confidence = "possible"
    evidence = [f"{CUSTOM_SWITCH} is not among the arguments of {service.name} ({engine})"] if on else []
    evidence += [f"{word} is among the arguments of {service.name}: a peer path of its own" for word in others]
    evidence += some(pair_words(bad))
    return Finding(
        key="custom-all-reduce-on",
        title=f"the engine's own all-reduce over CUDA IPC is {'on or off, nobody can tell,' if on is None else 'on'} "
        f"in {service.name}, and {NCCL_SWITCH} does not reach it",
        rung="engine",
        confidence=confidence,
        evidence=tuple(evidence + ([] if bad else needs)) or tuple(needs),
        unseen=(
            *reasons(
                arguments=service.arguments, engine=service.engine, log=service.journal, peer_copies=seen.transfers
            ),
            *(
                ("on more than two GPUs without NVLink the engine may have switched it off by itself: its log tells",)
                if many and on
                else ()
            ),
        ),
        steps=(
            Step(
                " and ".join(
                    [
                        *([f"add {CUSTOM_SWITCH} to"] if on is not False else []),
                        *(f"take {word} from" for word in others),
                    ]
                )
                + " ExecStart, reload, restart",
                "a restart of the service; small all-reduces go through NCCL and take longer",
            ),
        ),
    )


def shm_small(seen: Observations) -> Finding | None:
    """Find a /dev/shm in which NCCL's segments have no room."""
    container = seen.container
    space = known(container.shm) if container else None
    least = container.shm_min_gib if container else None
    short = space is not None and (space.size_gib < least if least is not None else space.size_gib <= _SMALL_GIB)
    full = space is not None and space.available_bytes < min(1 << 26, space.size_bytes // 20)
    said = [line for line in _said(seen) if _NO_SHM.search(line)]
    if not (short or said or full):
        return None
    evidence = []
    if space is not None and container is not None:
        evidence.append(
            f"/dev/shm of {container.name}: {space.size_gib:.3g} GiB, {space.available_gib:.3g} GiB left"
            + (f"; {least:g} GiB demanded" if least is not None else "")
        )
    return Finding(
        key="shm-small",
        title="/dev/shm is too small for NCCL's shared memory" if short or not full else "/dev/shm is full",
        rung="collective",
        confidence="certain" if (short or full) and (said or least is not None) else "likely",
        evidence=tuple(evidence + some([first_of(line, 200) for line in said])),
        unseen=reasons(size_of_dev_shm=container.shm) if container else (),
        steps=(
            Step(
                "give it several GiB: --shm-size or --ipc=host (docker, podman), a mount entry of tmpfs (LXC), fstab",
                "a restart of the container; memory is taken only as it is used",
            ),
            Step("remove /dev/shm/nccl-* that no process has open (fuser tells)", "nothing"),
        ),
    )


def started_early(seen: Observations) -> Finding | None:
    """Find a service that was started before the GPUs were ready."""
    service = seen.service
    state = known(service.state) if service else None
    if service is None or state is None:
        return None
    started_s = state.started_us / 1e6
    ready = list(seen.gpus_ready_s)
    if (loaded := known(seen.driver_loaded_s)) is not None:
        ready.append(("the nvidia driver", loaded))
    late = [(what, at_s) for what, at_s in ready if started_s and at_s > started_s]
    journal = known(service.journal)
    said = (
        [first_of(line.message, 200) for line in journal.lines if _NO_GPU.search(line.message)]
        if journal is not None
        else []
    )
    harmed = state.active_state != "active" or bool(state.restarts) or bool(said)
    gpus = known(seen.gpus) or ()
    there_now = bool(gpus) and all(known(gpu.in_driver) for gpu in gpus)
    if not harmed or not (late or (said and there_now)):
        return None
    evidence = [f"{service.name} was started {started_s:.1f} s after boot"] if started_s else []
    evidence += [f"{what} was there {at_s:.1f} s after boot" for what, at_s in late]
    evidence += some(said)
    evidence.append(f"{service.name} now: {state}" + (f"; {state.restarts} restarts" if state.restarts else ""))
    if isinstance(readiness := known(seen.readiness), object) and readiness is not None and not readiness.ready:
        evidence.append(f"the endpoint: {readiness.missing}")
    return Finding(
        key="started-early",
        title=f"{service.name} was started before the GPUs were ready",
        rung="binding",
        confidence="certain" if late and said else "likely",
        evidence=tuple(evidence),
        unseen=reasons(log_of_the_service=service.journal, driver_load=seen.driver_loaded_s),
        steps=(
            Step(f"restart {service.name} now that the GPUs are there", "the minutes of loading the model"),
            Step(
                "order it: After= and Wants= of what makes the GPUs ready (nvidia-persistenced, the container's device "
                "nodes), or ExecStartPre= that waits for nvidia-smi; Restart=on-failure beside it",
                "a reload, and one reboot to prove it",
            ),
        ),
    )


def not_restarted(seen: Observations) -> Finding | None:
    """Find a unit that was edited and not restarted, or not even reloaded."""
    service = seen.service
    if service is None:
        return None
    process, reload = known(service.process_drift), known(service.reload_drift)
    old = process is not None and process.found
    pending = reload is not None and reload.found
    if not (old or pending) or (_stopped(service) and not pending):
        return None
    drifts = [drift for drift in (process, reload) if drift is not None and drift.found]
    evidence = [reason for drift in drifts for reason in drift.reasons]
    changes = [line for line in drifts[0].diff.splitlines() if line[:1] in "+-" and line[:3] not in ("+++", "---")]
    title = f"what {service.name} is started from was edited, and it was not restarted since"
    if not old:
        title = f"the unit of {service.name} was edited, and systemd has not read it"
    return Finding(
        key="not-restarted",
        title=title,
        rung="engine",
        confidence="certain",
        evidence=tuple(some(list(dict.fromkeys(evidence)), 4) + some(changes, 6)),
        unseen=reasons(age_of_the_process=service.process_drift, what_systemd_holds=service.reload_drift),
        steps=(
            Step(
                ("systemctl daemon-reload, then " if pending else "")
                + f"restart {service.name} when it may be restarted",
                "the minutes of loading the model; then prove it anew",
            ),
        ),
    )


def speculation(seen: Observations) -> Finding | None:
    """Find speculation that is not what it is meant to be: mostly configured, and accepting nothing."""
    verdict = known(seen.speculation)
    if verdict is None or verdict.ending != "wrong":
        return None
    idle = "configured but not" in verdict.observed
    return Finding(
        key="speculation-not-accepting" if idle else "speculation-otherwise",
        title="speculation is configured, and no draft is accepted: every request pays for drafts and gains nothing"
        if idle
        else "speculation is not as it is meant to be",
        rung="engine",
        confidence="certain",
        evidence=(verdict.observed, f"expected: {verdict.expected}"),
        steps=(
            Step(verdict.action or "compare the draft model with the model", "nothing"),
            Step("until then, serve without speculation", "a restart of the service; as fast as now, or faster"),
        ),
    )


def idle_rank(seen: Observations) -> Finding | None:
    """Find a rank that did nothing while others worked."""
    work = known(seen.work) or ()
    idle = [one for one in work if one.idle]
    busy = [one for one in work if one.idle is False]
    if not idle:
        return None
    return Finding(
        key="idle-rank",
        title=f"rank {', '.join(one.rank for one in idle)} did nothing while the service answered",
        rung="engine",
        confidence="certain" if busy else "likely",
        evidence=tuple(one.words for one in (*idle, *busy[:1])),
        unseen=tuple(f"rank {one.rank}: {one.words}" for one in work if one.idle is None),
        steps=(
            Step(
                "compare the parallel size in effect with the GPUs that it is given (--tp, CUDA_VISIBLE_DEVICES)",
                "nothing",
            ),
            Step(
                "see the log of that rank for a hang or a crash, then restart the service",
                "the minutes of loading the model",
            ),
        ),
    )


def exposed(seen: Observations) -> bool:
    """Tell whether the service is seen to lack a switch that keeps it off the peers."""
    return any(
        found is not None and found.confidence != "possible"
        for found in (fallback_missing(seen), custom_all_reduce(seen))
    )


def kept_off(seen: Observations) -> bool:
    """Tell whether the running service is seen to stay off the peers: in every process, and in its engine."""
    service = seen.service
    switch = known(service.switch) if service is not None else None
    if service is None or switch is None or _stopped(service):
        return False
    engine, arguments, by_level = (
        (known(service.engine) or "").lower(),
        known(service.arguments),
        _off_by_level(service),
    )
    off = all(value.known and (value.value == "1" or value.process in by_level) for value in switch.values)
    own = custom_all_reduce_in_effect(engine, arguments)
    return off and own is False and not peer_arguments_in_effect(engine, arguments)


def _needs(seen: Observations) -> list[str]:
    """Say why the service must stay off the peers; [] if nothing says so."""
    needs = []
    wrong = wrong_transfers(seen)
    if wrong:
        lines = pair_words(wrong)
        needs.append(f"peer copies are wrong here: {lines[0]}" + (f"; and {len(lines) - 1} more" if lines[1:] else ""))
    bad = [run for run in known(seen.runs) or () if run.observed_wrong and run.environment.get(_NAME) != "1"]
    needs += [f"{run}"[:160] for run in bad[:1]]
    if _refused_peers(seen):
        needs.append("the IOMMU refused accesses of one GPU to another")
    if seen.peer_access == "blocked":
        needs.append('the inventory says: peer_access = "blocked"')
    if seen.service is not None and seen.service.wants_switch:
        needs.append(f"the inventory demands {NCCL_SWITCH}")
    return needs


def _strong(seen: Observations) -> bool:
    return bool(wrong_transfers(seen)) or any(
        run.observed_wrong and run.environment.get(_NAME) != "1" for run in known(seen.runs) or ()
    )


def _refused_peers(seen: Observations) -> bool:
    return any(one.target is not None for one in known(seen.refused) or ())


def _stopped(service: ServiceSeen) -> bool:
    """Whether it is known not to run: then nothing of it can be in effect."""
    state = known(service.state)
    return state is not None and state.active_state in ("inactive", "failed")


def _alone(seen: Observations) -> bool:
    """Whether the service is known to have no path between GPUs at all, or to use no NCCL."""
    service = seen.service
    if service is None or known(service.engine) == "llama.cpp":
        return True
    return known(service.ranks) == 1 or len(known(seen.gpus) or (1, 2)) < 2


def _off_by_level(service: ServiceSeen) -> frozenset[str]:
    """Name the processes in which NCCL_P2P_LEVEL switches the peers off."""
    level = known(service.level)
    values: tuple[ProcessValue, ...] = level.values if level is not None else ()
    return frozenset(one.process for one in values if one.known and (one.value or "").strip().upper() in _OFF_LEVELS)


def _layer_words(service: ServiceSeen, bare: list[ProcessValue]) -> list[str]:
    """Say which layers set the variable, as they are on disk, and which do not."""
    layers = known(service.layers)
    if layers is None:
        return []
    setting = [layer for layer in layers if _NAME in layer.values]
    silent = [
        layer for layer in layers if _NAME not in layer.values and layer.name in ("unit", "drop-in", "environment file")
    ]
    words = [f"{layer} sets {_NAME}={layer.values[_NAME]}" for layer in setting]
    if any(layer.values[_NAME] == "1" for layer in setting) and bare:
        words.append("the running processes do not have it: they were started before, or are started past that layer")
    if not setting:
        words.append(f"no layer sets it: not {', not '.join(str(layer) for layer in silent) or 'the unit'}")
    return words


def _set_and_restart(service: ServiceSeen) -> Step:
    layers = known(service.layers) or ()
    unit = next((layer.source for layer in layers if layer.name == "unit"), f"the unit of {service.name}")
    if any(layer.values.get(_NAME) == "1" for layer in layers):
        return Step(
            f"restart {service.name}, then judge it again: a layer sets {NCCL_SWITCH} on disk",
            "the minutes of loading the model",
        )
    return Step(
        f"add Environment={NCCL_SWITCH} to {unit}, daemon-reload, restart",
        "the minutes of loading the model; all-reduces go over host memory",
    )


def _said(seen: Observations) -> list[str]:
    """Give the lines in which NCCL or the engine may have complained."""
    lines = []
    for run in known(seen.runs) or ():
        lines += [
            run.reason or "",
            *run.log,
            *(rank.last_line for rank in run.ranks),
            *(rank.error or "" for rank in run.ranks),
        ]
    journal = known(seen.service.journal) if seen.service else None
    return lines + ([line.message for line in journal.lines] if journal is not None else [])
