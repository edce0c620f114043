"""The probe as one text, its modules in front; it runs wherever exec() runs it as __main__."""

from __future__ import annotations

from functools import cache
from pathlib import Path

HERE = Path(__file__).parent
MODULES = ("as_process", "probe_mask", "probe_reading", "probe_service", "probe_inside")


@cache
def probe_text() -> str:
    """Give the probe's text."""
    modules = {name: (HERE / f"{name}.py").read_text(encoding="utf-8") for name in MODULES}
    main = (HERE / "probe.py").read_text(encoding="utf-8")
    return (
        "import sys, types\n"
        f"for _name, _text in {modules!r}.items():\n"
        "    _module = types.ModuleType(_name)\n"
        "    sys.modules[_name] = _module\n"
        "    exec(compile(_text, '<pytest-gpuinfra ' + _name + '.py>', 'exec'), _module.__dict__)\n"
        f"exec(compile({main!r}, '<pytest-gpuinfra probe.py>', 'exec'))\n"
    )
