"""How a session begins: options and inventory say which hosts are meant, and logins begin before all else is ready."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpuinfra.options import Settings, settings_of
from pytest_gpuinfra.session.stash import INTERRUPTS, SESSION, WORKER_KEY

if TYPE_CHECKING:
    from pytest_gpuinfra.connection.ssh import SshConnection
    from pytest_gpuinfra.record.recording import Recording
    from pytest_gpuinfra.session.session import Session


def begin(config: pytest.Config) -> Session | None:
    """
    Make the session, once; None without `--gpu-host`.

    Raises:
        pytest.UsageError: An option, the inventory or a recording is wrong, or no such host is known.
    """
    settings = settings_of(config)
    if not settings.names or SESSION in config.stash:
        return config.stash.get(SESSION, None)
    from pytest_gpuinfra.session.interrupt import Interrupts

    _refuse_reboot(config, settings, {})
    if settings.ssh_config and os.path.exists(settings.ssh_config) and not os.path.isfile(settings.ssh_config):
        raise pytest.UsageError(f"gpuinfra: --gpu-ssh-config={settings.ssh_config}: is no regular file")
    early = _open_early(config, settings)
    try:
        session = _read(config, settings)
    except BaseException:
        if early:
            from pytest_gpuinfra.connection.ssh import close_sockets

            for connection in early.values():
                connection.close()
            close_sockets()
        raise
    config.stash[SESSION] = session
    config.stash[INTERRUPTS] = Interrupts(session)
    if not hasattr(config, "workerinput") and not config.option.help:
        session.captures.open_early(early)
    return session


def _refuse_reboot(config: pytest.Config, settings: Settings, ways: dict[str, str]) -> None:
    """End in a usage error where `--gpu-reboot` was asked for and may not be; `ways`: how each host is reached."""
    if not settings.reboot or config.option.help:
        return
    from pytest_gpuinfra.gather.reboot import refusal

    why = refusal(settings.level, only_collects=config.option.collectonly, hosts=ways)
    if why:
        raise pytest.UsageError(f"gpuinfra: {why}")


def _open_early(config: pytest.Config, settings: Settings) -> dict[str, SshConnection]:
    """
    Begin to log in where no inventory has a say, before all that is imported below.

    Of many hosts, and with workers, a connection begins and ends with its capture; of a share, others are named, too.
    """
    if hasattr(config, "workerinput") or config.option.help or settings.inventory or settings.shard:
        return {}
    if not settings.keep_connections or len(settings.names) > settings.parallel:
        return {}
    if config.hook.pytest_gpuinfra_inventory.get_hookimpls():
        return {}
    from pytest_gpuinfra.session.early import open_plain_destinations
    from pytest_gpuinfra.session.inventory_place import FILE_NAME, inventory_folder, inventory_folders

    return open_plain_destinations(
        settings.names,
        inventory_folder(inventory_folders(config.invocation_params.dir, config.rootpath)) / FILE_NAME,
        ssh_config=settings.ssh_config,
        sudo=settings.sudo,
        connect_timeout_s=settings.connect_timeout_s,
    )


def _read(config: pytest.Config, settings: Settings) -> Session:
    from pytest_gpuinfra.errors import GpuInfraError
    from pytest_gpuinfra.record.recording import read_recording
    from pytest_gpuinfra.session.session import Session

    if settings.after_reboot and not (settings.baseline or settings.reboot):
        raise pytest.UsageError("gpuinfra: --gpu-after-reboot needs --gpu-baseline=FILE, which knows the boot before")
    worker: dict[str, Any] | None = getattr(config, "workerinput", None)
    try:
        old = read_recording(config.invocation_params.dir / settings.baseline) if settings.baseline else None
        if worker is not None:
            session = Session(settings, {}, old=old)
            session.handover.take(worker[WORKER_KEY])
        else:
            session = _select(config, settings, old)
    except GpuInfraError as error:
        from pytest_gpuinfra.visible import visible

        raise pytest.UsageError(f"gpuinfra: {visible(str(error))}") from None
    session.baseline.list_areas(session.hosts.values())
    return session


def _select(config: pytest.Config, settings: Settings, old: Recording | None) -> Session:
    from pytest_gpuinfra.session.inventory_place import inventory_folder, inventory_folders, missing_text
    from pytest_gpuinfra.session.select import find_inventory, hosts_of_share, join_inventory, select_hosts
    from pytest_gpuinfra.session.session import Session

    folders = inventory_folders(config.invocation_params.dir, config.rootpath)
    inventory, source = find_inventory(settings.inventory, inventory_folder(folders))
    no_inventory = "" if source else missing_text(folders)
    for more in config.hook.pytest_gpuinfra_inventory(config=config):
        inventory = join_inventory(inventory, more)
    selected = named = select_hosts(settings.names, inventory, source)
    share_of = ""
    if settings.shard:
        share, shares = settings.shard
        selected = hosts_of_share(named, share, shares)
        share_of = f"share {share}/{shares}, {len(selected)} of {len(named)} hosts"
    _refuse_reboot(config, settings, {host.alias: host.way for host in selected})
    hosts = {host.alias: host for host in selected}
    return Session(settings, hosts, inventory.collectives, old, share_of, no_inventory)
