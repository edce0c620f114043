"""
Passes of regular expressions over long texts, in bounded time.

This file imports its neighbours probe_*.py and runs on Python 3.6 and later with the standard library only.
A pattern begins with the letters of what it looks for, so that the rest of a text goes by at the speed of C; what is
looked at in Python is counted, and the text from where too much was is withheld.
"""

import re

if __package__:
    from .probe_names import WITHHELD
else:
    from probe_names import WITHHELD

DECISIONS = 120000


class Work:
    """
    How much may still be decided about a text.

    Attributes:
        left: Decisions.
        lines: Line ends in what was withheld from the end of the text; None where nothing was.
    """

    def __init__(self, left):
        self.left = left
        self.lines = None

    def cut(self, text, place):
        """Withhold a text from a place on; gives what is before it."""
        self.lines = (self.lines or 0) + text.count("\n", place)
        return text[:place]

    def whole(self, text):
        """Give the text with a mark for each line that was withheld."""
        return text if self.lines is None else text + "\n".join([WITHHELD] * (self.lines + 1))


def any_of(pieces):
    """
    Give a pattern of alternatives that share their beginnings, which is what makes it fast.

    Args:
        pieces: By text that an alternative begins with, the pattern of what follows it.
    """
    if len(pieces) == 1:
        ((text, rest),) = pieces.items()
        return re.escape(text) + rest
    branches = {}
    for text, rest in pieces.items():
        branches.setdefault(text[:1], {})[text[1:]] = rest
    ordered = [re.escape(head) + any_of(branches[head]) for head in branches if head]
    if "" in branches:
        ordered.append(branches[""][""])
    return "(?:%s)" % "|".join(ordered)


def first(pattern, text, work):
    """Give the matches that there is work left for, and the text as far as it goes with them."""
    found = []
    for match in pattern.finditer(text):
        work.left -= 1
        if work.left < 0:
            return found, work.cut(text, match.start())
        found.append(match)
    return found, text


def replaced(pattern, function, text, work, low=None):
    """Replace what a pattern finds, as re.sub() does; low is the text to search, if it is another one."""
    parts = []
    done = 0
    for match in pattern.finditer(text if low is None else low):
        work.left -= 2
        if work.left < 0:
            text = work.cut(text, match.start())
            break
        parts += [text[done : match.start()], function(match)]
        done = match.end()
    if not parts:
        return text
    parts.append(text[done:])
    return "".join(parts)


def lower(text):
    """Lower a text, each character at its place."""
    return text.replace("\u0130", "i").lower()
