"""
Names behind which secrets stand, and which values behind them are none.

This file imports nothing of ours and runs on Python 3.6 and later with the standard library only.
"""

import re

MASK = "[masked]"
WITHHELD = "[withheld:too-much-to-mask]"
"""Stands for what was not looked at, a mark for each line: such a text is never the whole."""
MARKS = (MASK, WITHHELD)


def words_of(text):
    return tuple(text.split())


TRIGGERS = {  # beginning of a name's part: what may not follow it
    **dict.fromkeys(
        words_of(
            "secret passw passphrase passcode passin passout pwd token key auth cred cookie sess connection "
            "connstr jwt license licence community bearer csrf xsrf mnemonic phrase kennwort contrase senha "
            "webhook"
        ),
        "",
    ),
    **dict.fromkeys(words_of("pass pw sid psk sig sas dsn otp pin pat salt"), "(?![a-z])"),
}
_PART = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")
NONE, WEAK, STRONG, PASSWORD, HEADER = range(5)
_NEUTRAL = frozenset(
    words_of(
        "value values string str data base64 b64 plain plaintext raw text old new prod production dev staging "
        "test backup current default id binary encrypted hash hashed hex bytes content"
    )
)
_ABOUT = frozenset(
    words_of(
        "file files path paths dir directory env name names authentication policy length len age expiry "
        "expires expiration ttl type types format version url uri endpoint count counts size limit limits "
        "timeout enabled required algorithm parallelism fingerprint mode method methods provider providers "
        "ids index indices usage rate error errors ref status prompt agent socket sock ring store manager map "
        "class rotation level layer budget cache label labels interval needed min max"
    )
)
_NOT_PASS = frozenset(
    words_of("compass bypass trespass overpass underpass surpass encompass lowpass highpass bandpass")
)
_PASS = frozenset(words_of("pass pw pwd psk passin passout cred creds credential credentials"))
_OPEN_KEY = frozenset(
    words_of(
        "public pub primary foreign sort partition routing cache kernel registry hot group by host row hash "
        "object dict map index shard kv cached sorting lookup translation answer arrow modifier any each per "
        "known missing unknown duplicate invalid config metadata state"
    )
)
_OPEN_TOKEN = frozenset(
    words_of(
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
    words_of(
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
OPAQUE = re.compile(r"(?=[^0-9]{0,200}[0-9])(?=[^A-Za-z]{0,200}[A-Za-z])\S{8,}\Z")


def is_harmless(value, kind, sign=""):
    """Tell whether a value behind a name of this kind is no secret after all: nothing, a switch, a number."""
    if not value or value in MARKS or (len(value) <= 24 and (_SWITCH.match(value) or _REFERENCE.match(value))):
        return True
    if value.startswith(MARKS) and not value.partition("]")[2].strip(")]},;.:>&\\"):
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
    return ":" in sign and not (OPAQUE.match(value) or (len(value) >= 16 and " " not in value))


_DIGEST_HEX = re.compile(r"(?:[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}|[0-9a-f]{32}|[0-9a-f]{40}|[0-9a-f]{64})\Z")
