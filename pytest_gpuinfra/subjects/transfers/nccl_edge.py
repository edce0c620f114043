"""
One connection of a channel in NCCL's log: from which rank to which, by which transport.

Source: NCCL src/transport/p2p.cc, shm.cc, net.cc (2.2 to 2.28) and the plugins' own names:
"Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM", "Ring 00 : ..." up to 2.4, without "/0" for SHM and old versions;
the brackets held a bus id in hexadecimal up to 2.17, a device index since; "[send]" and "[receive]" for NET;
"NET/NAME/DEVICE(PROXY RANK)/GDRDMA", where NAME may hold blanks.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_EDGE = re.compile(
    r"(?P<word>Channel|Ring) (?P<channel>\d{1,18})(?:/(?P<connection>\d{1,18}))? : "
    r"(?P<src>\d{1,18})\[(?P<srcdev>[0-9a-fA-F]+)\] -> (?P<dst>\d{1,18})\[(?P<dstdev>[0-9a-fA-F]+)\]"
    r"(?: \[(?P<direction>send|receive)\])? via (?P<via>.+)$"
)
_NET = re.compile(
    r"NET/(?P<net>.+?)/(?P<dev>\d{1,18})(?:\((?P<proxy>\d{1,18})\))?"
    r"(?P<gdr>/GDRDMA)?(?P<shared>/Shared)?(?: .*)?$"
)
_INDEX_DIGITS = 3


@dataclass(frozen=True, slots=True)
class NcclEdge:
    """
    One connection of one channel.

    Attributes:
        channel: Channel (ring, up to 2.4).
        src: Rank that sends.
        dst: Rank that receives.
        transport: "P2P", "SHM", "NET", "COLLNET", "NVLS"; another word of NCCL's verbatim.
        detail: What follows ("CUMEM", "IPC", "direct pointer", "direct/direct"); "" if nothing does.
        reads: Whether the receiver reads ("/read") rather than the sender writes.
        direction: "send" or "receive", the end that logged it; None for transports that log one line.
        src_bus_id: PCI bus id of the sender in hexadecimal; None where the log gives an index.
        dst_bus_id: The same of the receiver.
        net: Name of the network plugin ("Socket", "IB", "AWS Libfabric"); None without NET.
        net_device: Its device; None without NET.
        proxy_rank: Rank whose proxy does the work; None if it is not told.
        gdr: Whether the network card reaches GPU memory directly; None without NET.
        word: "Channel" or "Ring".
    """

    channel: int
    src: int
    dst: int
    transport: str
    detail: str
    reads: bool
    direction: str | None
    src_bus_id: str | None
    dst_bus_id: str | None
    net: str | None
    net_device: int | None
    proxy_rank: int | None
    gdr: bool | None
    word: str


def parse_nccl_edge(message: str) -> NcclEdge | None:
    """Read one message of NCCL's log; None if it names no connection."""
    match = _EDGE.search(message.strip())
    if not match:
        return None
    via = match["via"].strip()
    net = _NET.match(via)
    transport, detail, reads = _transport(via)
    return NcclEdge(
        channel=int(match["channel"]),
        src=int(match["src"]),
        dst=int(match["dst"]),
        transport=transport,
        detail="" if net else detail,
        reads=reads,
        direction=match["direction"],
        src_bus_id=_bus_id(match["srcdev"]),
        dst_bus_id=_bus_id(match["dstdev"]),
        net=net["net"] if net else None,
        net_device=int(net["dev"]) if net else None,
        proxy_rank=int(net["proxy"]) if net and net["proxy"] else None,
        gdr=bool(net["gdr"]) if net else None,
        word=match["word"],
    )


def _transport(via: str) -> tuple[str, str, bool]:
    if via.startswith("direct shared memory"):
        return "SHM", "", False
    word, _, rest = via.partition("/")
    reads = rest.endswith("/read") or rest == "read"
    return word, rest.removesuffix("read").removesuffix("/"), reads


def _bus_id(text: str) -> str | None:
    return text.lower() if len(text) > _INDEX_DIGITS or not text.isdigit() else None
