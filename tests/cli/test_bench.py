"""`demoreel bench`: that it measures, not what."""

from __future__ import annotations

import json

import pytest

FRONT = "observation.images.front"


def test_json(run, dataset):
    done = run("bench", dataset, "--window", 3, "--seconds", 0.3, "--batch-size", 4, "--json")
    assert done.returncode == 0
    assert done.stderr == ""
    single, windows = json.loads(done.stdout)["speeds"]
    assert (single["window"], windows["window"]) == (1, 3)
    for speed in (single, windows):
        assert speed["batch_size"] == 4
        assert speed["samples_per_s"] > 0
        assert speed["floor_samples_per_s"] > 0
        assert speed["share"] > 0
        assert speed["bytes_per_sample"] > 0


def test_text(run, dataset):
    done = run("bench", dataset, "--seconds", 0.3, "--threads", 1, "--camera", FRONT, "--seed", 3)
    assert done.returncode == 0
    assert "the dataset has 25 frames" in done.stderr  # which tells little
    assert "measured for 0.3 s" in done.stderr
    assert "single frames" in done.stdout
    assert "decoding threads 1" in done.stdout
    assert "floor" in done.stdout


def test_reuse(run, dataset):
    options = ["--window", 3, "--seconds", 0.3, "--batch-size", 4, "--reuse", "200kB"]
    done = run("bench", dataset, *options, "--json")
    assert done.returncode == 0, done.stderr
    single, windows = json.loads(done.stdout)["reuse"]
    for found in (single, windows):
        assert found["budget"] == 200_000
        assert found["samples_per_s"] > 0
        assert found["gain"] == found["samples_per_s"] / found["plain_samples_per_s"]
        assert 1 <= found["episodes"] <= found["plain_episodes"] + 1
        assert 0 < found["distance"] < 1
    assert windows["decoded_per_sample"] < 3
    shown = run("bench", dataset, *options)
    assert "episodes/batch" in shown.stdout
    small = run("bench", dataset, "--seconds", 0.3, "--reuse", "1kB")
    assert small.returncode == 2
    assert "does not hold one sample" in small.stderr


def test_progress_is_for_terminals(show, dataset):
    shown = show("bench", dataset, "--seconds", 0.3)
    assert "measuring single frames" in shown
    assert "measuring" not in show("bench", dataset, "--seconds", 0.3, "--quiet")


@pytest.mark.parametrize("arguments", [["--window", 1], ["--seconds", 0], ["--batch-size", 0]])
def test_nonsense_is_a_usage_error(run, dataset, arguments):
    assert run("bench", dataset, *arguments).returncode == 2


def test_an_unknown_camera_gets_a_suggestion(run, dataset):
    done = run("bench", dataset, "--camera", "observation.images.fornt")
    assert done.returncode == 2
    assert FRONT in done.stderr
