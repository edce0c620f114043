"""
Secrets that are known by the name before them, in assignments, options, headers, and data of any syntax.

This file imports its neighbours probe_*.py and runs on Python 3.6 and later with the standard library only.
A value that cannot be taken apart is masked to the end of its line: an open quote, an open list.
Sources: HTTP authentication, RFC 9110 11.6; quoting, systemd.syntax(7), bash(1), RFC 8259.
"""

import re

if __package__:
    from .probe_names import (
        HEADER,
        MARKS,
        MASK,
        NONE,
        OPAQUE,
        PASSWORD,
        STRONG,
        TRIGGERS,
        WEAK,
        classify_name,
        is_harmless,
    )
    from .probe_work import any_of, lower
else:
    from probe_names import (
        HEADER,
        MARKS,
        MASK,
        NONE,
        OPAQUE,
        PASSWORD,
        STRONG,
        TRIGGERS,
        WEAK,
        classify_name,
        is_harmless,
    )
    from probe_work import any_of, lower

WINDOW = 4096
_VALUE = 5  # what finding a value costs, in decisions
_QUOTE = r"(?:\\{0,16}[\"'`]|&(?:quot|\#34|\#39|\#x27);|%2[27])"
_SIGN = r"(?:=>|:=|={1,2}|:|%3[da]|\\{1,8}u003[da])"
_AFTER_NAME = (
    r"(?=([\w.\-]{0,128}))\1"
    r"(?![ \t]{1,64}[^\s=:%\\][^\s\"']{0,6}[\s\"'])"  # a short word comes next: what fails below, sooner
    r"(?:((?:"
    + _QUOTE
    + r")?\]?[ \t]{0,64}(?:\n[ \t]{0,64}(?<!\n[ \t]))?"
    + _SIGN
    + r"[ \t]{0,64}|>(?=[^<>\n]{1,512}</))"
    r"|([ \t]{1,64})(?=[^\s\"']{8})(?=[^\s\"']{0,64}[0-9]))"
)
_SKIPPED = r"[\w.\-]{64}(?=[\w.\-]{129})"  # no name in it can reach a sign
_NAMED = re.compile("%s(?:%s|%s)" % (any_of(TRIGGERS), _AFTER_NAME, _SKIPPED))
_FLAG = re.compile(
    r"-(?<![\w\-]-)[a-z0-9.\-]{0,49}?" + any_of(TRIGGERS) + r"(?=([\w\-]{0,64}))\1(?![ \t]{1,8}-)"
    r"(?:" + _QUOTE + r"[ \t]{0,8},[ \t]{0,8}\n?[ \t]{0,64}(?=[\"'\\&])"
    r"|[ \t]{0,8}\\{1,16}[n\n][ \t]{0,64}|[ \t]{1,64}(?!\\{1,16}[n\n]))(?!-)"
)

_OPEN = re.compile(r"(?:[bBrRuUfF]{1,2}|\$)?(\"\"\"|'''|(?:\\{1,16}\"){3}|" + _QUOTE + r")")
_BARE = re.compile(
    r"(?:[^\s\"'`\\<]{1,4096}|\\[^\"'`nrt]|\\(?=[nrt])[nrt](?![\w\s\[]|\Z)|<(?!/?[A-Za-z][A-Za-z0-9]{0,10}[\s/>])){0,1024}",
    re.S,
)
_BARE_QUERY = re.compile(r"[^\s\"'`\\<&#]*")
_HEADER = re.compile(r"[^\"'\n\\<]*")
_COUNT = re.compile(r"[0-9]{1,7}(?=[,;\s]|\Z)")
_BLOCK_SCALAR = re.compile(r"[|>][+\-0-9]{0,2}[ \t]{0,64}\n")
_ESCAPED_BLOCK = re.compile(r"[|>][+\-0-9]{0,2}[ \t]{0,64}\\{1,16}n")
_TO_QUOTE = re.compile(r"[^\"'\n]*")
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
        pattern = re.compile(r"(?:%s|%s|\\{1,64}(?![\\%s])){0,%d}" % (other, escaped, quote, WINDOW))
        _INSIDE[backslashes, quote] = pattern
    return pattern


_LAST = [("", 0, 0)]


def _splice(closer):
    """Give the pattern of what joins two quoted pieces: 'a'\\''b', "a""b"."""
    pattern = _INSIDE.get(closer)
    if pattern is None:
        literal = re.escape(closer)
        pattern = re.compile(r"%s(?:\\{1,16}%s(?:%s)?|%s)" % (literal, re.escape(closer[-1]), literal, literal))
        _INSIDE[closer] = pattern
    return pattern


def _end_of_line(text, start):
    """Find the end of a line; of a line that goes on for megabytes it is found once."""
    whole, begin, end = _LAST[0]
    if whole is text and begin <= start <= end:
        return end
    end = text.find("\n", start)
    end = len(text) if end < 0 else end
    _LAST[0] = (text, start, end) if end - start > WINDOW else ("", 0, 0)
    return end


def _end_of_quoted(text, start, opener):
    """Find where a quoted value ends: at its closing quote, or with its line where there is none."""
    if opener.count('"') + opener.count("'") > 1 or opener[0] in "&%":
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


def hidden(value):
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
    if bare.endswith(tuple(mark[:-1] for mark in MARKS)):
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
    return _HEADER.match(text, start, line).end()


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
        while True:
            spliced = _splice(closer).match(text, end)
            if spliced is None:
                break
            end = _end_of_quoted(text, spliced.end(), closer)
        return inner, end, ""
    if kind == HEADER:
        return start, _header_end(text, start, enclosing if not quoted_name else ""), ""
    first = text[start : start + 1]
    if sign.startswith(">"):
        return start, text.find("<", start), ""
    block = kind >= STRONG and _BLOCK_SCALAR.match(text, start)
    if block:
        return block.end(), max(block.end(), _end_of_block(text, block.end() - 1)), ""
    escaped = kind >= STRONG and _ESCAPED_BLOCK.match(text, start)
    if escaped:
        return escaped.end(), _TO_QUOTE.match(text, escaped.end()).end(), ""
    if first and first in "[{" and not text.startswith(MARKS, start):
        if kind >= STRONG:
            return start, _end_of_bracket(text, start), '"' if quoted_name and sign[0] == '"' else ""
        return start, start, ""
    if enclosing and not quoted_name:
        end = _end_of_quoted(text, start, enclosing)
        if text.startswith(enclosing, end) and "\n" not in text[start:end]:
            return start, end, ""
    end = _bare_end(text, start, name_start)
    return start, end, '"' if quoted_name and sign[0] == '"' and text[start:end] not in MARKS else ""


def mask_named(text, work):
    """Mask the values that stand behind names."""
    return _spans_masked(text, work, _NAMED, _named_span)


def mask_flags(text, work):
    """Mask the words behind telling options."""
    return _spans_masked(text, work, _FLAG, _flag_span) if "-" in text else text


def _spans_masked(text, work, pattern, span_of):
    """Mask what stands behind the matches of a pattern; span_of gives place to go on from, start, end, quotes."""
    low = lower(text)
    parts = []
    done = place = 0
    while True:
        match = pattern.search(low, place)
        if match is None:
            break
        if match.group(1) is None:  # a long word of no interest
            place = match.end()
            continue
        work.left -= 1
        if work.left < 0:
            text = work.cut(text, max(done, match.start()))
            break
        place, start, end, around = span_of(text, match, work)
        if end is not None:
            parts += [text[done:start], around, hidden(text[start:end]), around]
            done = place = end
    if not parts:
        return text
    parts.append(text[done:])
    return "".join(parts)


def _named_span(text, match, work):
    """Give place to go on from, start, end, quotes of a value behind a name; end is None where it is no secret."""
    name_end = match.end(1)
    nothing = (name_end, 0, None, "")
    window = text[max(0, match.start() - 128) : match.start()]
    before = window.rstrip(_NAME_CHARACTERS)
    begin = match.start() - (len(window) - len(before))
    name = text[begin:name_end]
    kind = classify_name(name)
    if kind == WEAK:
        kind = NONE if name in ("PWD", "OLDPWD") else _with_word_before(before, name)
    if kind == NONE:
        return nothing
    sign = match.group(2)
    if kind in (WEAK, STRONG) and sign and _COUNT.match(text, match.end()):
        return nothing
    work.left -= _VALUE
    if sign is None:
        start = match.end()
        if kind in (STRONG, PASSWORD) and text[begin - 1 : begin] not in ("-", "/"):
            end = _bare_end(text, start, begin)
            return (end, start, end, "") if OPAQUE.match(text[start:end]) else nothing
        return nothing
    start, end, around = _span(text, match.end(), begin, kind, sign)
    value = text[start:end]
    scheme = _SCHEME.match(value) if kind == HEADER else None
    if scheme:
        start += scheme.end()
        value = text[start:end]
    place = max(name_end, start)
    if (name in ("PWD", "OLDPWD") and value[:1] == "/") or _shows_nothing(value.strip(), kind, sign):
        return place, 0, None, ""
    return place, start, end, around


def _shows_nothing(value, kind, sign):
    return is_harmless(value, kind, sign) or (MASK in value and not value.strip("[]masked\n "))


def _with_word_before(window, name):
    """Classify a weak name by the word before it, too: "public key", "api key"."""
    word = _WORD_BEFORE.search(window[-20:])
    if word is None:
        return WEAK
    kind = classify_name(word.group(1) + "_" + name)
    return kind if kind == NONE or word.group(1).lower() in ("api", "access", "private", "auth", "license") else WEAK


_WORD_BEFORE = re.compile(r"(?<![A-Za-z])([A-Za-z]{2,16}) \Z")


def _flag_span(text, match, work):
    """Give place to go on from, start, end, quotes of an option's value; end is None where it is no secret."""
    nothing = (match.end(), 0, None, "")
    kind = classify_name(text[match.start() : match.end(1)])
    if kind == NONE:
        return nothing
    work.left -= _VALUE
    opened = _OPEN.match(text, match.end(), match.end() + 24)
    start = opened.end() if opened else match.end()
    end = _end_of_quoted(text, start, opened.group(1)) if opened else _bare_end(text, start, match.start())
    return nothing if is_harmless(text[start:end], max(kind, STRONG)) else (end, start, end, "")
