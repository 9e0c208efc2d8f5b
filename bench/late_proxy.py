"""Processes that share a port and pass bytes on to a server, requests late.

The proxy of the tests reads every request, which one process does for 2,000 of them a second; these
read nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

PROCESSES = 4


@contextlib.contextmanager
def late(endpoint: str, seconds: float) -> Iterator[str]:
    """Run the processes before a server, and give the address to ask instead of it."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, __file__, str(port), endpoint.rpartition("/")[2], str(seconds)]
    processes = [subprocess.Popen(command) for _ in range(PROCESSES)]
    try:
        while any(process.poll() is None for process in processes):
            time.sleep(0.5)
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
                break
        yield f"http://127.0.0.1:{port}"
    finally:
        for process in processes:
            process.kill()
            process.wait()


async def pass_on(port: int, host: str, server: int, seconds: float) -> None:
    """Listen, and pass on until killed."""
    loop = asyncio.get_running_loop()

    class Answers(asyncio.Protocol):
        def __init__(self, client: asyncio.Transport) -> None:
            self.client = client

        def data_received(self, data: bytes) -> None:
            self.client.write(data)

        def connection_lost(self, exc: Exception | None) -> None:
            self.client.close()

    class Requests(asyncio.Protocol):
        def connection_made(self, transport: Any) -> None:
            made = loop.create_connection(lambda: Answers(transport), host, server)
            self.server = asyncio.ensure_future(made)

        def data_received(self, data: bytes) -> None:
            loop.call_later(seconds, self.send, data)

        def send(self, data: bytes) -> None:
            self.server.add_done_callback(lambda made: made.result()[0].write(data))

        def connection_lost(self, exc: Exception | None) -> None:
            self.server.add_done_callback(lambda made: made.result()[0].close())

    listener = await loop.create_server(Requests, "127.0.0.1", port, reuse_port=True)
    await listener.serve_forever()


if __name__ == "__main__":
    upstream, _, number = sys.argv[2].partition(":")
    asyncio.run(pass_on(int(sys.argv[1]), upstream, int(number), float(sys.argv[3])))
