"""lerobot's sampler and ours, and `lerobot-train` on a mixture. `make conformance` runs it."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path

from asking_lerobot import FIXTURES, HERE


def test_the_samplers_and_splits_are_the_same(
    lerobot_python: str, beside_lerobot: Mapping[str, str]
) -> None:
    done = subprocess.run(
        [lerobot_python, HERE / "sampler_check.py", FIXTURES / "g1_v30", FIXTURES / "kitchen_v30"],
        env={**os.environ, **beside_lerobot},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.strip() == "the same", done.stderr


def test_training_on_a_mixture(train: Callable[..., list[tuple[str, ...]]], tmp_path: Path) -> None:
    """Parts in three layouts, padded; a few steps."""
    names = [("g1_v30", 0.5), ("g1_lance_video", 0.3), ("g1_v21", 0.2)]
    parts = "".join(f"  - {{source: {FIXTURES / name}, probability: {p}}}\n" for name, p in names)
    config = tmp_path / "mix.yaml"
    config.write_text(f"parts:\n{parts}missing: drop\npad: {{action: 28}}\n")
    losses = train(config, workers=1)
    assert all(float(loss) > 0 for _, loss, *_ in losses)
