"""The framing of a session: what a login printed, a token, then frames of the runner (on_target/session/runner.py)."""

from __future__ import annotations

import codecs
import struct
from dataclasses import dataclass, field

from pytest_gpuinfra.connection.protocol import OUTPUT_LIMIT, OnOutput
from pytest_gpuinfra.errors import ProbeError
from pytest_gpuinfra.wire import WireError, load_object

NOISE_LIMIT = 8 << 20
"""Bytes that a session may print, as its login shell does, beside what the runner says."""
FRAME_LIMIT = 1 << 16
"""Bytes of one frame; the runner passes on what it reads in pieces of that size."""


@dataclass(frozen=True, slots=True)
class _End:
    """
    What the runner's last frame says.

    Attributes:
        status: The job's exit status; -1 where it has none, as one that was killed at its deadline.
        timed_out: Whether that was so.
    """

    status: int
    timed_out: bool


def _read_end(name: str, payload: bytes) -> _End:
    """Read the last frame; ProbeError if it has another shape than the runner's."""
    try:
        fields = load_object(payload.decode("ascii"))
        status, timed_out, error = (fields.pop(key) for key in ("status", "timed_out", "error"))
        if fields or type(timed_out) is not bool or error is not None:
            raise WireError("has other fields")
        if type(status) is int and -256 <= status < 256:
            return _End(status, timed_out)
        if status is not None or not timed_out:
            raise WireError(f"has the exit status {status!r}")
        return _End(-1, timed_out)
    except (ValueError, KeyError) as error:
        raise ProbeError(
            f"{name}: the session's last frame is none of the runner's: {error}: {payload[:100]!r}",
            remedy="something on the target writes to the session's standard output, or is not what it seems",
        ) from None


@dataclass
class Exchange:
    """Bytes of one session as they came: noise before the token, then frames. What floods is cut off."""

    name: str
    token: bytes
    on_output: OnOutput | None
    keep_output: bool = True
    noise: bytes = b""
    started: bool = False
    end: _End | None = None
    raw: dict[str, list[bytes]] = field(default_factory=lambda: {"stdout": [], "stderr": []})
    said: bytes = b""
    _noise_bytes: int = 0
    _output_bytes: int = 0
    _buffer: bytes = b""
    _decoders: dict[str, codecs.IncrementalDecoder] = field(
        default_factory=lambda: {
            name: codecs.getincrementaldecoder("utf-8")("backslashreplace") for name in ("stdout", "stderr")
        }
    )

    def feed(self, data: bytes) -> None:
        self._buffer += data
        if not self.started:
            before, found, after = self._buffer.partition(self.token + b"\n")
            self.noise = before[-65536:]
            if not found:
                self._buffer = self.noise
                self._count_noise(data)
                return
            self._buffer, self.started = after, True
        place = 0
        while self.end is None and len(self._buffer) >= place + 5:
            kind, size = struct.unpack_from(">cI", self._buffer, place)
            self._check_frame(kind, size)
            if len(self._buffer) < place + 5 + size:
                break
            self._take(kind, self._buffer[place + 5 : place + 5 + size])
            place += 5 + size
        self._buffer = self._buffer[place:]

    def hear(self, data: bytes) -> None:
        """Take what the session itself printed on standard error."""
        self.said = (self.said + data)[-16384:]
        self._count_noise(data)

    def _count_noise(self, data: bytes) -> None:
        self._noise_bytes += len(data)
        if self._noise_bytes > NOISE_LIMIT:
            raise ProbeError(
                f"{self.name}: the session printed more than {NOISE_LIMIT >> 20} MiB that nobody asked for, and was "
                f"cut off; it ended in {self.text_of((self.noise + self.said)[-100:])!r}",
                remedy="see what its login shell prints: `ssh HOST true | head`",
            )

    def _check_frame(self, kind: bytes, size: int) -> None:
        if kind not in (b"o", b"e", b"x") or size > FRAME_LIMIT:
            what = f"{kind!r}" if kind not in (b"o", b"e", b"x") else f"{kind!r} of {size} bytes"
            raise ProbeError(
                f"{self.name}: the session with the target broke off into bytes that are no frame ({what})",
                remedy="something on the target writes to the session's standard output: look at its shell set-up",
            )

    def _take(self, kind: bytes, payload: bytes) -> None:
        if kind == b"x":
            self.end = _read_end(self.name, payload)
            return
        name = {b"o": "stdout", b"e": "stderr"}[kind]
        if self.keep_output or name == "stderr":
            self._keep(name, payload)
        if self.on_output:
            self.on_output(name, self._decoders[name].decode(payload))

    def _keep(self, name: str, payload: bytes) -> None:
        self._output_bytes += len(payload)
        if self._output_bytes > OUTPUT_LIMIT:
            raise ProbeError(
                f"{self.name}: the command printed more than {OUTPUT_LIMIT >> 20} MiB, and was ended",
                remedy="see what is so large there (a log? a file that a plugin's request reads?)",
            )
        self.raw[name].append(payload)

    def bytes_of(self, name: str) -> bytes:
        """Give what the command printed, once: it is not held twice."""
        joined = b"".join(self.raw[name])
        self.raw[name] = [joined]
        return joined

    @staticmethod
    def text_of(data: bytes) -> str:
        return data.decode("utf-8", "backslashreplace")
