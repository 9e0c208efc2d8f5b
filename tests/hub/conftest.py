"""A Hub on loopback, and a client in this process that knows no other."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from demoreel.testing.hub_server import HubServer


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HubServer]:
    """A server; this process's environment leads to it."""
    with HubServer(tmp_path / "hub server") as server:
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("HF_LEROBOT_HOME", str(tmp_path / "home"))
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
        yield server
