"""A program for the target and the modules that it imports, as one text that runs wherever exec() runs it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path

HERE = Path(__file__).parent


def _source(name: str) -> str:
    (file,) = HERE.rglob(f"{name}.py")  # modules import each other by name alone, wherever they stand here
    return file.read_text(encoding="utf-8")


@cache
def packed(modules: Sequence[str], main: str) -> str:
    """
    Give a program as one Python source.

    Each module has the sources of all of them, by name, as `SOURCES`.

    Args:
        modules: Names of the modules, each after those that it imports; a tuple.
        main: Name of the program.
    """
    texts = {name: _source(name) for name in modules}
    program = _source(main)
    return (
        "import sys, types\n"
        f"_sources = {texts!r}\n"
        "for _name, _text in _sources.items():\n"
        "    _module = types.ModuleType(_name)\n"
        "    sys.modules[_name] = _module\n"
        "    exec(compile(_text, '<pytest-gpuinfra ' + _name + '.py>', 'exec'), _module.__dict__)\n"
        "    _module.SOURCES = _sources\n"
        f"exec(compile({program!r}, '<pytest-gpuinfra {main}.py>', 'exec'))\n"
    )
