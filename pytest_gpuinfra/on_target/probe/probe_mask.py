"""
What may leave the target of environments, arguments and logs: names by a list, and no secret.

This file imports nothing of ours and runs on Python 3.6 and later with the standard library only; the controller
masks with it, too, so that both sides of a comparison are masked alike.

What is secret is known by a name before it (classify_name), by its form (vendors' keys, hashes, tokens, keys in PEM),
by its place (a URL's user information, an option of a common tool). A value that cannot be taken apart is withheld.
mask_text() works on a whole text, keeps its number of lines, takes time linear in its length (each regular expression
either consumes what it looked at or looks at a bounded window), gives the same when it is applied again (a pass is
repeated until it changes nothing), and does not raise.

Sources: PEM, RFC 7468; HTTP authentication, RFC 9110 11.6; URI user information, RFC 3986 3.2.1; password hashes,
crypt(5); quoting, systemd.syntax(7), bash(1), RFC 8259; prefixes of keys, their vendors' documentation.
"""

import json
import re

MASK = "[masked]"
ROUNDS = 6
WINDOW = 4096

# ---------------------------------------------------------------- names


def _words(text):
    return tuple(text.split())


_TRIGGERS = {  # beginning of a name's part: what may not follow it
    **dict.fromkeys(
        _words(
            "secret passw passphrase passcode passin passout pwd token key auth cred cookie sess connection "
            "connstr jwt license licence community bearer csrf xsrf mnemonic phrase kennwort contrase senha "
            "webhook"
        ),
        "",
    ),
    **dict.fromkeys(_words("pass pw sid psk sig sas dsn otp pin pat salt"), "(?![a-z])"),
}
_PART = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")
NONE, WEAK, STRONG, PASSWORD, HEADER = range(5)
_NEUTRAL = frozenset(
    _words(
        "value values string str data base64 b64 plain plaintext raw text old new prod production dev staging "
        "test backup current default id binary encrypted hash hashed hex bytes content"
    )
)
_ABOUT = frozenset(
    _words(
        "file files path paths dir directory env name names authentication policy length len age expiry "
        "expires expiration ttl type types format version url uri endpoint count counts size limit limits "
        "timeout enabled required algorithm parallelism fingerprint mode method methods provider providers "
        "ids index indices usage rate error errors ref status prompt agent socket sock ring store manager map "
        "class rotation level layer budget cache label labels interval needed min max"
    )
)
_NOT_PASS = frozenset(_words("compass bypass trespass overpass underpass surpass encompass lowpass highpass bandpass"))
_PASS = frozenset(_words("pass pw pwd psk passin passout cred creds credential credentials"))
_OPEN_KEY = frozenset(
    _words(
        "public pub primary foreign sort partition routing cache kernel registry hot group by host row hash "
        "object dict map index shard kv cached sorting lookup translation answer arrow modifier any each per "
        "known missing unknown duplicate invalid config metadata state"
    )
)
_OPEN_TOKEN = frozenset(
    _words(
        "bos eos pad unk cls sep mask stop start end image audio video max min per num total next first last "
        "special prompt completion input output new begin of think thinking tool count n cached reasoning "
        "sampled decoder"
    )
)
_JOINED_KEY = re.compile(
    r"(?:api|app|access|private|priv|auth|encryption|encrypt|crypt|ssh|licen[cs]e|secret|master|session|signing|sign|"
    r"account|service|client|server|wg|aes|hmac|ssl|tls|gpg|pgp|pre|preshared|shared|storage|subscription|luks)keys?\Z"
)
_JOINED_TOKEN = re.compile(
    r"(?:auth|access|refresh|id|hf|hub|bearer|session|csrf|xsrf|api|git\w*|bot|user|id)tokens?\Z"
)
_WEAK_LAST = frozenset(
    _words(
        "auth sig signature sas dsn jwt otp totp pin pat sid session community license licence bearer "
        "connection connstr salt csrf xsrf mnemonic sess webhook"
    )
)
_KINDS = {}


def classify_name(name):
    """
    Tell how secret the values of a name are.

    Returns:
        NONE; WEAK (only a value that looks random), STRONG (all but switches, numbers and paths), PASSWORD (all but
        switches), HEADER (all up to the end of the header).
    """
    kind = _KINDS.get(name)
    if kind is None:
        if len(_KINDS) > 4096:
            _KINDS.clear()
        kind = _KINDS[name] = _classify(name)
    return kind


def _classify(name):
    if len(name) > 512:
        return PASSWORD if re.search(r"(?i)passw|secret|token|key|cred", name) else NONE
    parts = [part.lower() for part in _PART.findall(name)]
    joined = "".join(parts)
    if joined.endswith(("authorization", "cookie")):
        return HEADER
    while len(parts) > 1 and (parts[-1] in _NEUTRAL or parts[-1].isdigit()):
        parts.pop()
    if not parts or parts[-1] in _ABOUT:
        return NONE
    last, before = parts[-1], parts[:-1]
    if re.search(r"passw(?:or[dt]|d)|passphrase|passcode|secret(?!ar)|kennwort|contrase|senha|requirepass", joined):
        return PASSWORD
    if last in _PASS or (last.endswith(("pass", "pwd")) and last not in _NOT_PASS):
        return NONE if before and before[-1] in ("load", "import", "second", "one", "two", "first", "by") else PASSWORD
    if "credential" in joined and "load" not in parts and "import" not in parts:
        return PASSWORD
    if "luks" in parts and last in ("key", "data"):
        return PASSWORD
    if last in ("key", "keys"):
        return _qualified(before, _OPEN_KEY, last == "keys")
    if last in ("token", "tokens"):
        return _qualified(before, _OPEN_TOKEN, last == "tokens")
    if _JOINED_KEY.match(last) or _JOINED_TOKEN.match(last):
        return STRONG
    if joined.endswith(("connectionstring", "sessionid", "sessid", "phrase")) or joined in ("masterauth", "cryptkey"):
        return STRONG
    return WEAK if last in _WEAK_LAST else NONE


def _qualified(before, harmless, plural):
    """Classify a key or a token by the words in front of it."""
    if not before:
        return NONE if plural else WEAK
    if any(part in harmless for part in before[-2:]) and not {"api", "access", "private", "auth"} & set(before):
        return NONE
    return WEAK if plural and before[-1] not in ("api", "access", "auth", "private") else STRONG


_SWITCH = re.compile(r"(?i)(?:true|false|null|none|nil|yes|no|on|off|undefined|required|optional|enabled|disabled)\Z")
_REFERENCE = re.compile(r"\$\w+\Z|\$\{\w+\}\Z|\$\(\w+\)\Z|%[sdr]\Z|%\(\w+\)s\Z|\{\w*\}\Z|\{\{[\w. ]+\}\}\Z")
_NUMBER = re.compile(r"[-+]?[0-9]{1,7}(?:\.[0-9]+)?[smhd%]?\Z")
_PATH = re.compile(r"(?:~|\.{1,2})?/(?:[\w.\-+@]+/)*[\w.\-+@]*\Z")
_PLAIN_WORD = re.compile(r"[A-Za-z]+(?:[-_ .][A-Za-z]+)*\Z")
_OPAQUE = re.compile(r"(?=[^0-9]{0,200}[0-9])(?=[^A-Za-z]{0,200}[A-Za-z])\S{8,}\Z")


def is_harmless(value, kind, sign=""):
    """Tell whether a value behind a name of this kind is no secret after all: nothing, a switch, a number."""
    if not value or value == MASK or (len(value) <= 24 and (_SWITCH.match(value) or _REFERENCE.match(value))):
        return True
    if value.startswith(MASK) and not value[len(MASK) :].strip(")]},;.:>&\\"):
        return True
    if kind == PASSWORD:
        return False
    if _NUMBER.match(value[:32]) and len(value) <= 16:
        return True
    if kind == HEADER:
        return False
    if len(value) <= 1024 and _PATH.match(value):
        return True
    if kind == STRONG:
        return False
    if len(value) <= 15 and _PLAIN_WORD.match(value):
        return True
    if ":" in sign and _DIGEST_HEX.match(value):
        return True
    return ":" in sign and not (_OPAQUE.match(value) or (len(value) >= 16 and " " not in value))


_DIGEST_HEX = re.compile(r"(?:[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}|[0-9a-f]{32}|[0-9a-f]{40}|[0-9a-f]{64})\Z")

# ---------------------------------------------------------------- values

_QUOTE = r"(?:\\{0,16}[\"'`]|&(?:quot|\#34|\#39|\#x27);|%2[27])"
_SIGN = r"(?:=>|:=|={1,2}|:|%3[da]|\\{1,8}u003[da])"
_NAMED = (
    r"(?:{})(?=([\w.\-]{{0,128}}))\1"
    r"(?:((?:"
    + _QUOTE.replace("{", "{{").replace("}", "}}")
    + r")?\]?[ \t]{{0,64}}\n?[ \t]{{0,64}}(?<!\n[ \t])"
    + _SIGN.replace("{", "{{").replace("}", "}}")
    + r"[ \t]{{0,64}}|>(?=[^<>\n]{{1,512}}</))"
    r"|([ \t]{{1,64}})(?=[^\s\"']{{0,64}}[0-9])(?=[^\s\"']{{8}}))"
)
_FLAG = (
    r"(?<![\w\-])--?[a-z0-9.\-]{{0,48}}?(?:{})(?=([\w\-]{{0,64}}))\1"
    r"(?:" + _QUOTE.replace("{", "{{").replace("}", "}}") + r"[ \t]{{0,8}},[ \t]{{0,8}}\n?[ \t]{{0,64}}(?=[\"'\\&])"
    r"|[ \t]{{0,8}}\\\n[ \t]{{0,64}}|[ \t]{{1,64}}(?!\\\n))(?!-)"
)
_LONG = 1 << 15
_COMPILED = {}


def _pattern(form, pieces, text):
    """
    Compile a pattern of alternatives; for a long text of those alone that it holds, which is faster.

    Args:
        form: The pattern, "{}" where the alternatives stand.
        pieces: By text that an alternative begins with, what follows it.
        text: Where it is to be searched.

    Returns:
        The pattern; None where the text holds none of them.
    """
    held = tuple(piece for piece in pieces if piece in text) if len(text) > _LONG else tuple(pieces)
    if not held:
        return None
    pattern = _COMPILED.get((form, held))
    if pattern is None:
        if len(_COMPILED) > 64:
            _COMPILED.clear()
        alternatives = "|".join(re.escape(piece) + pieces[piece] for piece in sorted(held, key=len, reverse=True))
        pattern = _COMPILED[form, held] = re.compile(form.format(alternatives))
    return pattern


_OPEN = re.compile(r"(?:[bBrRuUfF]{1,2}|\$)?(\"\"\"|'''|" + _QUOTE + r")")
_BARE = re.compile(
    r"(?:[^\s\"'`\\<]{1,4096}|\\[^\"'`nrt]|\\(?=[nrt])[nrt](?![\w\s\[]|\Z)|<(?!/?[A-Za-z][A-Za-z0-9]{0,10}[\s/>])){0,1024}",
    re.S,
)
_BARE_QUERY = re.compile(r"[^\s\"'`\\<&#]*")
_BRACKET = re.compile(r"[\[\]{}]")
_DIGEST = re.compile(
    r"(?:[ \t,]*[\w\-]{1,40}=(?:\\{0,8}\"[^\"\n]{0,1024}\"|[^\s,\"]{1,1024}))(?:[ \t]*,[ \t]*[\w\-]{1,40}="
    r"(?:\\{0,8}\"[^\"\n]{0,1024}\"|[^\s,\"]{1,1024})){0,32}"
)
_SCHEME = re.compile(
    r"(?i)(?:basic|bearer|token|digest|negotiate|ntlm|apikey|api-key|hoba|hawk|mutual|vapid|aws4-hmac-sha256|"
    r"scram-sha-[0-9]{1,3}|oauth)(?:[ \t]+|\Z)"
)
_INSIDE = {}
_NAME_CHARACTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-"


def _inside(backslashes, quote):
    """Give the pattern of what stands in quotes that were escaped by so many backslashes."""
    pattern = _INSIDE.get((backslashes, quote))
    if pattern is None:
        other = r"[^\\%s]{1,%d}" % (quote, WINDOW)
        escaped = r"\\{%d,64}%s" % (backslashes + 1, quote)
        pattern = re.compile(r"(?:%s|\\{1,64}(?![\\%s])|%s){0,%d}" % (other, quote, escaped, WINDOW))
        _INSIDE[backslashes, quote] = pattern
    return pattern


def _end_of_line(text, start):
    end = text.find("\n", start)
    return len(text) if end < 0 else end


def _end_of_quoted(text, start, opener):
    """Find where a quoted value ends: at its closing quote, or with its line where there is none."""
    if (len(opener) == 3 and opener[0] == opener[1]) or opener[0] in "&%":
        limit = start + WINDOW if opener[0] not in "&%" else _end_of_line(text, start)
        end = text.find(opener, start, limit)
        return end if end >= 0 else _end_of_line(text, start)
    backslashes = len(opener) - 1
    end = _inside(backslashes, opener[-1]).match(text, start, start + WINDOW).end()
    closed = text.startswith(opener, end)
    if not closed and text[end : end + 1] == opener[-1]:
        closed = True  # an outer quote: the inner one was cut off
    if not closed:
        for number in range(backslashes + 1):
            if text.startswith("\\" * number + opener[-1], end):
                return end
        return _end_of_line(text, start)
    line = text.find("\n", start, end)
    if line >= 0 and text[start:end].rstrip(" \t").endswith(("=", ":", ",")):
        return line  # what would close it opens the next one
    return end


def _end_of_bracket(text, start):
    """Find the end of a list or object on its line; the line's end where it does not close there."""
    depth = 0
    limit = _end_of_line(text, start)
    for match in _BRACKET.finditer(text, start, limit):
        depth += 1 if match.group() in "[{" else -1
        if depth == 0:
            return match.end()
    return limit


def _end_of_block(text, start):
    """Find the end of a YAML block scalar whose marker's line ends at start: of the lines indented deeper."""
    begin = text.rfind("\n", max(0, start - WINDOW), start) + 1
    indent = len(text[begin:start]) - len(text[begin:start].lstrip(" \t-"))
    end = start
    while end < len(text):
        after = _end_of_line(text, end + 1)
        line = text[end + 1 : after]
        if line.strip() and len(line) - len(line.lstrip(" \t")) <= indent:
            break
        end = after
    return end


def _enclosing(text, start):
    """Give the quote that stands directly before a name, backslashes included; "" for none."""
    window = text[max(0, start - 24) : start]
    if window[-1:] in ("'", '"'):
        bare = window[:-1].rstrip("\\")
        return window[len(bare) :]
    for entity in ("&quot;", "&#34;", "&#39;", "&#x27;"):
        if window.endswith(entity):
            return entity
    return ""


def _hidden(value):
    """Give the mask for a value, a line for each of its lines."""
    return "\n".join([MASK] * (value.count("\n") + 1))


def _bare_end(text, start, name_start):
    if text[name_start - 1 : name_start] in ("?", "&") or text.endswith("&amp;", 0, name_start):
        return _BARE_QUERY.match(text, start).end()
    match = _BARE.match(text, start)
    end = match.end()
    if end - start >= 1024 and text[end : end + 1].strip() and text[end] not in "\"'`\\<":
        return _end_of_line(text, end)
    return start + len(_without_closers(text[start:end]))


def _without_closers(value):
    """Take off what closes what was opened before the value."""
    bare = value.rstrip("),;}]")
    if bare.endswith(MASK[:-1]):
        return bare + "]"
    for opener, closer in ("()", "{}", "[]"):
        if bare.count(opener) > bare.count(closer) and value.startswith(closer, len(bare)):
            return bare + closer
    return bare


def _header_end(text, start, enclosing):
    """Find where a header's value ends: at the quote around it, or with the line."""
    scheme = _SCHEME.match(text, start, start + 64)
    place = scheme.end() if scheme else start
    digest = _DIGEST.match(text, place)
    if digest and "=" in text[place : place + 64] and not enclosing:
        return digest.end()
    line = _end_of_line(text, start)
    if enclosing:
        end = _end_of_quoted(text, start, enclosing)
        return min(end, line)
    match = re.compile(r"[^\"'\n\\<]*").match(text, start, line)
    return match.end()


def _span(text, start, name_start, kind, sign):
    """
    Find a value's extent.

    Returns:
        Start and end of what is to be replaced, and what is to be put around the mask.
    """
    opened = _OPEN.match(text, start, start + 24)
    enclosing = _enclosing(text, name_start)
    quoted_name = sign[:1] in ('"', "\\", "'", "&")
    if opened and not (enclosing and not quoted_name and opened.group(1) == enclosing):
        inner = opened.end()
        end = _end_of_quoted(text, inner, opened.group(1))
        closer = opened.group(1)
        more = end + len(closer)
        while text.startswith(closer, end) and text.startswith(("\\" + closer, closer), more) and len(closer) == 1:
            more += 3 if text.startswith("\\" + closer * 2, more) else 1 + (text[more] == "\\")
            end = _end_of_quoted(text, more, closer)  # 'a'\''b', "a""b"
            more = end + 1
        return inner, end, ""
    if kind == HEADER:
        return start, _header_end(text, start, enclosing if not quoted_name else ""), ""
    first = text[start : start + 1]
    if sign.startswith(">"):
        return start, text.find("<", start), ""
    block = kind >= STRONG and re.compile(r"[|>][+\-0-9]{0,2}[ \t]{0,64}\n").match(text, start)
    if block:
        return block.end(), max(block.end(), _end_of_block(text, block.end() - 1)), ""
    if first and first in "[{" and not text.startswith(MASK, start):
        if kind >= STRONG:
            return start, _end_of_bracket(text, start), '"' if quoted_name and sign[0] == '"' else ""
        return start, start, ""
    if enclosing and not quoted_name:
        end = _end_of_quoted(text, start, enclosing)
        if text.startswith(enclosing, end) and "\n" not in text[start:end]:
            return start, end, ""
    end = _bare_end(text, start, name_start)
    return start, end, '"' if quoted_name and sign[0] == '"' and text[start:end] != MASK else ""


def _mask_named(text, low):
    """Mask the values that stand behind names."""
    pattern = _pattern(_NAMED, _TRIGGERS, low)
    if pattern is None:
        return text
    parts = []
    done = place = 0
    while True:
        match = pattern.search(low, place)
        if match is None:
            break
        place = name_end = match.end(1)
        window = text[max(0, match.start() - 128) : match.start()]
        begin = match.start() - (len(window) - len(window.rstrip(_NAME_CHARACTERS)))
        kind = classify_name(text[begin:name_end])
        if kind == WEAK:
            kind = _with_word_before(window[: len(window.rstrip(_NAME_CHARACTERS))], text[begin:name_end])
        if kind == NONE:
            continue
        if kind == WEAK and text[begin:name_end] in ("PWD", "OLDPWD"):
            continue
        if match.group(2) is None:
            if kind in (STRONG, PASSWORD) and text[begin - 1 : begin] not in ("-", "/"):
                end = _bare_end(text, match.end(), begin)
                if _OPAQUE.match(text[match.end() : end]):
                    parts += [text[done : match.end()], MASK]
                    done = place = end
            continue
        sign = match.group(2)
        start, end, around = _span(text, match.end(), begin, kind, sign)
        value = text[start:end]
        scheme = _SCHEME.match(value) if kind == HEADER else None
        if scheme:
            start += scheme.end()
            value = text[start:end]
        place = max(place, start)
        stripped = value.strip()
        if text[begin:name_end] in ("PWD", "OLDPWD") and value[:1] == "/":
            continue
        if is_harmless(stripped, kind, sign) or (stripped.strip("[]masked\n ") == "" and MASK in stripped):
            continue
        parts += [text[done:start], around, _hidden(value), around]
        done = place = end
    if not parts:
        return text
    parts.append(text[done:])
    return "".join(parts)


def _with_word_before(window, name):
    """Classify a weak name by the word before it, too: "public key", "api key"."""
    word = re.search(r"(?<![A-Za-z])([A-Za-z]{2,16}) \Z", window[-20:])
    if word is None:
        return WEAK
    kind = classify_name(word.group(1) + "_" + name)
    return kind if kind == NONE or word.group(1).lower() in ("api", "access", "private", "auth", "license") else WEAK


def _mask_flags(text, low):
    """Mask the words behind telling options."""
    pattern = _pattern(_FLAG, _TRIGGERS, low)
    if pattern is None:
        return text
    parts = []
    done = place = 0
    while True:
        match = pattern.search(low, place)
        if match is None:
            break
        place = match.end()
        name = text[match.start() : match.end(1)]
        kind = classify_name(name)
        if kind == NONE:
            continue
        opened = _OPEN.match(text, match.end(), match.end() + 24)
        start = opened.end() if opened else match.end()
        end = _end_of_quoted(text, start, opened.group(1)) if opened else _bare_end(text, start, match.start())
        if is_harmless(text[start:end], max(kind, STRONG)):
            continue
        parts += [text[done:start], _hidden(text[start:end])]
        done = place = end
    if not parts:
        return text
    parts.append(text[done:])
    return "".join(parts)


# ---------------------------------------------------------------- forms

_FORMS = {}
for _prefix in _words(
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
for _prefix in _words("AKIA ASIA AGPA AIDA AROA ANPA"):
    _FORMS[_prefix] = r"[A-Z0-9]{12,}"
_FORMS.update(
    {
        "sk-": r"(?=[A-Za-z_\-]{0,40}[0-9])[A-Za-z0-9_\-.=]{8,}",
        "AIza": r"[A-Za-z0-9_\-]{20,}",
        "eyJ": r"[A-Za-z0-9_\-]{8,}(?:\.[A-Za-z0-9_\-]+){0,4}",
        "key-": r"[0-9a-f]{32}(?![0-9a-f])",
        "SK": r"[0-9a-f]{32}(?![0-9a-f])",
    }
)
_PREFIXED = r"(?<![A-Za-z0-9])(?:{})"
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
    for name in _words(
        "1 2 2a 2b 2x 2y 5 6 7 y gy sha1 md5 argon2i argon2d argon2id scrypt pbkdf2-sha256 pbkdf2-sha512"
    )
}
_SCHEMES.update(_HASHES)
_PLAIN_FORM = r"(?:{})"
_DATABASE = re.compile(r":[^\s@:/\"']{1,128}@(?=(?:tcp|udp|unix)\()")
_KEPT = re.compile(
    r"(?i)(?:bearer|basic|negotiate)[ \t]+|hooks\.slack\.com/|discord(?:app)?\.com/api/webhooks/"
    r"|\.webhook\.office\.com/|:(?=AA)"
)
_BLOCK = re.compile(
    r"-{4,5} ?BEGIN [A-Z0-9 ]{0,40}(?:PRIVATE|SECRET|ENCRYPTED|STATIC|PGP MESSAGE)[A-Za-z0-9 ]{0,40}-{4,5}"
    r"|PuTTY-User-Key-File-[0-9]:|Private-Lines: [0-9]+"
)
_BLOCK_END = re.compile(r"-{4,5} ?END [A-Za-z0-9 ]{0,80}-{4,5}|Private-MAC:")
_BLOCK_MAX = 1 << 16
_BLOCK_RUN = re.compile(r"(\\{1,16}[nrt])|[A-Za-z0-9+/=_]{16,}")
_BLOCK_LAST = re.compile(
    r"(\\{1,16}[nrt])|(?<![\w\[+/=])(?:[A-Za-z0-9+/=]{4}){1,64}"
    r"(?=[ \t]{0,8}(?:[\r\n]|\\{0,16}[\"'](?![ \t]{0,8}:)|\\{1,16}[nr]|-{4,5} ?END|\Z))"
)
_URL = re.compile(r":(?:\\{0,8}/){2}([^\s\"'<>`\x00]{3,})")


def _mask_blocks(text):
    """Mask the bodies of private keys, whatever stands in front of their lines."""
    begins = list(_BLOCK.finditer(text))
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
    pieces = re.split(r"(:(?:\\{0,8}/){2})", whole)
    for place in range(2, len(pieces), 2):
        pieces[place] = _without_user(pieces[place])
    return "".join(pieces) if sign else whole


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
        if len(user) >= 20 or (_OPAQUE.match(user) and any(c.isdigit() for c in user) and len(user) >= 12):
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


# ---------------------------------------------------------------- tools

_TOOL_OPTIONS = {
    "-u --user --proxy-user": "curl wget http https xh",
    "-p": "sshpass docker podman nerdctl helm mongo mongosh mongodump rabbitmqadmin az oc skopeo buildah lftp",
    "-p+": "mysql mysqldump mysqladmin mariadb mariadb-dump mysqlimport sshpass 7z 7za unrar rar",
    "-a": "redis-cli valkey-cli keydb-cli",
    "-w": "ldapsearch ldapadd ldapmodify ldapwhoami ldapdelete",
    "-P": "ipmitool mosquitto_pub mosquitto_sub zip unzip sqlcmd bcp isql",
    "-c": "snmpwalk snmpget snmpset snmpbulkwalk",
    "-U": "smbclient rpcclient smbget",
    "-A -X": "snmpwalk snmpget snmpset",
    "login": "wandb vault",
}
_USERS = ("-u", "--user", "-U", "--proxy-user")
_BY_TOOL = {}
for _options, _tools in _TOOL_OPTIONS.items():
    for _tool in _tools.split():
        _BY_TOOL.setdefault(_tool, []).extend(_options.split())
_LOGINS = frozenset(_words("docker podman nerdctl helm skopeo buildah az oc"))
_TOOL = r"(?<![\w.\-])({})(?=[\"'\\ \t])([^\n|;]{{2,}})"
_TOOLS = dict.fromkeys(_BY_TOOL, "")
_OPTION_VALUE = r"((?:\[masked\]|[^\s\"',\\\]]){1,4096})"
_CUT = r"([\"'\\, \t=]{1,8})" + _OPTION_VALUE
_CONFIGURED = re.compile(
    r"(?im)(?<![\w\-])((?:r[ow]community6?|requirepass|masterauth|createuser)[ \t]+)([^\s\"']+)"
    r"|(\bidentified[ \t]+by[ \t]+(?:password[ \t]+)?[\"'])([^\"'\n]+)"
)


def _option_pattern(option):
    if option.endswith("+"):
        return re.compile(r"(?<=[\"' \t])(" + re.escape(option[:-1]) + r")()" + _OPTION_VALUE)
    return re.compile(r"(?<=[\"' \t])(" + re.escape(option) + r")" + _CUT)


_PATTERNS = {option: _option_pattern(option) for options in _BY_TOOL.values() for option in options}


def _mask_tool(match):
    """Mask the values of a tool's options on the rest of its line."""
    rest = match.group(2)
    if match.group(1) in _LOGINS and "login" not in rest:
        return match.group()
    for option in _BY_TOOL[match.group(1)]:
        rest = _PATTERNS[option].sub(_option_masked, rest)
    return match.group(1) + rest


def _option_masked(found):
    option = found.group(1)
    value = found.group(3)
    if value.startswith((MASK, "-", "$")) or (option in _USERS and not re.match("[^:%]*[:%](?!//)", value)):
        return found.group()
    if option == "login" and not _OPAQUE.match(value):
        return found.group()
    name = re.match(r"[^:%]*[:%]", value).group() if option in _USERS else ""
    if value[len(name) :] == MASK:
        return found.group()
    return found.group(1) + found.group(2) + name + MASK


# ---------------------------------------------------------------- texts


def _lower(text):
    """Lower a text, each character at its place."""
    return text.replace("\u0130", "i").lower()


def _masked_once(text):
    if "BEGIN " in text or "PuTTY-" in text or "Private-Lines" in text:
        text = _mask_blocks(text)
    for form, pieces in ((_PREFIXED, _FORMS), (_PLAIN_FORM, _SCHEMES)):
        pattern = _pattern(form, pieces, text)
        text = text if pattern is None else pattern.sub(_mask_form, text)
    if "@" in text:
        text = _DATABASE.sub(":" + MASK, text)
        text = _URL.sub(_mask_url, text)
    text = _mask_named(text, _lower(text))
    if "-" in text:
        text = _mask_flags(text, _lower(text))
        tools = _pattern(_TOOL, _TOOLS, text)
        text = text if tools is None else tools.sub(_mask_tool, text)
    low = _lower(text)
    if any(word in low for word in ("community", "requirepass", "masterauth", "createuser", "identified")):
        text = _CONFIGURED.sub(_mask_configured, text)
    return text


def _mask_form(match):
    word = match.group()
    kept = _KEPT.match(word)
    return (kept.group() if kept else "") + MASK


def _mask_configured(match):
    kept, value = match.group(1) or match.group(3), match.group(2) or match.group(4)
    return match.group() if MASK in value else kept + MASK


def mask_text(text):
    """
    Mask what looks like a secret in any text, a whole one: keys go over many lines.

    JSON stays JSON. A text that cannot be masked is withheld: a mask for each of its lines.
    """
    if isinstance(text, (bytes, bytearray)):
        text = bytes(text).decode("utf-8", "backslashreplace")
    try:
        return _stable(str(text))
    except Exception:  # whatever it was, the text must not leave unmasked
        return _hidden(str(text))


def _stable(text):
    masked = _mask_json(text)
    if masked is not None:
        return masked
    for _ in range(ROUNDS):
        masked = _masked_once(text)
        if masked == text:
            return text
        text = masked
    return _hidden(text)


def _mask_json(text):
    """Mask a text that is JSON as a whole; None if it is none."""
    if text[:1] not in ("{", "[") and text.lstrip()[:1] not in ("{", "["):
        return None
    if text.startswith(MASK):
        return None
    try:
        data = json.loads(text)
        masked = mask_data(data)
        return text if masked == data else json.dumps(masked, ensure_ascii=False)
    except (ValueError, RecursionError):
        return None


def mask_data(data, name="", text=mask_text):
    """
    Mask plain data: values below a telling name, and every text in it. Nothing is changed in place.

    Args:
        data: What JSON can hold, nested as deeply as may be.
        name: The name that it stands under.
        text: Masks a text.
    """
    root = [None]
    waiting = [(root, 0, data, name)]
    while waiting:
        holder, place, value, above = waiting.pop()
        kind = classify_name(above) if above else NONE
        if isinstance(value, str):
            holder[place] = text(value) if is_harmless(value, kind, ":") or kind == NONE else MASK
        elif isinstance(value, dict):
            holder[place] = copy = {}
            for key, inner in value.items():
                below = str(key)
                if kind >= PASSWORD and not classify_name(below):
                    below = above
                copy[masked_key(key, text)] = None
                waiting.append((copy, masked_key(key, text), inner, below))
        elif isinstance(value, (list, tuple)):
            holder[place] = copy = list(value)
            words = _mask_words(value, text)
            for number, inner in enumerate(value):
                if words is not None and isinstance(inner, str) and kind == NONE:
                    copy[number] = words[number]
                else:
                    waiting.append((copy, number, inner, above))
        elif kind == PASSWORD and isinstance(value, (int, float)) and not isinstance(value, bool):
            holder[place] = MASK
        else:
            holder[place] = value
    return root[0]


def masked_key(key, text):
    return text(key) if isinstance(key, str) and len(key) > 8 else key


def _mask_words(value, text):
    """Mask the texts of a list as what they may be together: a command line, or the lines of a key."""
    words = [word if isinstance(word, str) else "" for word in value]
    if not any(words):
        return None
    if any("BEGIN " in word for word in words):
        joined = text("\n".join(words)).split("\n")
        masked, place = [], 0
        for word in words:
            count = word.count("\n") + 1
            masked.append("\n".join(joined[place : place + count]))
            place += count
        words = masked
    return mask_argv(words, text)


def mask_value(name, value):
    """Mask one variable's value."""
    if not isinstance(value, str):
        value = mask_text(value)
    if name in ("PWD", "OLDPWD"):
        return mask_text(value)
    kind = classify_name(name)
    return mask_text(value) if kind == NONE or is_harmless(value, kind, "=") else MASK


def mask_argv(argv, text=mask_text):
    """Mask the values of telling options, and whatever looks like a secret."""
    masked = []
    follows = NONE
    options = ()
    for word in argv:
        if (
            follows
            and not (word.startswith("-") and len(word) > 1 and (follows != PASSWORD or classify_name(word)))
            and not word.startswith("--")
            and not is_harmless(word, follows)
        ):
            masked.append(MASK)
            follows = NONE
            continue
        masked.append(_mask_assignment(word, options, text))
        name = word.rsplit("/", 1)[-1]
        if name in _BY_TOOL:
            options = _BY_TOOL[name] if name not in _LOGINS or "login" in argv else ()
        follows = NONE
        glued = "-p+" in options and word.startswith("-p")
        if word.startswith("-") and "=" not in word and " " not in word and not glued:
            kind = classify_name(word)
            follows = max(kind, STRONG) if kind else (PASSWORD if word in options and word not in _USERS else NONE)
        elif word == "login" and "login" in options:
            follows = WEAK
    return _mask_users(masked, options)


def _mask_users(words, options):
    """Mask the password of "user:password" behind an option that takes both."""
    for place in range(1, len(words)):
        if words[place - 1] in options and words[place - 1] in _USERS:
            user = re.match(r"[^:%]*[:%]", words[place])
            if user and words[place] != user.group():
                words[place] = user.group() + MASK
    return words


def _mask_assignment(word, options, text):
    """Mask one word of a command line: an assignment as a whole, blanks and all."""
    match = re.match(r"(--?[\w.\-]{1,128}|[A-Za-z_][\w.\-]{0,128})=", word)
    if match:
        value = word[match.end() :]
        kind = classify_name(match.group(1))
        if kind and match.group(1) not in ("PWD", "OLDPWD") and not is_harmless(value, kind, "="):
            return match.group() + MASK
    if "-p+" in options and word.startswith("-p") and len(word) > 2:
        return "-p" + MASK
    return text(word)


def allowed(name, patterns):
    """Tell whether a variable's name is in the list; "NCCL_*" stands for all that begin so."""
    return any(name.startswith(p[:-1]) if p.endswith("*") else name == p for p in patterns)


def filter_environ(data, patterns):
    """
    Cut an environment block down to the variables of the list, and say in which state the block is.

    Gives size in bytes, NUL bytes at its beginning, pieces that are no assignment, empty pieces between others,
    and values by name. The first piece after leading NULs may be the rest of a torn one, and is left out.
    """
    size = len(data)
    leading = size - len(data.lstrip(b"\0"))
    pieces = data[leading:].split(b"\0")
    while pieces and not pieces[-1]:
        pieces.pop()
    state = {"size": size, "leading_nul": leading, "odd": 0, "empty": 0, "values": {}}
    for place, piece in enumerate(pieces):
        name, sign, value = piece.partition(b"=")
        if not piece:
            state["empty"] += 1
        elif not sign or not re.match(rb"[^\s=:]+\Z", name):
            state["odd"] += 1
        elif place or not leading:
            word = name.decode("utf-8", "backslashreplace")
            if allowed(word, patterns):
                state["values"][word] = mask_value(word, value.decode("utf-8", "backslashreplace"))
    return state


def filter_lines(text, patterns):
    """Keep the assignments of the list in a file of assignments, continuation lines joined; and mask them."""
    kept = []
    for line in text.replace("\\\n", "").splitlines():
        name, sign, value = line.strip().partition("=")
        name = name.strip()
        words = name.split()
        if sign and words and allowed(words[-1], patterns):  # "export NAME=..." does not work there, and shows
            kept.append(name + "=" + mask_value(words[-1], value))
    return "\n".join(kept)
