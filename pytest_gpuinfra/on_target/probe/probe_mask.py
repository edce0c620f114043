"""
What may leave the target of environments, arguments and logs: no secret.

This file imports its neighbours probe_*.py and runs on Python 3.6 and later with the standard library only; the
controller masks with it, too, so that both sides of a comparison are masked alike.

What is secret is known by a name before it (probe_names, probe_scan), by its form (probe_forms: vendors' keys, hashes,
tokens, keys in PEM), by its place (probe_tools, probe_forms: an option of a common tool, a URL's user information).
mask_text() works on a whole text, keeps its number of lines, takes time linear in its length with a bound on what is
decided one by one, gives the same when it is applied again (a pass is repeated until it changes nothing), and does not
raise. What is beyond the bound, or cannot be masked, is withheld: WITHHELD stands for it.
"""

import json
import re

if __package__:
    from .probe_forms import mask_forms
    from .probe_names import MASK, NONE, PASSWORD, STRONG, WEAK, WITHHELD, classify_name, is_harmless
    from .probe_scan import mask_flags, mask_named
    from .probe_tools import BY_TOOL, LOGINS, USERS, mask_tools
    from .probe_work import DECISIONS, Work
else:
    from probe_forms import mask_forms
    from probe_names import MASK, NONE, PASSWORD, STRONG, WEAK, WITHHELD, classify_name, is_harmless
    from probe_scan import mask_flags, mask_named
    from probe_tools import BY_TOOL, LOGINS, USERS, mask_tools
    from probe_work import DECISIONS, Work

ROUNDS = 6
LONG = 1 << 17
STRINGS_MAX = 100000
_AROUND = 64


def mask_text(text):
    """
    Mask what looks like a secret in any text, a whole one: keys go over many lines.

    JSON stays JSON. What cannot be masked is withheld: a mark for each of its lines.
    """
    if isinstance(text, (bytes, bytearray)):
        text = bytes(text).decode("utf-8", "backslashreplace")
    try:
        masked = _mask_json(text)
        return _settled(str(text)) if masked is None else masked
    except Exception:  # whatever it was, the text must not leave unmasked
        return _withheld(str(text))


def _withheld(text):
    return "\n".join([WITHHELD] * (text.count("\n") + 1))


def _settled(text):
    """Mask a text until another pass changes nothing."""
    work = Work(2 * DECISIONS if WITHHELD in text else DECISIONS)
    masked = _masked_once(text, work)
    for _ in range(ROUNDS):
        if masked == text:
            return work.whole(text)
        work.left = 2 * DECISIONS
        text, masked = masked, _masked_again(text, masked, work)
    return work.whole(text) if masked == text else _withheld(work.whole(text))


def _masked_once(text, work):
    for mask in (mask_forms, mask_named, mask_flags, mask_tools):
        text = mask(text, work)
    return text


def _masked_again(before, text, work):
    """Mask a text again; of a long one that was changed here and there, the lines around what was changed."""
    lines = text.split("\n")
    changed = [place for place, (old, new) in enumerate(zip(before.split("\n"), lines)) if old != new]  # noqa: B905
    parts = _regions(changed, len(lines))
    if len(text) < LONG or "BEGIN " in text or 2 * sum(end - start for start, end in parts) > len(lines):
        return _masked_once(text, work)
    for start, end in parts:
        here = Work(work.left)
        lines[start:end] = here.whole(_masked_once("\n".join(lines[start:end]), here)).split("\n")
        work.left = max(0, here.left)
    return "\n".join(lines)


def _regions(changed, count):
    """Give the ranges of lines that stand around changed ones, joined where they meet."""
    parts = []
    for place in changed:
        start, end = max(0, place - _AROUND), min(count, place + _AROUND + 1)
        if parts and start <= parts[-1][1]:
            parts[-1][1] = end
        else:
            parts.append([start, end])
    return parts


def _mask_json(text):
    """Mask a text that is JSON as a whole; None if it is none."""
    if text[:1] not in ("{", "[") and text[:64].lstrip()[:1] not in ("{", "["):
        return None
    if text.startswith((MASK, WITHHELD)):
        return None
    try:
        data = json.loads(text)
        if text.count('"') > 2 * STRINGS_MAX:
            return json.dumps(WITHHELD)
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
        if name in BY_TOOL:
            options = BY_TOOL[name] if name not in LOGINS or "login" in argv else ()
        follows = NONE
        glued = "-p+" in options and word.startswith("-p")
        if word.startswith("-") and "=" not in word and " " not in word and not glued:
            kind = classify_name(word)
            follows = max(kind, STRONG) if kind else (PASSWORD if word in options and word not in USERS else NONE)
        elif word == "login" and "login" in options:
            follows = WEAK
    return _mask_users(masked, options)


def _mask_users(words, options):
    """Mask the password of "user:password" behind an option that takes both."""
    for place in range(1, len(words)):
        if words[place - 1] in options and words[place - 1] in USERS:
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
            return text(match.group() + MASK)
    if "-p+" in options and word.startswith("-p") and len(word) > 2:
        return "-p" + MASK
    return text(word)
