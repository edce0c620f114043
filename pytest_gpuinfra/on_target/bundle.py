"""Programs for the target, each with the modules that it imports, as one text that runs wherever exec() runs it."""

from __future__ import annotations

from functools import cache
from pathlib import Path

HERE = Path(__file__).parent
_MASKING = ("probe_names", "probe_work", "probe_forms", "probe_scan", "probe_tools", "probe_mask")
_RIGHTS = ("safe_path", "as_process")
_CREW = (*_RIGHTS, "supervisor", "crew", "arm", "driver")
_COPIES = (*_CREW, "log_mark", "copy_tasks", "device_memory", "copy_buffers", "ipc_helper", "pairs")
PROGRAMS = {
    "runner": ("safe_path",),
    "launch": _RIGHTS,
    "tunnel": (),
    "probe": (
        *(*_RIGHTS, *_MASKING, "probe_environ", "probe_bounds", "probe_answer"),
        *("probe_reading", "probe_service", "probe_inside"),
    ),
    "sampler": ("safe_path", *_MASKING, "probe_bounds"),
    "cuda_program": (*_COPIES, "collective", "program"),
    "torch_program": (*_COPIES, "torch_sums", "program"),
    "hosts_program": (*_CREW, "device_memory", "torch_sums", "meeting"),
}
"""The modules of each program, each after those that it imports."""


def _source(name: str) -> str:
    (file,) = HERE.rglob(f"{name}.py")  # modules import each other by name alone, wherever they stand here
    return file.read_text(encoding="utf-8")


@cache
def packed(program: str) -> str:
    """Give one of PROGRAMS as one Python source; each module has the sources of all of them, by name, as `SOURCES`."""
    texts = {name: _source(name) for name in PROGRAMS[program]}
    return (
        "import sys, types\n"
        f"_sources = {texts!r}\n"
        "for _name, _text in _sources.items():\n"
        "    _module = types.ModuleType(_name)\n"
        "    sys.modules[_name] = _module\n"
        "    exec(compile(_text, '<pytest-gpuinfra ' + _name + '.py>', 'exec'), _module.__dict__)\n"
        "    _module.SOURCES = _sources\n"
        f"exec(compile({_source(program)!r}, '<pytest-gpuinfra {program}.py>', 'exec'))\n"
    )
