"""README's table of options, made of their declarations (pytest_gpuinfra/options.py)."""

from __future__ import annotations

import re

from pytest_gpuinfra.options import Option, declared

_BEGIN = "<!-- Made of pytest_gpuinfra/options.py by `python -m docs.generate`; edit that. -->\n"
_END = "\n<!-- End of what is made. -->"


def with_options(readme: str) -> str:
    """Give the README with its table of options made anew, between the two comments."""
    before, begin, rest = readme.partition(_BEGIN)
    _, end, after = rest.partition(_END)
    if not (begin and end):
        raise ValueError("README.md has lost the comments around its table of options")
    rows = [
        f"| `{_written(option)}` | {_cell(option.help % {'default': default})} |"
        for _, _, default, option in declared()
    ]
    return "\n".join([before + _BEGIN, "| option | |", "|---|---|", *rows]) + "\n" + _END + after


def _written(option: Option) -> str:
    choices = option.how.get("choices")
    value = option.how.get("metavar") or ("{" + ",".join(choices) + "}" if choices else "")
    return f"{option.name}={value}" if value else option.name


def _cell(text: str) -> str:
    """Write an option's help as Markdown: words in quotes and options as code, our pages as links."""
    text = re.sub(r"(?<!\w)'([^' ]+)'(?!\w)", r"`\1`", text)
    text = re.sub(r"(?<![`\w-])(--gpu-[\w-]+(?:=\w+)?)", r"`\1`", text)
    return re.sub(r"\b(docs/\w+\.md)", r"[\1](\1)", text).replace("|", "\\|")
