"""Where the endpoint is, and the key to it."""

from __future__ import annotations

import os
from collections.abc import Generator

import httpx

from pytest_gpuinfra.errors import EndpointError


class KeyFor(httpx.Auth):
    """Sends the API key to one origin, and to no other that a request may name."""

    def __init__(self, origin: httpx.URL, secret: str) -> None:
        self._origin = (origin.scheme, origin.host, origin.port)
        self._secret = secret

    def __repr__(self) -> str:
        return "KeyFor(***)"

    def auth_flow(self, request: httpx.Request) -> Generator[httpx.Request, httpx.Response, None]:
        """Put the key on the request."""
        if (request.url.scheme, request.url.host, request.url.port) == self._origin:
            request.headers["authorization"] = f"Bearer {self._secret}"
        yield request


def parse_address(text: str) -> httpx.URL:
    """
    Read a base URL; a "/v1" at its end is taken off.

    Raises:
        EndpointError: It is none.
    """
    try:
        url = httpx.URL(text)
    except httpx.InvalidURL as error:
        raise EndpointError(f"{text!r} is no address: {error}") from None
    if url.scheme not in ("http", "https") or not url.host:
        raise EndpointError(f"{text!r} is no address", remedy='write it like "http://127.0.0.1:30000"')
    if not 0 < port_in(url) < 65536:
        raise EndpointError(f"{text!r} is no address: there is no port {url.port}")
    return url.copy_with(path=url.path.rstrip("/").removesuffix("/v1") or "/")


def port_in(url: httpx.URL) -> int:
    """Give the port of an address, which may stand for itself."""
    return (443 if url.scheme == "https" else 80) if url.port is None else url.port


def read_secret(name: str | None) -> str:
    """
    Read the API key from an environment variable; "" without a name.

    Raises:
        EndpointError: The variable is not set.
    """
    if name is None:
        return ""
    value = os.environ.get(name, "")
    if not value:
        raise EndpointError(f"the environment variable {name} is not set", remedy=f"export {name}=... and run again")
    return value
