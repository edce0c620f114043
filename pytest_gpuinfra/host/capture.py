"""The capture of a host and of its container: one round trip; two where the container has an ssh address of its own."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor

from pytest_gpuinfra.capture.capture import Capture, Request, inside, take_capture
from pytest_gpuinfra.connection.local import LocalConnection
from pytest_gpuinfra.connection.nested import connect_container
from pytest_gpuinfra.connection.protocol import Connection
from pytest_gpuinfra.connection.ssh import SshConnection
from pytest_gpuinfra.host.facts import requests_for
from pytest_gpuinfra.host.requests import requests_inside, requests_on_host
from pytest_gpuinfra.inventory.inventory import HostSpec, container_of


def requests_of(spec: HostSpec, *, deadline_s: float = 60.0) -> list[Request]:
    """Give what the checks of a host, its container and its service need on the host."""
    return [*requests_for(spec.expect), *requests_on_host(spec, deadline_s=deadline_s)]


def capture_host(
    connection: Connection, spec: HostSpec, extra: Iterable[Request], *, reached_by: str, timeout_s: float
) -> Capture:
    """
    Ask a host, and its container, everything.

    A host that cannot be reached gives a capture that says why, and so does a container.
    """
    requests = [*requests_of(spec, deadline_s=timeout_s), *extra]
    container = container_of(spec)
    own_address = container is not None and not container.enter
    if container is None or not own_address or not isinstance(connection, (LocalConnection, SshConnection)):
        return take_capture(connection, requests, reached_by=reached_by, timeout_s=timeout_s)
    inner = connect_container(connection, container)
    asked = requests_inside(spec)
    try:
        with ThreadPoolExecutor(1) as pool:
            more = pool.submit(take_capture, inner, asked, reached_by=f"ssh {container.name}", timeout_s=timeout_s)
            capture = take_capture(connection, requests, reached_by=reached_by, timeout_s=timeout_s)
            return join_inside(capture, more.result(), ("ssh", container.name), asked)
    finally:
        inner.close()


def join_inside(capture: Capture, more: Capture, enter: tuple[str, ...], asked: list[Request]) -> Capture:
    """Put the capture of a container with an address of its own beside its host's."""
    session = {"e": more.error[1]} if more.error else {"t": f"python {more.python}"}
    return dataclasses.replace(
        capture,
        requests=(*capture.requests, inside("inside", enter, asked)),
        answers={**capture.answers, **more.answers, "inside": {"": {"session": session}}},
        round_trips=capture.round_trips + more.round_trips,
    )
