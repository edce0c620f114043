"""What the inventory says of the model that a host serves, and of the GPUs that take part in it."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from pytest_gpuinfra.pci_address import normalise_pci_address


class SpeculationExpectation(BaseModel):
    """Speculative decoding, as the server does it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    enabled: bool | None = Field(None, description="whether it shall speculate; a floor or an algorithm implies it")
    algorithm: str | None = Field(None, description='SGLang\'s name; "NEXTN" is what it shows as EAGLE')
    mean_accepted_length_min: float | None = Field(
        None, ge=1.0, description="least mean accepted length, the certain token included: 1 means none accepted"
    )


class ThroughputExpectation(BaseModel):
    """Speed, measured before in the same way; without a baseline, speed is recorded and not judged."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    one_stream_tokens_per_s: float | None = Field(None, gt=0, description="baseline with one request at a time")
    eight_streams_tokens_per_s: float | None = Field(None, gt=0, description="baseline with eight at the same time")
    slower_max: float = Field(0.15, gt=0, lt=1, description="largest loss, as a fraction of the baseline")


class ParticipationExpectation(BaseModel):
    """What each GPU of the service does while requests are under way; each is judged by itself."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    gpus: tuple[Annotated[str, AfterValidator(normalise_pci_address)], ...] = Field(
        (), description="PCI addresses of the GPUs that it runs on; empty for all that are bound to nvidia"
    )
    activity_min_percent: float | None = Field(
        None, ge=0, le=100, description="least median activity of each GPU under four streams; none: it is not idle"
    )
    memory_min_mib: float | None = Field(
        None, ge=0, description="least memory that the service holds on each GPU, MiB, at any time"
    )
    memory_max_mib: float | None = Field(
        None, ge=0, description="most memory that the service holds on each GPU, MiB, at any time"
    )


class ModelExpectation(BaseModel):
    """The model, and how it is served."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    id: str | None = Field(None, description="id that /v1/models lists, and that requests name")
    max_model_len: int | None = Field(None, gt=0, description="longest context in tokens, as the server tells it")
    tp_size: int | None = Field(None, gt=0, description="tensor parallel size, where the engine tells it")
    dtype: str | None = Field(None, description='precision, where the engine tells it: "bfloat16"')
    quantization: str | None = Field(None, description='method, where the engine tells it: "fp8", "awq"')
    kv_cache_dtype: str | None = Field(None, description='precision of the KV cache, where told: "fp8_e5m2"')
    api: Literal["chat", "completions"] = Field("chat", description="route that answers prompts")
    different_repeats_max: int = Field(0, ge=0, description="how many of eight repeats may differ in their text")
    speculation: SpeculationExpectation = SpeculationExpectation()
    throughput: ThroughputExpectation = ThroughputExpectation()
    participation: ParticipationExpectation = ParticipationExpectation()
