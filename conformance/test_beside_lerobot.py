"""demoreel beside lerobot, in one process and under `lerobot-train`. `make conformance` runs it.

lerobot's environment holds what demoreel needs too, in lerobot's own versions (Python 3.12, PyAV
15); demoreel comes from this checkout. What is checked there is in `beside_lerobot.py`.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Mapping

import pytest
from asking_lerobot import FIXTURES, HERE
from beside_lerobot import CHECKS

Losses = list[tuple[str, ...]]


@pytest.fixture(scope="session")
def results(
    lerobot_python: str,
    beside_lerobot: Mapping[str, str],
    tmp_path_factory: pytest.TempPathFactory,
) -> dict[str, str]:
    if not FIXTURES.is_dir():
        pytest.skip(f"{FIXTURES} does not exist")
    out = tmp_path_factory.mktemp("beside") / "results.json"
    subprocess.run(
        [lerobot_python, HERE / "beside_lerobot.py", FIXTURES, out],
        env={**os.environ, **beside_lerobot},
        check=True,
    )
    found: dict[str, str] = json.loads(out.read_text())
    return found


@pytest.mark.parametrize("check", CHECKS)
def test_in_one_process(results: dict[str, str], check: str) -> None:
    assert results[check] == "passed", results[check]


@pytest.mark.parametrize(("name", "workers"), [("g1_lance_video", 0), ("g1_lance_native", 1)])
def test_the_same_losses(
    train: Callable[..., Losses], losses_of_lerobot: Losses, name: str, workers: int
) -> None:
    assert train(FIXTURES / name, workers=workers) == losses_of_lerobot
