"""The command line `gpuinfra`: what is not a test run."""

from __future__ import annotations

import json

import click

from pytest_gpuinfra import __version__


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="gpuinfra")
def main() -> None:
    """
    Tools around `pytest --gpu-host=HOST`, which judges hosts.

    Hosts and what is expected of them stand in gpuinfra.toml.
    """


@main.command()
def schema() -> None:
    """Print the inventory's JSON Schema, for editors and for looking up legal keys."""
    from pytest_gpuinfra.inventory import json_schema

    click.echo(json.dumps(json_schema(), indent=2))


@main.command()
@click.argument("file", type=click.Path(), default="gpuinfra.toml")
def check(file: str) -> None:
    """Check an inventory without touching any host; exit status 2 if it is wrong."""
    from pathlib import Path

    from pytest_gpuinfra.errors import InventoryError
    from pytest_gpuinfra.inventory import read_inventory

    try:
        inventory = read_inventory(Path(file))
    except InventoryError as error:
        raise click.UsageError(str(error)) from None
    for alias, host in inventory.hosts.items():
        devices = sum(len(row.pci) for row in host.expect.devices)
        click.echo(f"{alias}: {devices} devices expected" if devices else f"{alias}: no device expected")
        for warning in host.expect.warnings():
            click.echo(f"  warning: {warning}")
