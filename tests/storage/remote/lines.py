"""A server of connections, each served by a thread of its own; what it says is a test's matter."""

from __future__ import annotations

import contextlib
import socket
import threading


class LineServer:
    """Takes connections on this machine.

    Attributes:
        port: Where.
        connections: How many it has taken.
    """

    def __init__(self):
        self._socket = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.port = self._socket.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}/object"
        self.connections = 0
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self):
        while True:
            try:
                line, _ = self._socket.accept()
            except OSError:
                return
            self.connections += 1
            threading.Thread(target=self._serve, args=(line,), daemon=True).start()

    def _serve(self, line):
        with line, contextlib.suppress(OSError):
            self.serve(line)

    def serve(self, line):
        """Read requests and answer them, until the connection is to be closed."""
        raise NotImplementedError

    def close(self):
        """Take no more connections."""
        self._socket.close()
