"""Where lerobot runs, and its training: what several test modules share."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from asking_lerobot import FIXTURES, HERE

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

Losses = list[tuple[str, ...]]


def python_of(variable: str) -> str:
    """Return the interpreter that `make conformance` names in this variable."""
    python = os.environ.get(variable)
    if not python:
        pytest.skip(f"{variable} is not set: run `make conformance`")
    return python


@pytest.fixture(scope="session")
def lerobot_python() -> str:
    return python_of("DEMOREEL_LEROBOT_PYTHON")


@pytest.fixture(scope="session")
def lancedb_python() -> str:
    return python_of("DEMOREEL_LANCEDB_PYTHON")


@pytest.fixture(scope="session")
def beside_lerobot() -> Mapping[str, str]:
    """The environment in which lerobot finds demoreel."""
    return {
        "PYTHONPATH": str(HERE.parent / "src"),
        "HF_HUB_OFFLINE": "1",
        "WANDB_MODE": "disabled",
        "OMP_NUM_THREADS": "1",  # sums in one order, and no waiting for cores that others use
    }


@pytest.fixture(scope="session")
def train(
    lerobot_python: str,
    beside_lerobot: Mapping[str, str],
    tmp_path_factory: pytest.TempPathFactory,
) -> Callable[..., Losses]:
    """Train on a dataset, and return what is logged at each step: loss, gradient, L1 and KL."""

    def run(root: Path | str, *, plugged: bool = True, workers: int = 0) -> Losses:
        out = tmp_path_factory.mktemp("train") / "out"
        settings = {**TRAINING, "dataset.root": root, "output_dir": out, "num_workers": workers}
        if plugged:
            settings["demoreel.discover_packages_path"] = "demoreel.torch.lerobot"
        done = subprocess.run(
            [
                *(lerobot_python, "-m", "lerobot.scripts.lerobot_train"),
                *(f"--{key}={value}" for key, value in settings.items()),
            ],
            env={**os.environ, **beside_lerobot},
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
    if not FIXTURES.is_dir():
        pytest.skip(f"{FIXTURES} does not exist")
    return train(FIXTURES / "g1_v30", plugged=False)
