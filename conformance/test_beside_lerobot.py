"""demoreel beside lerobot, in one process and under `lerobot-train`. `make conformance` runs it.

lerobot's environment holds what demoreel needs too, in lerobot's own versions (Python 3.12, PyAV
15); demoreel comes from this checkout. What is checked there is in `beside_lerobot.py`.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from beside_lerobot import CHECKS

HERE = Path(__file__).resolve().parent
FIXTURES = Path(os.environ.get("DEMOREEL_FIXTURES") or HERE.parents[1] / "shared" / "fixtures")
LEROBOT_PYTHON = os.environ.get("DEMOREEL_LEROBOT_PYTHON")
PLUG = "--demoreel.discover_packages_path=demoreel.torch.lerobot"

# lerobot's smallest ACT: nothing is fetched, nothing is saved.
TRAINING = {
    "dataset.repo_id": "me/g1",
    "policy.type": "act",
    "policy.device": "cpu",
    "policy.push_to_hub": "false",
    "policy.pretrained_backbone_weights": "null",
    "policy.dim_model": 64,
    "policy.n_heads": 4,
    "policy.dim_feedforward": 128,
    "policy.n_encoder_layers": 1,
    "policy.n_vae_encoder_layers": 1,
    "policy.chunk_size": 16,
    "policy.n_action_steps": 16,
    "batch_size": 2,
    "steps": 3,
    "log_freq": 1,
    "seed": 7,
    "save_checkpoint": "false",
    "wandb.enable": "false",
}
LOGGED = re.compile(r"step:(\d+) .*?loss:(\S+) grdn:(\S+) .*l1_loss:(\S+) kld_loss:(\S+)")


@pytest.fixture(scope="session")
def lerobot_python() -> str:
    if not LEROBOT_PYTHON:
        pytest.skip("DEMOREEL_LEROBOT_PYTHON is not set: run `make conformance`")
    if not FIXTURES.is_dir():
        pytest.skip(f"{FIXTURES} does not exist")
    return LEROBOT_PYTHON


def beside_lerobot() -> dict[str, str]:
    return {
        **os.environ,
        "PYTHONPATH": str(HERE.parent / "src"),
        "HF_HUB_OFFLINE": "1",
        "WANDB_MODE": "disabled",
        "OMP_NUM_THREADS": "1",  # sums in one order, and no waiting for cores that others use
    }


@pytest.fixture(scope="session")
def results(lerobot_python: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    out = tmp_path_factory.mktemp("beside") / "results.json"
    subprocess.run(
        [lerobot_python, HERE / "beside_lerobot.py", FIXTURES, out],
        env=beside_lerobot(),
        check=True,
    )
    found: dict[str, str] = json.loads(out.read_text())
    return found


@pytest.mark.parametrize("check", CHECKS)
def test_in_one_process(results: dict[str, str], check: str) -> None:
    assert results[check] == "passed", results[check]


Losses = list[tuple[str, ...]]


@pytest.fixture(scope="session")
def train(lerobot_python: str, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Losses]:
    """Train on a fixture, and return what is logged at each step: loss, gradient, L1 and KL."""

    def run(name: str, *arguments: str, workers: int = 0) -> Losses:
        out = tmp_path_factory.mktemp("train") / "out"
        settings = {**TRAINING, "dataset.root": FIXTURES / name, "output_dir": out}
        settings["num_workers"] = workers
        done = subprocess.run(
            [
                *(lerobot_python, "-m", "lerobot.scripts.lerobot_train"),
                *(f"--{key}={value}" for key, value in settings.items()),
                *arguments,
            ],
            env=beside_lerobot(),
            cwd=out.parent,
            capture_output=True,
            text=True,
            check=False,
        )
        log = done.stdout + done.stderr
        assert done.returncode == 0, log
        steps = [match.groups() for match in LOGGED.finditer(log)]
        assert len(steps) == TRAINING["steps"], log
        return steps

    return run


@pytest.fixture(scope="session")
def losses_of_lerobot(train: Callable[..., Losses]) -> Losses:
    return train("g1_v30")


@pytest.mark.parametrize(("name", "workers"), [("g1_lance_video", 0), ("g1_lance_native", 1)])
def test_the_same_losses(
    train: Callable[..., Losses], losses_of_lerobot: Losses, name: str, workers: int
) -> None:
    assert train(name, PLUG, workers=workers) == losses_of_lerobot
