"""A TCP relay that adds a delay each way: the latency of a network, where the kernel has no netem."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from types import TracebackType
from typing import Self


class Relay:
    """
    Listens on loopback and passes everything on, late.

    Making a connection costs one more round trip, as over a real network.

    Args:
        host: Where to pass it on to. port: Its TCP port.
        one_way_s: Delay each way, seconds.

    Attributes:
        port: Port on loopback.
    """

    def __init__(self, host: str, port: int, one_way_s: float) -> None:
        self._target = (host, port)
        self._one_way_s = one_way_s
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self.port = 0

    def __enter__(self) -> Self:
        self._thread.start()
        start = asyncio.start_server(self._serve, "127.0.0.1", 0)
        self._server = asyncio.run_coroutine_threadsafe(start, self._loop).result(5)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._loop.call_soon_threadsafe(self._server.close)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(5)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(2 * self._one_way_s)
        other_reader, other_writer = await asyncio.open_connection(*self._target)
        await asyncio.gather(self._pass_on(reader, other_writer), self._pass_on(other_reader, writer))

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        waiting: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()

        async def deliver() -> None:
            while True:
                due, data = await waiting.get()
                await asyncio.sleep(max(0.0, due - self._loop.time()))
                if not data:
                    break
                writer.write(data)
                await writer.drain()
            writer.close()

        task = asyncio.create_task(deliver())
        with contextlib.suppress(OSError):
            while True:
                data = await reader.read(65536)
                waiting.put_nowait((self._loop.time() + self._one_way_s, data))
                if not data:
                    break
        with contextlib.suppress(OSError):
            await task
