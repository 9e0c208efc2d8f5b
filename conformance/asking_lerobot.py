"""Ask lerobot in its own process to do jobs (`lerobot_jobs.py`), and compare with its answers."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lerobot_answers import describe_like

HERE = Path(__file__).resolve().parent
FIXTURES = Path(os.environ.get("DEMOREEL_FIXTURES") or HERE.parents[1] / "shared" / "fixtures")

Jobs = dict[str, dict[str, Any]]
Answers = dict[str, Any]


class Asked:
    """A process that is at work on jobs; several may be at a time."""

    def __init__(self, python: str | Path, jobs: Jobs, environment: Mapping[str, str]) -> None:
        self._scratch = tempfile.TemporaryDirectory(prefix="lerobot-jobs-")
        folder = Path(self._scratch.name)
        (folder / "jobs.json").write_text(json.dumps(jobs))
        self._out = folder / "answers.json"
        self._process = subprocess.Popen(
            [python, HERE / "lerobot_jobs.py", folder / "jobs.json", self._out],
            # No tables that were cached by an earlier run.
            env={**os.environ, "HF_DATASETS_CACHE": str(folder), **environment},
            stdout=subprocess.DEVNULL,
        )

    def answers(self) -> dict[str, Answers]:
        """Wait for the end, and return the answers by job."""
        with self._scratch:
            assert self._process.wait() == 0
            answers: dict[str, Answers] = json.loads(self._out.read_text())
            return answers


def same_as_answered(dataset: Any, expected: Answers) -> None:
    """Compare a dataset's items with those of an answer, and how many there are."""
    assert "error" not in expected, f"lerobot says: {expected['error']}"
    assert (len(dataset), dataset.num_episodes) == (expected["len"], expected["num_episodes"])
    indices = [int(index) for index in expected["items"]]
    assert indices
    for start in range(0, len(indices), 32):
        batch = indices[start : start + 32]
        for index, item in zip(batch, dataset.__getitems__(batch), strict=True):
            wanted = expected["items"][str(index)]
            assert "error" not in wanted, f"item {index}: lerobot says: {wanted['error']}"
            same_item(item, wanted, f"item {index}")


def same_item(item: dict[str, Any], wanted: dict[str, Any], where: str) -> None:
    assert set(item) == set(wanted), where
    for key, value in item.items():
        assert describe_like(value, wanted[key]) == wanted[key], f"{where}, {key}"
