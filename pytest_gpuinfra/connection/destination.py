"""
Destinations of ssh(1), and what must not be taken for one.

A destination becomes a word of ssh's argv, part of a ProxyCommand that a shell runs, and a `%`-expansion of ssh's own
configuration. What ssh itself refuses in host and user names is refused here, before anything is run.

Source: ssh(1), ssh_config(5) "TOKENS", and OpenSSH 9.6's `valid_hostname` and `valid_ruser`, release notes 9.6:
no shell metacharacters in names from the command line; RFC 4007 11, zone of a link-local address.
"""

from __future__ import annotations

import re
from urllib.parse import unquote, urlsplit

FORMS = "HOST, USER@HOST or ssh://USER@HOST:PORT; HOST is a name, an alias of ssh's configuration, or an address"
_SHELL = frozenset("'`\"$\\;&<>|(){}")
_URI = re.compile(r"ssh://(?:(?P<user>[^@/]*)@)?(?P<host>\[[^]/@]*\]|[^]:/@[]*)(?::(?P<port>\d{1,5}))?/?")
_ADDRESS = re.compile(r"\[?[0-9A-Fa-f:.]*:[0-9A-Fa-f:.]*(?:%[A-Za-z0-9_.-]+)?\]?")


def refusal(text: str) -> str:
    """Tell why a text is no destination; "" for one that is."""
    if not text:
        return "a destination is not empty"
    if any(sign.isspace() for sign in text):
        return "a destination holds no space"
    if not text.isprintable():
        return "a destination holds no control character"
    if text.startswith("ssh://"):
        match = _URI.fullmatch(text)
        if match is None or int(match["port"] or 22) > 65535:
            return "it has not the form ssh://USER@HOST:PORT"
        user, host = match["user"], match["host"]
    else:
        user, sign, host = text.rpartition("@")
        user = user if sign else None
    if user is not None:
        decoded = unquote(user) if text.startswith("ssh://") else user
        reason = _refused_user(decoded)
        if reason:
            return reason
    return _refused_host(host)


def _refused_user(user: str) -> str:
    if not user or user.startswith("-"):
        return "a user name is not empty and does not begin with a dash"
    if not user.isprintable() or any(sign.isspace() for sign in user):
        return "a user name holds no space and no control character"
    wrong = sorted((_SHELL - {"$", "\\"} | {"%"}) & set(user)) + [end for end in "\\" if user.endswith(end)]
    wrong += ["$"] if "$" in user[:-1] else []
    return f"a user name holds no {wrong[0]!r}" if wrong else ""


def _refused_host(host: str) -> str:
    if not host or host.startswith("-"):
        return "a destination does not begin with a dash" if host else "a destination names a host"
    if _ADDRESS.fullmatch(host):
        return "" if host.startswith("[") == host.endswith("]") else "its brackets do not match"
    if "[" in host or "]" in host:
        return "the brackets are neither a range of numbers nor an IPv6 address, and match no alias"
    wrong = sorted((_SHELL | set("%,*?!")) & set(host))
    return f"a host's name holds no {wrong[0]!r}" if wrong else ""


def url_refusal(text: str) -> str:
    """Tell why a text is no address of an endpoint; "" for one that is."""
    if not text.isprintable() or any(sign.isspace() for sign in text):
        return "an endpoint's address holds no space and no control character"
    try:
        url = urlsplit(text)
        host, _ = url.hostname, url.port
    except ValueError as error:
        return f"it is no URL: {error}"
    if url.scheme not in ("http", "https") or not host:
        return "it has not the form http://HOST:PORT"
    return _refused_host(host)


def host_of(destination: str) -> str:
    """Give the host of a destination, without user and port, in lower case."""
    text = re.sub(r"^ssh://", "", destination)
    host = text.rpartition("@")[2].rstrip("/")
    if destination.startswith("ssh://"):
        host = re.sub(r":\d+$", "", host)
    return host.strip("[]").lower()
