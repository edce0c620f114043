"""
Secrets are masked in everything that is written: recording, reports, JUnit, Allure, terminal.

What leaves a target is masked there already (target/probe_mask.py); this is the second, wider net, cast over whole
documents: it knows quoting, JSON, addresses, headers and the forms of vendors' keys.
Masking twice gives the same as masking once; JSON stays JSON, so that a masked recording can be judged again.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

from pytest_gpuinfra.target.probe_mask import MASK

_WORD = (
    r"[\w.\-]*(?:secret|passw(?:or)?d|passphrase|credential|[-_]pwd|[-_]psk"
    r"|(?:api|access|private|auth|encryption|ssh|license|account|signing|shared[-_]?access|master)[-_]?key)[\w.\-]*"
    r"|(?:[\w.\-]*[-_])?(?:auth|id|hf|access|refresh|bearer|session|csrf)?token"
    r"|[\w.\-]*[-_](?:key|auth|pat|dsn)|(?:proxy-)?authorization|(?:set-)?cookie|x-amz-signature|sig|signature"
)
_NAMED = re.compile(rf"(?i)(?:--?)?(?:{_WORD})\Z")
_HARMLESS = re.compile(
    r"(?i)(?:[\w.\-]*(?:bos|eos|pad|unk|cls|sep|mask|stop|start|end|image|audio|video|max|min|per|num|total|next|first"
    r"|last)[-_]token|token|[\w.\-]*_env"
    r"|[\w.\-]*(?:public|primary|foreign|sort|partition|routing|cache|kernel|registry|hot|group|by)[-_]key)\Z"
)
"""Names that models and kernels use for what is no secret; a plain "token" in an answer is a piece of text."""

_VALUE = r"(\"(?:[^\"\\\n]|\\.)*\"|'[^'\n]*'|[^\s\"',;&<>]+)"
_HEADER = re.compile(
    r"(?i)\b((?:proxy-)?authorization[\"']?\s*[:=]\s*[\"']?(?:basic|bearer|token|digest|negotiate|apikey)\s+)[^\s\"',]+"
)
_COOKIE = re.compile(r"(?i)\b((?:set-)?cookie[\"']?\s*:\s*[\"']?)[^\s\"'\n][^\"'\n]*")
_ASSIGNED = re.compile(rf"(?i)(?<![\w.\-])((?:--?)?(?:{_WORD}))([\"']?\s*[=:][ \t]*){_VALUE}")
_ARGUMENT = re.compile(rf"(?i)(?<!\S)(--?(?:{_WORD}))([ \t]+)(?!-){_VALUE}")
_TOOLS = (
    re.compile(r"(?<!\S)(sshpass[ \t]+-p[ \t]*)(\S+)"),
    re.compile(r"(?<!\S)(curl\b[^\n]*?[ \t](?:-u|--user)[ \t]+[\"']?[^\s:\"']+:)([^\s\"']+)"),
    re.compile(r"(?<!\S)(mysql(?:dump|admin)?\b[^\n]*?[ \t]-p)(\S+)"),
    re.compile(r"(?<!\S)(docker[ \t]+login\b[^\n]*?[ \t]-p[ \t]+)(\S+)"),
)
_FORMS = re.compile(
    r"(?<![A-Za-z0-9])(?:hf_|sk-|sk_live_|sk_test_|rk_live_|ghp_|gho_|ghu_|ghs_|ghr_|github_pat_|glpat-|glrt-|gldt-"
    r"|xox[abeprs]-|nvapi-|pypi-|npm_|dop_v1_|shpat_|SG\.|ya29\.|hvs\.|dckr_pat_|tskey-|AGE-SECRET-KEY-)"
    r"[A-Za-z0-9_\-.=]{16,}"
    r"|(?<![A-Za-z0-9])(?:hf_|sk-|nvapi-)[A-Za-z0-9_\-.=]{8,}"
    r"|(?<![A-Za-z0-9])(?:AKIA|ASIA)[A-Z0-9]{12,}"
    r"|(?<![A-Za-z0-9])AIza[A-Za-z0-9_\-]{20,}"
    r"|(?<![A-Za-z0-9])eyJ[A-Za-z0-9_\-]{8,}(?:\.[A-Za-z0-9_\-]+)*"
    r"|(?<![A-Za-z0-9])\d{8,10}:AA[A-Za-z0-9_\-]{30,}"
    r"|(?i:(?<=bearer ))[^\s\"',]{6,}"
    r"|(?<=://)[^/\s:@\"']*:[^/\s@\"']+(?=@)"
    r"|(?<=://)[A-Za-z0-9_\-]{20,}(?=@)"
)
_PEM = re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.DOTALL)
_HINT = re.compile(
    r"(?i)secret|passw|passphrase|credential|[-_]pwd|[-_]psk|key|token|auth|[-_]pat|dsn|cookie|sig|sshpass|curl|mysql"
    r"|docker|://|bearer|eyJ|AKIA|ASIA|AIza|:AA|hf_|sk[-_]|rk_|gh[a-z]_|github_|gl[a-z]{2,3}-|xox|nvapi-|pypi-|npm_"
    r"|dop_v1_|shpat_|SG\.|ya29\.|hvs\.|dckr_pat_|age-"
)
"""A line without any of these holds nothing that the rules below know; most lines of most logs are such."""


class Masker:
    """
    Masks what looks like a secret, and secrets that are known.

    Args:
        known: Values that are secret whatever they look like, such as the endpoint's API key; short ones are left.
    """

    def __init__(self, known: Iterable[str] = ()) -> None:
        words = sorted({word for word in known if len(word) >= 6}, key=len, reverse=True)
        self._known = re.compile("|".join(re.escape(word) for word in words)) if words else None

    def text(self, text: str) -> str:
        """Mask any text; JSON in it, whole or line by line, stays JSON."""
        if self._known is not None:
            text = self._known.sub(MASK, text)
        if not _HINT.search(text):
            return text
        whole = self._json(text)
        if whole is not None:
            return whole
        if "-----BEGIN" in text:
            text = _PEM.sub(MASK, text)
        return "\n".join(self._line(line) if _HINT.search(line) else line for line in text.split("\n"))

    def data(self, data: Any, name: str = "") -> Any:
        """Mask plain data: values below a telling name, and every text in it. Nothing is changed in place."""
        if isinstance(data, str):
            return MASK if data and _telling(name) else self.text(data)
        if isinstance(data, Mapping):
            return {key: self.data(value, str(key)) for key, value in data.items()}
        if isinstance(data, (list, tuple)):
            words = [self.data(value, name) for value in data]
            for place in range(1, len(words)):
                before, word = data[place - 1], data[place]
                if isinstance(before, str) and isinstance(word, str) and before.startswith("-") and "=" not in before:
                    words[place] = MASK if _telling(before) and not word.startswith("-") else words[place]
            return words
        return data

    def _json(self, text: str) -> str | None:
        """Mask a text that is JSON as a whole; None if it is none."""
        if text.lstrip()[:1] not in ("{", "["):
            return None
        try:
            data = json.loads(text)
        except ValueError:
            return None
        masked = self.data(data)
        return text if masked == data else json.dumps(masked, ensure_ascii=False)

    def _line(self, line: str) -> str:
        """Mask one line, with the JSON at its end, if there is any: server-sent events, structured logs."""
        place = line.find("{")
        if place >= 0:
            masked = self._json(line[place:].rstrip())
            if masked is not None:
                return self._plain(line[:place]) + masked
        return self._plain(line)

    def _plain(self, text: str) -> str:
        text = _HEADER.sub(lambda match: match.group(1) + MASK, text)
        text = _COOKIE.sub(lambda match: match.group(1) + MASK, text)
        text = _ASSIGNED.sub(_replaced, text)
        text = _ARGUMENT.sub(_replaced, text)
        for tool in _TOOLS:
            text = tool.sub(lambda match: match.group(1) + MASK, text)
        return _FORMS.sub(MASK, text)


def _telling(name: str) -> bool:
    return bool(_NAMED.match(name)) and not _HARMLESS.match(name)


def _replaced(match: re.Match[str]) -> str:
    """Put the mask in a value's place, inside its quotes; a number, a switch and a path are no secret."""
    name, sign, value = match.groups()
    inner = value.strip("\"'")
    harmless = _HARMLESS.match(name) and name.lower() != "token"
    if harmless or not inner or inner.startswith(MASK) or MASK in inner or _EMPTY.fullmatch(inner):
        return match.group(0)
    if name.lower() in ("token", "sig", "signature") and not re.search(r"[=?&]", sign):
        return match.group(0)
    if match.group(0).lower().startswith(("authorization", "proxy-authorization")) and _SCHEME.fullmatch(inner):
        return match.group(0)
    quote = value[0] if value[0] in "\"'" else ""
    return f"{name}{sign}{quote}{MASK}{quote}"


_EMPTY = re.compile(r"(?i)true|false|null|none|yes|no|on|off|\{|\[|\(|\d{1,5}")
_SCHEME = re.compile(r"(?i)basic|bearer|token|digest|negotiate|apikey")
_PLAIN = Masker()


def mask_text(text: str) -> str:
    """Mask what looks like a secret in any text."""
    return _PLAIN.text(text)


def mask_data(data: Any) -> Any:
    """Mask what looks like a secret in plain data."""
    return _PLAIN.data(data)
