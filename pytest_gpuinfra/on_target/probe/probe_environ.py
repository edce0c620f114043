"""
Which variables may leave the target, by a list of names, and what of their values.

This file imports its neighbours probe_*.py and runs on Python 3.6 and later with the standard library only.
"""

import re

if __package__:
    from .probe_mask import mask_text
    from .probe_names import MASK, NONE, classify_name, is_harmless
else:
    from probe_mask import mask_text
    from probe_names import MASK, NONE, classify_name, is_harmless


def mask_value(name, value):
    """Mask one variable's value."""
    if not isinstance(value, str):
        value = mask_text(value)
    if name in ("PWD", "OLDPWD"):
        return mask_text(value)
    kind = classify_name(name)
    return mask_text(value) if kind == NONE or is_harmless(value, kind, "=") else MASK


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
    for line in text.replace("\\\n", "").split("\n"):
        name, sign, value = line.strip().partition("=")
        name = name.strip()
        words = name.split()
        if sign and words and allowed(words[-1], patterns):  # "export NAME=..." does not work there, and shows
            kept.append(name + "=" + mask_value(words[-1], value))
    return "\n".join(kept)
