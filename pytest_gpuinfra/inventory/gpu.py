"""What the inventory says of GPUs at work: peer copies, collectives, and what the driver reports."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field


class GpuExpectation(BaseModel):
    """Numbers that were measured before; without them, numbers are recorded and not judged."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str | None = Field(None, description="model of every GPU that is bound to nvidia, a glob")
    memory_free_mib_min: float | None = Field(None, ge=0, description="least free memory of each GPU, MiB")
    temperature_max_c: float | None = Field(None, gt=0, description="highest temperature of each GPU, degrees Celsius")
    power_limit_w: float | None = Field(None, gt=0, description="power limit of each GPU, W")
    persistence_mode: bool | None = Field(None, description="whether persistence mode is on")
    mig: bool | None = Field(None, description="whether MIG is on")
    ecc: bool | None = Field(None, description="whether ECC is on")
    idle: Literal[True] | None = Field(None, description="true: nothing may be on a GPU when the host is looked at")
    peer_copy_gb_s_min: float | None = Field(
        None, gt=0, description="least bandwidth of a directed pair by copy engine, GB/s, 10^9 bytes"
    )
    busbw_gb_s_min: dict[str, float] = Field(
        default_factory=dict, description='least busbw of the largest all-reduce by arm, GB/s: {"shm" = 25.0}'
    )
