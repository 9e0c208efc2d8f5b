"""The command, in this process or in one of its own, on small datasets made to order."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from demoreel.testing import make_dataset
from support.command import environment, run_here, show_here

COMMAND = [sys.executable, "-m", "demoreel"]
FRONT, WRIST = "observation.images.front", "observation.images.wrist"
DEPTH = "observation.depth.front"
LENGTHS = [8, 12, 5]

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="session")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three episodes, two cameras of different sizes, a depth camera, two tasks."""
    return make_dataset(
        tmp_path_factory.mktemp("cli") / "kitchen",
        episodes=LENGTHS,
        cameras={FRONT: (96, 128), WRIST: (64, 64)},
        depth_cameras={DEPTH: (48, 64)},
        tasks=("pick it", "放下"),
    )


@pytest.fixture(scope="session")
def one_camera(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two short episodes, one camera, v2.1."""
    return make_dataset(
        tmp_path_factory.mktemp("cli") / "plain", episodes=[6, 4], cameras=1, layout="v2.1"
    )


@pytest.fixture(scope="session")
def run() -> Run:
    """A function that runs the command in this process: what it printed and how it ended."""
    return run_here


@pytest.fixture(scope="session")
def show() -> Callable[..., str]:
    """A function that runs the command in this process and returns what a terminal would show."""
    return show_here


@pytest.fixture(scope="session")
def run_process() -> Run:
    """A function that runs the command in a process of its own."""

    def run_process(*arguments: object, **variables: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*COMMAND, *map(str, arguments)],
            env=environment(**variables),
            capture_output=True,
            text=True,
            encoding="utf-8",
            timeout=120,
            check=False,
        )

    return run_process


@pytest.fixture(scope="session")
def run_in_terminal() -> Callable[..., str]:
    """A function that runs the command in a terminal of 80 columns and returns what it shows."""

    def run(*arguments: object, **variables: str) -> str:
        outer, inner = pty.openpty()
        settings = {"TERM": "xterm-256color", "COLUMNS": "80", **variables}
        process = subprocess.Popen(
            [*COMMAND, *map(str, arguments)],
            env=environment(**settings),
            stdin=inner,
            stdout=inner,
            stderr=inner,
        )
        os.close(inner)
        shown = b""
        while True:
            try:
                part = os.read(outer, 65536)
            except OSError:  # Linux says so when the other side has closed
                break
            if not part:
                break
            shown += part
        os.close(outer)
        process.wait(timeout=60)
        return shown.decode()

    return run
