"""A Hub on loopback, and a client in this process that knows no other."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.hub_server import HubServer


@pytest.fixture
def hub(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[HubServer]:
    """A server; this process's environment leads to it. A module may say ``LFS_ABOVE``."""
    said = getattr(request.module, "LFS_ABOVE", None)
    options = {} if said is None else {"lfs_above": said}
    with HubServer(tmp_path / "hub server", **options) as server:
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("HF_LEROBOT_HOME", str(tmp_path / "home"))
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
        yield server
