"""
What may leave the target of environments, arguments and logs: names by a list, and no secret.

This file imports nothing of ours and runs on Python 3.6 and later with the standard library only;
the controller uses it, too, so that both sides of a comparison are masked alike.
"""

import re

MASK = "[masked]"
_NAME = (
    r"[\w.\-]*(?:secret|passw(?:or)?d|passphrase|credential|(?:api|access|private|auth|encryption|ssh|license)[-_]?key)"
    r"[\w.\-]*|(?:[\w.\-]*[-_])?(?:token|auth|authorization|key|pat)"
)
SECRET_NAME = re.compile(r"(?i)(?:--?)?(?:" + _NAME + r")\Z")
_SECRET_VALUE = re.compile(
    r"(?:hf_|sk-|ghp_|gho_|github_pat_|glpat-|xox[abpr]-|nvapi-|AKIA|ASIA|eyJ)[A-Za-z0-9_\-.=]{8,}"
    r"|(?<=Bearer )\S+|(?<=bearer )\S+|(?<=://)[^/\s:@]+:[^/\s@]+(?=@)"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)",
    re.DOTALL,
)
_VALUE = r"(\"[^\"\n]*\"|'[^'\n]*'|[^\s\"']+)"
_ASSIGNED = re.compile(r"(?i)(?<![\w.\-])((?:--?)?(?:" + _NAME + r"))([\"']?\s*[=:][ \t]*)" + _VALUE)
_ARGUMENT = re.compile(r"(?i)(?<!\S)(--?(?:" + _NAME + r"))([ \t]+)(?!-)" + _VALUE)


def mask_text(text):
    """Mask what looks like a secret in any text: values after a telling name, and values of a telling form."""
    text = _SECRET_VALUE.sub(MASK, text)
    text = _ASSIGNED.sub(lambda match: match.group(1) + match.group(2) + MASK, text)
    return _ARGUMENT.sub(lambda match: match.group(1) + match.group(2) + MASK, text)


def mask_value(name, value):
    """Mask one variable's value."""
    return MASK if value and SECRET_NAME.match(name) else mask_text(value)


def mask_argv(argv):
    """Mask the values of telling options, and whatever looks like a secret."""
    masked = []
    follows = False
    for word in argv:
        if follows and not word.startswith("-"):
            masked.append(MASK)
        else:
            masked.append(mask_text(word))
        follows = word.startswith("-") and "=" not in word and bool(SECRET_NAME.match(word))
    return masked


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
