"""`demoreel mix`."""

from __future__ import annotations

import json
import shutil

import pytest

from demoreel.testing import make_dataset


@pytest.fixture
def config(tmp_path):
    for name, lengths in (("one", [8, 7]), ("two", [9])):
        make_dataset(tmp_path / name, episodes=lengths, cameras=1, features={
            "arm": {"dtype": "float32", "shape": [3 if name == "one" else 2]},
        })  # fmt: skip
    path = tmp_path / "mix.yaml"
    path.write_text(
        "parts:\n  - {source: one, probability: 0.75}\n  - {source: two, probability: 0.25}\n"
        "pad: {arm: 3}\n"
    )
    return path


def test_the_table(run, config):
    done = run("mix", config)
    assert done.returncode == 0, done.stderr
    assert "0.75" in done.stdout
    assert "arm padded from 2 to 3" in done.stdout
    assert "an epoch is 24 samples" in done.stdout


def test_json(run, config):
    facts = json.loads(run("mix", config, "--json").stdout)
    assert [part["frames"] for part in facts["parts"]] == [15, 9]
    assert [part["probability"] for part in facts["parts"]] == [0.75, 0.25]
    assert facts["parts"][1]["padded"] == {"arm": [2, 3]}
    assert facts["problems"] == []


def test_an_epoch_of_other_length(run, config):
    config.write_text(config.read_text() + "samples_per_epoch: 8\n")
    facts = json.loads(run("mix", config, "--json").stdout)
    assert facts["epoch_samples"] == 8
    assert [part["epochs"] for part in facts["parts"]] == [6 / 15, 2 / 9]


def test_a_part_that_does_not_open_or_read(run, config):
    video = next((config.parent / "two").rglob("*.mp4"))
    video.unlink()
    done = run("mix", config)
    assert done.returncode == 1
    assert "part 1:" in done.stdout
    assert run("mix", config, "--no-read").returncode == 0
    shutil.rmtree(config.parent / "two")
    facts = run("mix", config, "--json")
    assert facts.returncode == 1
    assert json.loads(facts.stdout)["problems"][0]["part"] == 1


def test_parts_that_do_not_go_together(run, config):
    config.write_text(config.read_text().replace("pad:", "samples_per_epoch: 5 #"))
    done = run("mix", config)
    assert done.returncode == 2
    assert "arm is [3] in one and [2] in two" in done.stderr
    assert run("mix", config.parent / "none.yaml").returncode == 1
