"""
The probe's answers: their shape, and how much of them there may be.

This file imports nothing of ours and runs on Python 3.6 and later with the standard library only. The probe makes its
answers by it, and checks those of a probe inside a container; the controller checks what comes off the wire by it.

Answers: {request id: {entry: {name: reading}}}; a request of which nothing is known: {"!": {"": {"e": reason}}}.
Reading: {"t": text} or {"e": reason}, and of these {"x": int or null, "s": text, "cut": int above 0}.
"""

import json
import threading

ANSWER_MAX = 12 << 20
READINGS_MAX = 200000
LARGE = 65536
BEGINNING = 4096
TOO_MUCH = "EFBIG: all answers together are longer than %d MiB or %d readings" % (ANSWER_MAX >> 20, READINGS_MAX)
_TEXT = (str,)
_FIELDS = {"t": _TEXT, "e": _TEXT, "s": _TEXT, "x": (int, type(None)), "cut": (int,)}


def flaw_of(answers, asked=None):
    """
    Say what is wrong with the shape of answers; "" if nothing is.

    Args:
        answers: What was read from JSON.
        asked: Ids of the requests; None for any.
    """
    if type(answers) is not dict:
        return "the answers are no object"
    count = 0
    for identity, entries in answers.items():
        if asked is not None and identity not in asked:
            return "nobody asked for %r" % identity[:80]
        if type(entries) is not dict:
            return "the answer of %r is no object" % identity[:80]
        for entry, node in entries.items():
            if type(node) is not dict:
                return "entry %r of %r is no object" % (entry[:80], identity[:80])
            count += len(node)
            for name, reading in node.items():
                flaw = flaw_of_reading(reading)
                if flaw:
                    return "%r of entry %r of %r %s" % (name[:80], entry[:80], identity[:80], flaw)
        if "!" in entries and "e" not in entries["!"].get("", ()):
            return "%r was refused without a reason" % identity[:80]
    return "" if count <= READINGS_MAX else "it holds more than %d readings" % READINGS_MAX


def flaw_of_reading(reading):
    if type(reading) is not dict:
        return "is no object"
    for key, value in reading.items():
        if type(value) not in _FIELDS.get(key, ()):
            return "has %r of another kind than a reading has" % key[:80]
    if ("t" in reading) == ("e" in reading):
        return "has to have either a text or a reason"
    return "" if reading.get("cut", 1) > 0 else "has been cut by less than nothing"


class Answers:
    """
    Answers in the making, held as JSON, so that their size is known and bounded.

    Of a request that does not fit any more, large readings are cut; where that is not enough, it is left out.
    `put` may be called from any thread.
    """

    def __init__(self):
        self.texts = {}
        self.refused = {}
        self.size = 0
        self.readings = 0
        self.lock = threading.Lock()

    def put(self, identity, entry, node):
        """Add an entry of a request's answer."""
        text = json.dumps({entry: node})[1:-1]
        with self.lock:
            if not self._fits(text, node):
                text = json.dumps({entry: {name: small(node[name]) for name in node}})[1:-1]
            if not self._fits(text, node):
                self._refuse(identity, TOO_MUCH)
            if identity in self.refused:
                return
            self.size += len(text) + 2
            self.readings += len(node)
            self.texts.setdefault(identity, []).append(text)

    def refuse(self, identity, reason):
        """Say of a request that nothing is known, whatever was added before."""
        with self.lock:
            self._refuse(identity, reason)

    def empty(self, identity):
        """Say of a request that its answer has no entry so far."""
        with self.lock:
            self.texts.setdefault(identity, [])

    def _refuse(self, identity, reason):
        self.size -= sum(len(text) + 2 for text in self.texts.pop(identity, ()))
        self.refused[identity] = reason[:4096]

    def _fits(self, text, node):
        return self.size + len(text) <= ANSWER_MAX and self.readings + len(node) <= READINGS_MAX

    def write(self, stream):
        """Write all of them as one JSON object."""
        stream.write("{")
        mark = ""
        for identity, texts in self.texts.items():
            stream.write(mark + json.dumps(identity) + ": {")
            for number, text in enumerate(texts):
                stream.write(", " + text if number else text)
            stream.write("}")
            mark = ", "
        for identity, reason in self.refused.items():
            stream.write(mark + json.dumps({identity: {"!": {"": {"e": reason}}}})[1:-1])
            mark = ", "
        stream.write("}")


def small(reading):
    """Give a reading; of one that is large, the beginning, which nobody may take for the whole."""
    length = sum(len(value) for value in reading.values() if isinstance(value, str))
    if length <= LARGE:
        return reading
    kept = {key: value[:BEGINNING] if isinstance(value, str) else value for key, value in reading.items()}
    return dict(kept, cut=length) if "t" in kept else kept
