"""
What an engine tells of its own settings.

Source: SGLang 0.5.4 to 0.5.23 /server_info (flat; older ones nest the arguments under "server_args",
and call it /get_server_info), llama.cpp /props and /slots, TGI 3 /info, vLLM /version; case C095.
"""

from __future__ import annotations

from dataclasses import dataclass

from pytest_gpuinfra.endpoint.json_text import read_json
from pytest_gpuinfra.errors import ParseError


@dataclass(frozen=True, slots=True)
class ServerInfo:
    """
    An engine's own account. None always means that it does not say.

    Attributes:
        version: Version.
        status: Word for its state ("ready").
        tp_size: Tensor parallel size.
        dtype: Precision of the weights, verbatim ("bfloat16", "all F32").
        quantization: Method; None also where there is none.
        kv_cache_dtype: Precision of the KV cache, verbatim.
        context_length: Context asked for, in tokens; None also where it is the model's own.
        max_total_tokens: Tokens that the KV cache holds.
        speculative_algorithm: Resolved name ("EAGLE" where NEXTN was asked for); None also where it is off.
        speculative_draft_tokens: Tokens verified at once, the certain one included.
        accept_lengths: Mean accepted length since the start, the certain token included. Shape (dp_size,),
            by data-parallel rank; empty until speculation has run.
        custom_all_reduce_off: Whether the engine's own all-reduce is switched off.
        speculates: Whether it says that it speculates; None if it does not say.
    """

    version: str | None = None
    status: str | None = None
    tp_size: int | None = None
    dtype: str | None = None
    quantization: str | None = None
    kv_cache_dtype: str | None = None
    context_length: int | None = None
    max_total_tokens: int | None = None
    speculative_algorithm: str | None = None
    speculative_draft_tokens: int | None = None
    accept_lengths: tuple[float, ...] = ()
    custom_all_reduce_off: bool | None = None
    speculates: bool | None = None

    @property
    def accept_length(self) -> float | None:
        """Lowest mean accepted length over the data-parallel ranks; None until speculation has run."""
        return min(self.accept_lengths) if self.accept_lengths else None


def parse_sglang_info(text: str) -> ServerInfo:
    """
    Read SGLang's /server_info, of either shape.

    Raises:
        ParseError: No JSON object, or one without SGLang's arguments.
    """
    body = _object(text, "/server_info")
    nested = body.get("server_args")
    args = nested if isinstance(nested, dict) else body
    if "tp_size" not in args and "model_path" not in args:
        raise ParseError("/server_info", 0, text, "none of SGLang's arguments in it")
    states = body.get("internal_states")
    lengths = [state.get("avg_spec_accept_length") for state in _dicts(states)]
    algorithm = _text(args, "speculative_algorithm")
    return ServerInfo(
        version=_text(body, "version"),
        status=_text(body, "status"),
        tp_size=_int(args, "tp_size"),
        dtype=_text(args, "dtype"),
        quantization=_text(args, "quantization"),
        kv_cache_dtype=_text(args, "kv_cache_dtype"),
        context_length=_int(args, "context_length"),
        max_total_tokens=_int(body, "max_total_num_tokens"),
        speculative_algorithm=algorithm,
        speculative_draft_tokens=_int(args, "speculative_num_draft_tokens"),
        accept_lengths=tuple(float(length) for length in lengths if isinstance(length, int | float)),
        custom_all_reduce_off=_bool(args, "disable_custom_all_reduce"),
        speculates=algorithm is not None if "speculative_algorithm" in args else None,
    )


def parse_llamacpp_info(props: str, slots: str | None = None, models: str | None = None) -> ServerInfo:
    """
    Read llama.cpp's /props, with /slots and /v1/models where they could be had.

    /props says "none" for the speculation even while it runs, so only /slots is believed.

    Raises:
        ParseError: /props is no JSON object.
    """
    body = _object(props, "/props")
    settings = body.get("default_generation_settings")
    meta: dict[str, object] = {}
    listed = _loaded(models)
    for entry in _dicts(listed.get("data") if isinstance(listed, dict) else None):
        found = entry.get("meta")
        meta = found if isinstance(found, dict) else meta
    told = [slot["speculative"] for slot in _dicts(_loaded(slots)) if "speculative" in slot]
    return ServerInfo(
        version=_text(body, "build_info"),
        dtype=_text(meta, "ftype"),
        context_length=_int(settings, "n_ctx") if isinstance(settings, dict) else None,
        speculates=any(told) if told else None,
    )


def parse_tgi_info(text: str) -> ServerInfo:
    """
    Read TGI's /info (shape from its documentation, version 3).

    Raises:
        ParseError: No JSON object with a model_id.
    """
    body = _object(text, "/info")
    if not isinstance(body.get("model_id"), str):
        raise ParseError("/info", 0, text, "no model_id in it")
    speculate = body.get("speculate")
    return ServerInfo(
        version=_text(body, "version"),
        tp_size=_int(body, "num_shard"),
        dtype=_text(body, "model_dtype"),
        context_length=_int(body, "max_total_tokens"),
        speculates=bool(speculate) if isinstance(speculate, int) else None,
    )


def parse_version(text: str) -> ServerInfo:
    """
    Read vLLM's /version.

    Raises:
        ParseError: No JSON object with a version.
    """
    version = _text(_object(text, "/version"), "version")
    if version is None:
        raise ParseError("/version", 0, text, "no version in it")
    return ServerInfo(version=version)


def _object(text: str, source: str) -> dict[str, object]:
    try:
        body = read_json(text)
    except ValueError as error:
        raise ParseError(source, 0, text, f"no JSON ({error})") from None
    if not isinstance(body, dict):
        raise ParseError(source, 0, text, "no object")
    return body


def _loaded(text: str | None) -> object:
    try:
        return read_json(text or "null")
    except ValueError:
        return None


def _dicts(value: object) -> list[dict[str, object]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _text(fields: dict[str, object], name: str) -> str | None:
    value = fields.get(name)
    return value if isinstance(value, str) and value else None


def _int(fields: dict[str, object], name: str) -> int | None:
    value = fields.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _bool(fields: dict[str, object], name: str) -> bool | None:
    value = fields.get(name)
    return value if isinstance(value, bool) else None
