"""
The path between GPUs: translation, access control, peer copies, and what NCCL makes of them.

A bad result counts only beside its control: an all-reduce over peers that hangs says something of the peers only
where the same sum over shared memory is right.
Source: club-3090's ladder of rungs (topology, driver's grant, transfer, collective, engine); NVIDIA's CUDA C
Programming Guide 13, "Peer-to-Peer Memory Access" (IOMMU on bare metal: peer copies unsupported under translation);
Linux drivers/iommu/amd/init.c and iommu.c (SNP forbids identity domains, kernel 6.x); for the 0x177 of Blackwell's
FSP see Xid 143.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from pytest_gpuinfra.diagnosis.finding import Confidence, Finding, Step, some
from pytest_gpuinfra.diagnosis.observations import Observations, Unknown, known, reasons
from pytest_gpuinfra.masking import first_of
from pytest_gpuinfra.pci_address import short_address
from pytest_gpuinfra.subjects.kernel_log.xid import Xid
from pytest_gpuinfra.subjects.path_safety.judge import CUSTOM_SWITCH, NCCL_SWITCH
from pytest_gpuinfra.subjects.transfers.all_reduce import AllReduceRun
from pytest_gpuinfra.subjects.transfers.transfer import PeerTransfer

_TRANSLATED = ("DMA", "DMA-FQ")
_BLACKWELL = re.compile(r"Blackwell|\bG?B[123]00\b")
_FSP_IDENTITY = "0x177"
_RESTART = "a restart of the service, and all-reduces over host memory"


def fsp_dead_end(seen: Observations) -> Finding | None:
    """Find Blackwell's security processor that does not boot, and whether an identity domain is why."""
    faults = [
        fault
        for fault in known(seen.faults) or ()
        if (isinstance(fault, Xid) and fault.status is not None) or (fault.kind == "init" and fault.code == "fsp")
    ]
    if not faults:
        return None
    named = [fault for fault in faults if _FSP_IDENTITY in fault.message]
    devices = {fault.device for fault in faults if fault.device}
    types = {gpu.address: known(gpu.group_type) for gpu in known(seen.gpus) or ()}
    identity = [address for address in sorted(devices) if types.get(address) == "identity"]
    evidence = some([first_of(fault.message, 200) for fault in (named or faults)])
    evidence += [f"IOMMU group of {short_address(address)} is identity now" for address in identity]
    if not identity:
        others = sorted({word for address in devices if (word := types.get(address))})
        evidence += [f"its IOMMU group is {word} now" for word in others]
    confidence: Confidence = "certain" if named and identity else "likely" if named or identity else "possible"
    who = ", ".join(short_address(address) for address in sorted(devices)) or "a GPU"
    title = f"FSP of {who} does not boot"
    if confidence != "possible":
        title = f"identity domains are a dead end on this GPU: the FSP of {who} does not boot under one"
        title += f" ({_FSP_IDENTITY})" if named else ""
    return Finding(
        key="identity-dead-end" if confidence != "possible" else "fsp-boot",
        title=title,
        rung="topology",
        confidence=confidence,
        evidence=tuple(evidence),
        unseen=reasons(group_type=_unknown_types(seen)),
        steps=(
            Step(
                "take the identity domain back (modprobe hook, unit, kernel command line) and reboot",
                "a reboot; no reset (FLR, bus, CXL) clears the FSP",
            ),
            Step(
                f"then serve over shared memory: {NCCL_SWITCH} and the engine's own all-reduce off ({CUSTOM_SWITCH})",
                _RESTART,
            ),
        ),
    )


def translation(seen: Observations, *, exposed: bool, kept_off: bool) -> Finding | None:
    """
    Find that the IOMMU's translation drops or scrambles peer copies.

    Args:
        seen: What was observed.
        exposed: Whether the service is seen to lack a switch that keeps it off the peers.
        kept_off: Whether it is seen to stay off them.
    """
    translated = _translated(seen)
    wrong = wrong_transfers(seen)
    refused = known(seen.refused) or ()
    at_peers = [one for one in refused if one.target is not None]
    earlier = [one for one in refused if not one.ours]
    hanging = _against_control(seen)
    if translated is False and not at_peers:
        return None
    if not (wrong or at_peers or hanging or (translated and refused)):
        return None
    tolerated = seen.peer_access in ("blocked", "any")
    if tolerated and not earlier and not exposed and not (hanging and not wrong):
        return None
    evidence = _translation_evidence(seen)
    evidence += some([one.words for one in (at_peers or refused)])
    evidence += some(pair_words(wrong))
    evidence += [f"{run}"[:220] for run in hanging]
    evidence += [f"{run}"[:160] for run in control_runs(seen) if run.ending == "right"][:1]
    return Finding(
        key="translation-blocks-peers",
        title="the IOMMU's translation breaks direct copies between GPUs",
        rung="topology",
        confidence=_sure_of_translation(translated, bool(wrong), bool(at_peers), bool(refused)),
        evidence=tuple(evidence),
        unseen=(
            *reasons(group_types=_unknown_types(seen), refused_accesses=seen.refused, peer_copies=seen.transfers),
            *(
                ("peer copies: nobody has run them on this boot (--gpu-level=active)",)
                if seen.transfers is None
                else ()
            ),
        ),
        steps=_leave_it(ways_out(seen)) if kept_off else ways_out(seen),
    )


def _leave_it(ways: tuple[Step, ...]) -> tuple[Step, ...]:
    """Give the steps where the service stays off the peers already, so that something else copied between the GPUs."""
    who = Step(
        "the service is kept off the peers already: find what else copied between the GPUs at these times (another "
        "process on them, a peer test of somebody's), and keep it from that",
        "nothing; the log is clean again after the next boot",
    )
    return (who, *ways[1:])


def ways_out(seen: Observations) -> tuple[Step, ...]:
    """Give the two ways out of translation, with what each costs; one that is closed on this host is told so."""
    speed = ""
    for run in control_runs(seen):
        if run.speed is not None:
            speed = f" ({run.speed.busbw_gb_s:g} GB/s here, busbw)"
    stay = Step(
        f"keep the translation: set {NCCL_SWITCH} where every rank gets it, and switch the engine's own all-reduce off "
        f"(SGLang, vLLM: {CUSTOM_SWITCH})",
        f"{_RESTART}{speed}",
    )
    leave = "leave translation: boot with iommu=pt, and no amd_iommu/intel_iommu option that forces it"
    closed = ["SEV-SNP is on, and the AMD IOMMU driver refuses identity domains beside it"]
    closed = closed if known(seen.confidential) == "sev-snp" else []
    closed += [dead] if (dead := identity_is_dead_end(seen)) else []
    if closed:
        return stay, Step(leave, "; ".join(closed), open=False)
    return stay, Step(
        leave, "a reboot; devices on host drivers are confined no more, and SEV-SNP guests are excluded for good"
    )


def identity_is_dead_end(seen: Observations) -> str:
    """Say why an identity domain cannot be had on this GPU; "" if nothing is known against it."""
    if any(_FSP_IDENTITY in fault.message for fault in known(seen.faults) or () if isinstance(fault, Xid)):
        return f"it was tried on this boot, and the GPU's FSP did not boot ({_FSP_IDENTITY})"
    names = {name for gpu in known(seen.gpus) or () if (name := known(gpu.name)) and _BLACKWELL.search(name)}
    if names:
        name = sorted(names)[0]
        return f"{name}: Blackwell's FSP does not boot under identity ({_FSP_IDENTITY}), and no reset clears that"
    return ""


def acs_redirect(seen: Observations) -> Finding | None:
    """Find bridges that send peer traffic up although the GPUs share a bridge below the root complex."""
    acs = known(seen.acs)
    transfers = known(seen.transfers) or ()
    absent = [one for one in transfers if one.outcome == "not_tested"]
    wrong = wrong_transfers(seen)
    missed = seen.peer_access == "correct" and bool(absent)
    if acs is None or not (wrong or missed or _against_control(seen)):
        return None
    bridges = acs.between or (acs.elsewhere if _translated(seen) is False else ())
    if not bridges:
        return None
    return Finding(
        key="acs-redirect",
        title="ACS on the bridges above the GPUs sends their peer traffic to the root complex",
        rung="topology",
        confidence="likely" if acs.between else "possible",
        evidence=tuple(some(list(bridges)) + some(pair_words(wrong or absent), 2)),
        unseen=reasons(group_types=_unknown_types(seen)),
        steps=(
            Step(
                "clear the redirect bits for a trial (setpci -s BRIDGE ECAP_ACS+6.w=0), then run the peer suite again",
                "no reboot; until the next boot, functions below the bridge can reach each other",
            ),
            Step(
                "switch ACS off in the BIOS for these slots",
                "a reboot; the functions fall into one IOMMU group, so that they go to a VM together or not at all",
            ),
        ),
    )


def peers_corrupt(seen: Observations) -> Finding | None:
    """Find corrupt peer copies that no translation explains."""
    wrong = wrong_transfers(seen)
    if not wrong or seen.peer_access in ("blocked", "any"):
        return None
    good = [one for one in known(seen.transfers) or () if one.outcome == "right"]
    ways = sorted({one.mechanism for one in wrong})
    evidence = some(pair_words(wrong))
    evidence.append(f"{len(wrong)} transfers wrong, {len(good)} right; wrong by {', '.join(ways)}")
    evidence += [str(run)[:160] for run in control_runs(seen)][:1]
    state = _translated(seen)
    evidence += ["no translation: " + _types(seen)] if state is False else []
    return Finding(
        key="peers-corrupt",
        title="copies between GPUs are wrong, although the driver offers them",
        rung="transfer",
        confidence="certain",
        evidence=tuple(evidence),
        unseen=reasons(group_types=_unknown_types(seen)),
        steps=(
            Step(
                f"keep the service off the peers: {NCCL_SWITCH} and the engine's own all-reduce off ({CUSTOM_SWITCH})",
                _RESTART,
            ),
            Step(
                "find the part: one pair, direction, mechanism or size that is wrong alone points to a link, a riser, "
                "a switch's firmware or the driver; swap slots and run the peer suite again",
                "the GPUs for a minute each time; a swap takes the host down",
            ),
        ),
    )


def peer_access_absent(seen: Observations) -> Finding | None:
    """Find that no direct copies are offered where they are counted on, so that data goes through the host."""
    transfers = [one for one in known(seen.transfers) or () if one.mechanism != "torch_copy" and not one.via]
    absent = [one for one in transfers if one.outcome == "not_tested"]
    if not absent or seen.peer_access in ("blocked", "any"):
        return None
    staged = [one for one in known(seen.transfers) or () if one.mechanism == "torch_copy" and one.outcome == "right"]
    fell_back = [
        run for run in _runs(seen) if run.arm.startswith("p2p") and run.transports and run.transports != {"P2P"}
    ]
    pairs = sorted({f"{short_address(one.src)} to {short_address(one.dst)}" for one in absent})
    if not (seen.peer_access == "correct" or fell_back):
        return None
    evidence = [f"the driver offers no peer access for {len(pairs)} directed pairs: {', '.join(pairs[:4])}"]
    evidence += [f"{one}"[:160] + ": right, and staged through the host" for one in staged[:1]]
    evidence += [f"{run}"[:200] for run in fell_back]
    return Finding(
        key="peer-access-absent",
        title="the driver offers no direct copies between GPUs: every copy is staged through host memory",
        rung="transfer",
        confidence="certain",
        evidence=tuple(evidence),
        unseen=reasons(group_types=_unknown_types(seen)),
        steps=(
            Step(
                "see why in `nvidia-smi topo -p2p r` (CNS: chipset, GNS: GPU, TNS: topology); "
                'where it cannot be had, declare peer_access = "blocked"',
                "nothing",
            ),
            Step(
                "put the GPUs under one switch or host bridge, or use NVLink", "the host is down while cards are moved"
            ),
        ),
    )


def collective_wrong(seen: Observations) -> Finding | None:
    """Find all-reduces that are wrong over shared memory: then no switch between transports helps."""
    wrong = [run for run in control_runs(seen) if run.observed_wrong]
    if not wrong:
        return None
    ranks = [
        f"rank {rank.rank} on {short_address(rank.pci)}: {rank.stage}"
        + (
            f"; {rank.error}"
            if rank.error
            else f"; last line: {first_of(rank.last_line, 120)}"
            if rank.last_line
            else ""
        )
        for run in wrong
        for rank in run.ranks
        if not rank.done
    ]
    peers = [run for run in _runs(seen) if "P2P" in run.transports]
    return Finding(
        key="collective-wrong",
        title="all-reduce is wrong over shared memory, too: the path between GPUs is not to blame",
        rung="collective",
        confidence="likely",
        evidence=tuple([str(run)[:240] for run in wrong] + some(ranks) + [str(run)[:160] for run in peers][:1]),
        unseen=reasons(peer_copies=seen.transfers),
        steps=(
            Step(
                "run the pairs one by one (--gpu-subsets=pairs): a rank that fails in each of its pairs is the GPU",
                "the GPUs for a minute or two",
            ),
            Step(
                "read the kernel's log for Xids of that GPU, and take it out of the service", "its memory and its share"
            ),
        ),
    )


def transport_overridden(seen: Observations) -> Finding | None:
    """Find all-reduces that took another transport than the one asked for: another layer sets NCCL's variables."""
    wrong = [run for run in control_runs(seen) if "P2P" in run.transports and run.arm.startswith("shm")]
    if not wrong:
        return None
    return Finding(
        key="transport-overridden",
        title=f"NCCL goes peer to peer although {NCCL_SWITCH} was set for it",
        rung="collective",
        confidence="certain",
        evidence=tuple(f"{run}"[:200] for run in wrong),
        steps=(
            Step(
                "look for the layer that sets it again: /etc/nccl.conf, ~/.nccl.conf, sitecustomize, a wrapper",
                "a restart of the service once it is corrected",
            ),
        ),
    )


def wrong_transfers(seen: Observations) -> list[PeerTransfer]:
    """Give the transfers between GPUs that were seen to be wrong."""
    return [one for one in known(seen.transfers) or () if one.observed_wrong]


def pair_words(transfers: Iterable[PeerTransfer]) -> list[str]:
    """Put transfers into words, one line for each pair or chain: by which mechanisms, and what became of the bytes."""
    pairs: dict[str, list[PeerTransfer]] = {}
    for one in transfers:
        way = [one.src, *([one.via] if one.via else []), one.dst]
        pairs.setdefault(" to ".join(short_address(address) for address in way), []).append(one)
    lines = []
    for pair, found in pairs.items():
        ways = ", ".join(dict.fromkeys(one.mechanism for one in found))
        first = found[0]
        what = first.outcome.replace("_", " ")
        if first.outcome == "wrong":
            what = (
                f"{(first.corruption or 'wrong').replace('_', ' ')}, {first.wrong_bytes} of {first.bytes_checked} bytes"
            )
        elif first.reason:
            what += f": {first_of(first.reason, 160)}"
        can = "" if first.can_access is None else f"; peer access offered: {'yes' if first.can_access else 'no'}"
        lines.append(f"{pair}: {what}, by {ways}{can}")
    return lines


def control_runs(seen: Observations) -> list[AllReduceRun]:
    """Give the all-reduces that were told to go over shared memory."""
    return [run for run in _runs(seen) if run.environment.get("NCCL_P2P_DISABLE") == "1"]


def _against_control(seen: Observations) -> list[AllReduceRun]:
    """Give the all-reduces over peers that were wrong while their control over shared memory was right."""
    good = {frozenset(run.devices) for run in control_runs(seen) if run.ending == "right"}
    return [
        run
        for run in _runs(seen)
        if run.observed_wrong and run.environment.get("NCCL_P2P_DISABLE") != "1" and frozenset(run.devices) in good
    ]


def _runs(seen: Observations) -> Sequence[AllReduceRun]:
    return known(seen.runs) or ()


def _translated(seen: Observations) -> bool | None:
    """Whether any of the GPUs is translated, by its group, else by the kernel's words at boot; None if unknown."""
    gpus = known(seen.gpus) or ()
    types = [known(gpu.group_type) for gpu in gpus]
    if any(word in _TRANSLATED for word in types):
        return True
    if types and all(word in ("identity", "no group") for word in types):
        return False
    word = known(seen.translation)
    return None if word is None else word == "Translated"


def _translation_evidence(seen: Observations) -> list[str]:
    words = _types(seen)
    if words:
        return [f"IOMMU group types: {words}"]
    boot = known(seen.translation)
    return [f"the kernel at boot: default domain {boot}"] if boot else []


def _types(seen: Observations) -> str:
    by_word: dict[str, list[str]] = {}
    for gpu in known(seen.gpus) or ():
        if word := known(gpu.group_type):
            by_word.setdefault(word, []).append(short_address(gpu.address))
    return "; ".join(f"{word} of {', '.join(addresses)}" for word, addresses in by_word.items())


def _unknown_types(seen: Observations) -> Unknown | None:
    if isinstance(seen.gpus, Unknown):
        return seen.gpus
    return next((gpu.group_type for gpu in seen.gpus or () if isinstance(gpu.group_type, Unknown)), None)


def _sure_of_translation(translated: bool | None, wrong: bool, at_peers: bool, refused: bool) -> Confidence:
    if wrong and (at_peers or (translated and refused)):
        return "certain"
    if at_peers or (translated and wrong):
        return "likely"
    return "possible"
