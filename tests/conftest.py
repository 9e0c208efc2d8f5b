"""Shared fixtures: datasets written by other tools, and copies of them to break."""

from __future__ import annotations

import shutil
import signal
from pathlib import Path

import pytest
from hypothesis import settings

# How long an example takes says more about the machine than about the code.
settings.register_profile("demoreel", deadline=None)
settings.load_profile("demoreel")

# Whoever runs the tests in the background may have Ctrl-C ignored, and programs inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)

FIXTURES = Path(__file__).resolve().parents[2] / "shared" / "fixtures"


@pytest.fixture(scope="session")
def fixtures() -> Path:
    """The datasets that real tools wrote; an outside user's checkout has none."""
    if not FIXTURES.is_dir():
        pytest.skip("../shared/fixtures is not there")
    return FIXTURES


@pytest.fixture
def copy_of(fixtures: Path, tmp_path: Path):
    """A function that copies a fixture to a folder that a test may damage."""

    def copy(name: str) -> Path:
        target = tmp_path / name
        shutil.copytree(fixtures / name, target)
        for path in target.rglob("*"):
            path.chmod(0o755 if path.is_dir() else 0o644)
        target.chmod(0o755)
        return target

    return copy
