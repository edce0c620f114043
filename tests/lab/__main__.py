"""
The lab by hand: a host that stays up until it is taken down.

    python -m tests.lab up          start it; print its ssh destination, an inventory, and what to try
    python -m tests.lab up --vm     the same for the virtual machine with an IOMMU
    python -m tests.lab status      say which are up
    python -m tests.lab down        remove them, and everything that belongs to them
    python -m tests.lab packages    install the Debian packages that the lab needs on this machine
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

from .host_files import CONTAINER
from .image import HERE, LabError, ensure_image, install_packages, read_headings, require_root
from .judge import AREAS, write_inventory
from .keep import RUN, wait_for_exit
from .nspawn import ENDPOINT_PORT, NspawnHost
from .vm import LabVm, ensure_disk

CHECKOUT = HERE.parents[1]
ABOUT = {
    "nspawn": f"made GPUs; container {CONTAINER} with infer.service on port {ENDPOINT_PORT}",
    "vm": "a virtual machine with an Intel IOMMU, and devices that stand for GPUs",
}
TRY = {"nspawn": "systemctl stop gpu-persistence", "vm": "echo 1 >/sys/bus/pci/devices/0000:42:00.0/remove"}
vm_option = click.option("--vm", is_flag=True, help="The virtual machine rather than the booted container.")


@click.group(help="A real host to try the plugin against, on this machine. Needs root.")
def main() -> None:
    """Check what every command needs."""
    try:
        require_root()
    except LabError as error:
        raise click.ClickException(str(error)) from None


@main.command(help="Start a host named ALIAS (lab-a, or lab-vm with --vm) that stays.")
@click.argument("alias", default="")
@vm_option
def up(alias: str, vm: bool) -> None:
    """Start a host in a process of its own, and tell how to reach it."""
    alias = alias or ("lab-vm" if vm else "lab-a")
    if not _read_note(alias):
        try:
            image = ensure_image()
            if vm:
                install_packages("controller-vm")
                ensure_disk(image)
                click.echo("booting the virtual machine: a minute or more", err=True)
        except LabError as error:
            raise click.ClickException(str(error)) from None
        RUN.mkdir(mode=0o755, exist_ok=True)
        log = RUN / f"up-{alias}.log"
        with log.open("wb") as file:
            holder = subprocess.Popen(
                [sys.executable, "-m", "tests.lab", "hold", alias, *(["--vm"] if vm else [])],
                cwd=CHECKOUT,
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
    ssh = f"ssh -F {note['ssh_config']} {alias}"
    suites = " ".join(str(CHECKOUT / "suites" / area) for area in AREAS)
    click.echo(
        f"{alias} is up: {note['destination']}, {ABOUT[note['tier']]}\n\n"
        f"Log in:\n  {ssh}\n"
        + (f"  {ssh}-ct{CONTAINER}\n" if note["tier"] == "nspawn" else "")
        + f"Judge it:\n  pytest --gpu-ssh-config={note['ssh_config']} --gpu-inventory={note['inventory']}"
        f" --gpu-host={alias} {suites}\n"
        f"Break something, and judge it again:\n  {ssh} '{TRY[note['tier']]}'\n"
        f"Remove it:\n  python -m tests.lab down {alias}\n\n"
        f"Inventory, {note['inventory']}:\n\n{Path(note['inventory']).read_text()}"
    )


@main.command(help="Say which hosts are up.")
def status() -> None:
    """Print a line for each host that stays."""
    notes = _read_notes()
    for note in notes:
        click.echo(f"{note['alias']} is up: {note['destination']}, ssh -F {note['ssh_config']} {note['alias']}")
    if not notes:
        click.echo("no host is up")


@main.command(help="Remove the host named ALIAS; all hosts that stay, without it.")
@click.argument("alias", default="")
def down(alias: str) -> None:
    """End the processes that hold hosts, which removes these."""
    notes = [note for note in _read_notes() if alias in ("", note["alias"])]
    if not notes:
        raise click.ClickException(f"{alias or 'no host'} is {'not ' if alias else ''}up")
    for note in notes:
        os.kill(note["pid"], signal.SIGTERM)
    for note in notes:
        wait_for_exit([note["pid"]], 20)
        click.echo(f"{note['alias']} is gone")


@main.command(help="Install the Debian packages that the lab needs on this machine.")
def packages() -> None:
    """Install what `packages.txt` lists under its headings for this machine."""
    try:
        install_packages(*(heading for heading in read_headings() if heading.startswith("controller")))
    except LabError as error:
        raise click.ClickException(str(error)) from None


@main.command(hidden=True)
@click.argument("alias")
@vm_option
def hold(alias: str, vm: bool) -> None:
    """Keep a host until SIGTERM."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    path = RUN / f"up-{alias}.json"
    tier = "vm" if vm else "nspawn"
    try:
        with LabVm(alias) if vm else NspawnHost(alias) as host:
            note = {
                "alias": alias,
                "tier": tier,
                "pid": os.getpid(),
                "destination": host.destination,
                "ssh_config": str(host.ssh_config),
                "inventory": str(write_inventory(host, tier, host.folder / "gpuinfra.toml")),
            }
            part = path.with_suffix(".part")
            part.write_text(json.dumps(note))
            part.rename(path)
            while True:
                signal.pause()
    finally:
        path.unlink(missing_ok=True)
        if sys.exc_info()[0] is SystemExit:  # else it says why the host did not come up
            path.with_suffix(".log").unlink(missing_ok=True)


def _read_notes() -> list[dict[str, Any]]:
    return [note for path in sorted(RUN.glob("up-*.json")) if (note := _read_note(path.stem.removeprefix("up-")))]


def _read_note(alias: str) -> dict[str, Any] | None:
    """Give what the holder of a host wrote about it, or None if there is no holder."""
    with contextlib.suppress(OSError, ValueError):
        note: dict[str, Any] = json.loads((RUN / f"up-{alias}.json").read_text())
        if "tests.lab" in Path(f"/proc/{note['pid']}/cmdline").read_text():
            return note
    return None


main(prog_name="python -m tests.lab")
