"""
Secrets that are known by their form: vendors' keys, tokens, hashes, keys in PEM, user information in addresses.

This file imports its neighbours probe_*.py and runs on Python 3.6 and later with the standard library only.
Sources: PEM, RFC 7468; user information, RFC 3986 3.2.1; password hashes, crypt(5); prefixes of keys, their vendors'
documentation.
"""

import re

if __package__:
    from .probe_names import MASK, OPAQUE, words_of
    from .probe_work import any_of, first, replaced
else:
    from probe_names import MASK, OPAQUE, words_of
    from probe_work import any_of, first, replaced

_FORMS = {}
for _prefix in words_of(
    "hf_ api_org_ sk-proj- sk-ant- sk-or- sk-svcacct- sk-admin- sk-lf- sk_live_ sk_test_ rk_live_ "
    "rk_test_ ghp_ gho_ ghu_ ghs_ ghr_ github_pat_ glpat- glrt- gldt- glptt- glcbt- gloas- glsa- glsa_ "
    "glc_ xoxa- xoxb- xoxe- xoxo- xoxp- xoxr- xoxs- xapp- nvapi- pypi- npm_ dop_v1_ doo_v1_ dor_v1_ "
    "shpat_ shpca_ shppa_ shpss_ SG. ya29. hvs. hvb. hvr. dckr_pat_ dckr_oat_ tskey- gsk_ r8_ xai- pplx- "
    "lin_api_ sbp_ ATATT3 ATCTT3 PMAK- NRAK- whsec_ rpa_ dapi ntn_ figd_ GOCSPX- rubygems_ atlasv1. "
    "CFPAT- EAAC secret_ wandb_v1_ LTAI AKID cio_ vercel_ phx_ phc_ 1//0 AGE-SECRET-KEY-"
):
    _FORMS[_prefix] = r"[A-Za-z0-9_\-.=]{12,}"
for _prefix in ["hf_", "nvapi-", "ghp_", "glpat-"]:
    _FORMS[_prefix] = r"[A-Za-z0-9_\-.=]{8,}"
for _prefix in words_of("AKIA ASIA AGPA AIDA AROA ANPA"):
    _FORMS[_prefix] = r"[A-Z0-9]{12,}"
_FORMS.update(
    {
        "sk-": r"(?![A-Za-z_\-]{41})(?=[A-Za-z_\-]{0,40}[0-9])[A-Za-z0-9_\-.=]{8,}",
        "AIza": r"[A-Za-z0-9_\-]{20,}",
        "eyJ": r"[A-Za-z0-9_\-]{8,}(?:\.[A-Za-z0-9_\-]+){0,4}",
        "key-": r"[0-9a-f]{32}(?![0-9a-f])",
        "SK": r"[0-9a-f]{32}(?![0-9a-f])",
    }
)
_SCHEMES = {
    **dict.fromkeys(("Bearer ", "bearer ", "BEARER "), r"[ \t]{0,8}(?=[^\s\"',]{0,64}[0-9])[^\s\"',<\\\[]{6,}"),
    **dict.fromkeys(
        ("Basic ", "basic ", "BASIC "), r"[ \t]{0,8}(?=[A-Za-z/+]{0,64}[0-9A-Z=])[A-Za-z0-9+/]{8,}={0,2}(?![\w.])"
    ),
    **dict.fromkeys(("Negotiate ", "negotiate "), r"[ \t]{0,8}[A-Za-z0-9+/]{16,}={0,2}"),
    "hooks.slack.com/": r"(?:services|workflows|triggers)/[^\s\"'<\\]{4,}",
    "discord.com/api/webhooks/": r"[^\s\"'<\\\[]{4,}",
    "discordapp.com/api/webhooks/": r"[^\s\"'<\\\[]{4,}",
    ".webhook.office.com/": r"[^\s\"'<\\\[]{4,}",
    ":AA": r"(?<=[0-9]{8}:AA)[A-Za-z0-9_\-]{30,}",
}
_HASHES = {
    "$" + name + "$": r"[^\s:\"',;<\\]{8,}"
    for name in words_of(
        "1 2 2a 2b 2x 2y 5 6 7 y gy sha1 md5 argon2i argon2d argon2id scrypt pbkdf2-sha256 pbkdf2-sha512"
    )
}
_SCHEMES.update(_HASHES)
_PREFIXED = re.compile(
    any_of({prefix: "(?<![A-Za-z0-9]%s)%s" % (re.escape(prefix), _FORMS[prefix]) for prefix in _FORMS})
)
_PLAIN = re.compile(any_of(_SCHEMES))
_DATABASE = re.compile(r":[^\s@:/\"']{1,128}@(?=(?:tcp|udp|unix)\()")
_KEPT = re.compile(
    r"(?i)(?:bearer|basic|negotiate)[ \t]+|hooks\.slack\.com/|discord(?:app)?\.com/api/webhooks/"
    r"|\.webhook\.office\.com/|:(?=AA)"
)
_BLOCK = re.compile(
    r"BEGIN (?:(?<=----BEGIN )|(?<=---- BEGIN ))[A-Z0-9 ]{0,40}"
    r"(?:PRIVATE|SECRET|ENCRYPTED|STATIC|PGP MESSAGE)[A-Za-z0-9 ]{0,40}-{4,5}"
    r"|PuTTY-User-Key-File-[0-9]:|Private-Lines: [0-9]+"
)
_BLOCK_END = re.compile(r"-{4,5} ?END [A-Za-z0-9 ]{0,80}-{4,5}|Private-MAC:")
_BLOCK_MAX = 1 << 16
_BLOCK_RUN = re.compile(r"(\\{1,16}[nrt])|[A-Za-z0-9+/=_]{16,}")
_BLOCK_LAST = re.compile(
    r"(\\{1,16}[nrt])|(?<![\w\[+/=])(?:[A-Za-z0-9+/=]{4}){1,64}"
    r"(?=[ \t]{0,8}(?:[\r\n]|\\{0,16}[\"'](?![ \t]{0,8}:)|\\{1,16}[nr]|-{4,5} ?END|\Z))"
)
_AUTHORITY = re.compile(r"(:(?:\\{0,8}/){2})")
_URLS_MAX = 64
_URL = re.compile(r":(?:\\{0,8}/){2}([^\s\"'<>`\x00]{3,})")


def mask_blocks(text, work):
    """Mask the bodies of private keys, whatever stands in front of their lines."""
    begins, text = first(_BLOCK, text, work)
    parts = []
    done = 0
    for number, match in enumerate(begins):
        start = match.end()
        following = begins[number + 1].start() if number + 1 < len(begins) else len(text)
        limit = min(following, start + _BLOCK_MAX)
        end = _BLOCK_END.search(text, start, limit)
        body = text[start : end.start() if end else limit]
        masked = _BLOCK_RUN.sub(_kept_escape, body)
        if end:
            masked = masked[:-512] + _BLOCK_LAST.sub(_kept_escape, masked[-512:])  # its last line may be short
        parts += [text[done:start], masked]
        done = start + len(body)
    if not parts:
        return text
    parts.append(text[done:])
    return "".join(parts)


def _kept_escape(match):
    return match.group(1) or MASK


def _mask_url(match):
    """Mask user information; a password may hold "/", "?" and "@"."""
    whole = match.group()
    if "@" not in whole:
        return whole
    sign = whole[: match.start(1) - match.start()]
    pieces = _AUTHORITY.split(whole)
    if len(pieces) > _URLS_MAX:
        return sign + MASK
    for place in range(2, len(pieces), 2):
        pieces[place] = _without_user(pieces[place])
    return "".join(pieces)


def _without_user(rest):
    at = rest.rfind("@")
    if at <= 0 or rest.startswith(MASK + "@"):
        return rest
    head = re.match(r"[^/?#\\]*", rest).group()
    if "@" in head:
        at = head.rfind("@")
        user = head[:at]
        if ":" in user or re.match(r"(?i)[^@]*%3a", user):
            after = rest[at + 1 :]
            last = after.rfind("@")
            slash = re.search(r"[/?#]", after)
            if (
                last >= 0
                and slash
                and re.match(r"[^/?#]*:[0-9]{1,5}[/?#]|[\w.\-]+\.[a-z]{2,}[/?#]|localhost[/?#]|\[", after) is None
            ):
                at += 1 + last
            return MASK + rest[at:]
        if len(user) >= 20 or (OPAQUE.match(user) and any(c.isdigit() for c in user) and len(user) >= 12):
            return MASK + rest[at:]
        return rest
    if ":" not in head or head.startswith("["):
        return rest
    port = head.partition(":")[2]
    if re.match(r"[0-9]{1,5}\Z", port) and (rest[at - 1] == "/" or rest.startswith("sha256:", at + 1)):
        return rest
    if rest.startswith("sha256:", at + 1):
        return rest
    return MASK + rest[at:]


def mask_forms(text, work):
    """Mask what has the form of a secret."""
    if "BEGIN " in text or "PuTTY-" in text or "Private-Lines" in text:
        text = mask_blocks(text, work)
    for pattern in (_PREFIXED, _PLAIN):
        text = replaced(pattern, _mask_form, text, work)
    if "@" in text:
        text = replaced(_DATABASE, lambda match: ":" + MASK, text, work)
        text = replaced(_URL, _mask_url, text, work)
    return text


def _mask_form(match):
    kept = _KEPT.match(match.group())
    return (kept.group() if kept else "") + MASK
