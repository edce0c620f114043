"""
The lab by hand: a host that stays up until it is taken down.

    python -m tests.lab up        start it; print its ssh destination, an inventory, and what to try
    python -m tests.lab status    say which are up
    python -m tests.lab down      remove it, and everything that belongs to it
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import click

from .image import LabError, ensure_image, require_root
from .keep import RUN, wait_for_exit
from .nspawn import CONTAINER, ENDPOINT_PORT, NspawnHost

alias_argument = click.argument("alias", default="lab-a")


@click.group(help="A real host to try the plugin against, on this machine. Needs root.")
def main() -> None:
    """Check what every command needs."""
    try:
        require_root()
    except LabError as error:
        raise click.ClickException(str(error)) from None


@main.command(help="Start a host named ALIAS (lab-a) that stays.")
@alias_argument
def up(alias: str) -> None:
    """Start a host in a process of its own, and tell how to reach it."""
    if not _read_note(alias):
        try:
            ensure_image()
        except LabError as error:
            raise click.ClickException(str(error)) from None
        RUN.mkdir(mode=0o755, exist_ok=True)
        log = RUN / f"up-{alias}.log"
        with log.open("wb") as file:
            holder = subprocess.Popen(
                [sys.executable, "-m", "tests.lab", "hold", alias],
                cwd=Path(__file__).parents[2],
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        while not _read_note(alias):
            if holder.poll() is not None:
                raise click.ClickException(f"{alias} did not come up:\n{log.read_text()}")
            time.sleep(0.05)
    note = _read_note(alias)
    assert note is not None
    click.echo(
        f"{alias} is up: {note['destination']}, container {CONTAINER} with infer.service on port {ENDPOINT_PORT}\n\n"
        f"  ssh -F {note['ssh_config']} {alias}\n"
        f"  ssh -F {note['ssh_config']} {alias}-ct{CONTAINER}\n\n"
        f"  pytest --gpu-ssh-config={note['ssh_config']} --gpu-host={note['destination']}\n"
        f"  pytest --gpu-ssh-config={note['ssh_config']} --gpu-inventory={note['inventory']} --gpu-host={alias}\n\n"
        f"Inventory, {note['inventory']}:\n\n{Path(note['inventory']).read_text()}\n"
        f"Remove it with: python -m tests.lab down {alias}"
    )


@main.command(help="Say which hosts are up.")
def status() -> None:
    """Print a line for each host that stays."""
    notes = [note for path in sorted(RUN.glob("up-*.json")) if (note := _read_note(path.stem.removeprefix("up-")))]
    for note in notes:
        click.echo(f"{note['alias']} is up: {note['destination']}, ssh -F {note['ssh_config']} {note['alias']}")
    if not notes:
        click.echo("no host is up")


@main.command(help="Remove the host named ALIAS (lab-a).")
@alias_argument
def down(alias: str) -> None:
    """End the process that holds the host, which removes it."""
    note = _read_note(alias)
    if note is None:
        raise click.ClickException(f"{alias} is not up")
    os.kill(note["pid"], signal.SIGTERM)
    wait_for_exit([note["pid"]], 20)
    click.echo(f"{alias} is gone")


@main.command(hidden=True)
@alias_argument
def hold(alias: str) -> None:
    """Keep a host until SIGTERM."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    path = RUN / f"up-{alias}.json"
    with NspawnHost(alias) as host:
        inventory = host.folder / "gpuinfra.toml"
        inventory.write_text(f'[hosts.{alias}]\naddress = "{host.destination}"\n')
        note = {
            "alias": alias,
            "pid": os.getpid(),
            "destination": host.destination,
            "ssh_config": str(host.ssh_config),
            "inventory": str(inventory),
        }
        try:
            part = path.with_suffix(".part")
            part.write_text(json.dumps(note))
            part.rename(path)
            while True:
                signal.pause()
        finally:
            path.unlink(missing_ok=True)
            path.with_suffix(".log").unlink(missing_ok=True)


def _read_note(alias: str) -> dict[str, Any] | None:
    """Give what the holder of a host wrote about it, or None if there is no holder."""
    with contextlib.suppress(OSError, ValueError):
        note: dict[str, Any] = json.loads((RUN / f"up-{alias}.json").read_text())
        if "tests.lab" in Path(f"/proc/{note['pid']}/cmdline").read_text():
            return note
    return None


main(prog_name="python -m tests.lab")
