"""What the inventory says of an all-reduce over a group of hosts."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from pytest_gpuinfra.connection.destination import refusal
from pytest_gpuinfra.inventory.names.hostlist import expand, is_hostlist


def _host(text: str) -> str:
    reason = refusal(text) or ("it names a user or a port" if "@" in text or "/" in text else "")
    if reason:
        raise ValueError(reason)
    return text


class CollectiveExpectation(BaseModel):
    """Hosts that compute together: an all-reduce over all of their GPUs must be right."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    hosts: tuple[str, ...] = Field(
        min_length=1, description='aliases, or hostlists of aliases ("node[01-04]"); the ranks meet on the first one'
    )
    transport: str | None = Field(
        None,
        pattern=r"^NET/\S",
        description='what must carry the data between hosts, by NCCL\'s own log: "NET/IB", "NET/Socket"',
    )
    gpu_direct_rdma: bool | None = Field(
        None, description="whether network cards shall reach GPU memory directly on every channel, by NCCL's own log"
    )
    backend: Literal["nccl", "gloo"] = Field("nccl", description="gloo sums on the CPU, and proves the network alone")
    ranks: int | None = Field(
        None, ge=1, description="ranks on each host; with nccl one for each of its GPUs, with gloo 1 by default"
    )
    busbw_gb_s_min: float | None = Field(
        None, gt=0, description="least busbw of the largest all-reduce over all hosts, GB/s, 10^9 bytes"
    )
    environment: dict[str, str] = Field(
        default_factory=dict,
        description='variables for the ranks, {NCCL_SOCKET_IFNAME = "eth1"}; "{host}" in a value is the host\'s alias',
    )
    addresses: dict[str, Annotated[str, AfterValidator(_host)]] = Field(
        default_factory=dict,
        description="address by which the other hosts reach a host, by alias; by default the one that ssh takes",
    )
    port: int = Field(29400, ge=1, le=65535, description="TCP port on which the hosts meet")
    join_timeout_s: float = Field(90.0, gt=0, description="seconds until all hosts must have met")
    stall_timeout_s: float = Field(20.0, gt=0, description="seconds without any progress that count as a hang")

    @model_validator(mode="after")
    def _consistent(self) -> CollectiveExpectation:
        members = [alias for text in self.hosts for alias in _expanded(text)]
        twice = sorted({alias for alias in members if members.count(alias) > 1})
        if len(members) < 2:
            raise ValueError("`hosts` must be two or more")
        if twice:
            raise ValueError(f"`hosts` names {twice[0]!r} twice")
        for name in ("transport", "gpu_direct_rdma"):
            if self.backend == "gloo" and getattr(self, name) is not None:
                raise ValueError(f'`{name}` is read from NCCL\'s log, and `backend = "gloo"` has none')
        return self

    @property
    def members(self) -> tuple[str, ...]:
        """Aliases of its hosts, hostlists spelled out. Shape (n >= 2,)."""
        return tuple(alias for text in self.hosts for alias in _expanded(text))


def _expanded(text: str) -> list[str]:
    return expand(text, "collectives") if is_hostlist(text) else [text]
