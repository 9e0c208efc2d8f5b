"""Shared fixtures: datasets written by other tools, and copies of them to break."""

from __future__ import annotations

import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
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


@pytest.fixture
def mounted(tmp_path: Path) -> Iterator[Callable[[str], Path]]:
    """A function that mounts a disk of a size (``"2m"``) in memory and returns its folder."""
    folders = []

    def mount(size: str) -> Path:
        folder = tmp_path / f"disk-{len(folders)}"
        folder.mkdir()
        command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
        if subprocess.run(command, capture_output=True, check=False).returncode:
            pytest.skip("this user may not mount a disk")
        folders.append(folder)
        return folder

    yield mount
    for folder in folders:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def assert_same(left, right):
    """Assert that two items hold the same: keys, dtypes, values."""
    import torch

    assert set(left) == set(right)
    for key, value in right.items():
        if isinstance(value, torch.Tensor):
            assert left[key].dtype == value.dtype, key
            assert torch.equal(left[key], value), key
        else:
            assert left[key] == value, key
