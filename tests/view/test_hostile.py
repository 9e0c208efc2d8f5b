"""Hostile and damaged datasets in the viewer: errors on the page, and a server that goes on."""

from __future__ import annotations

import json
import random
import shutil

import pytest

from demoreel.testing import make_dataset
from support.fuzz.bases import make_bases
from support.fuzz.hostile import ATTACKS

PAGES = (
    "",
    "/state",
    "/size",
    "/cover",
    "/episodes?sort=task",
    "/episodes?where=length%3E2",
    "/measures",
    "/motion?episodes=0,1",
    "/check",
    "/draft",
    "/cutlist",
    "/e/0",
    "/e/0/columns",
    "/e/0/columns?points=3",
    "/e/0/texts",
    "/e/0/idle",
    "/e/0/sample?windows=%7B%22action%22:[0,1]%7D",
    "/e/0/sample/image?camera=observation.images.front",
    "/e/0/frame?camera=observation.images.front&i=0",
    "/e/0/packets?camera=observation.images.front&from=0&to=1",
    "/e/1/predictions/0",
)
SAID = (200, 400, 404, 409, 422)


def attacked(folder, seeds):
    bases = make_bases(folder / "bases", ("v3", "v2.1"))
    for seed in seeds:
        for name, base in bases.items():
            for attack in dict.fromkeys(ATTACKS):
                root = folder / "all" / f"{name}-{attack.__name__}-{seed}"
                shutil.copytree(base, root)
                try:
                    attack(root, random.Random(seed))
                except (OSError, KeyError, IndexError, ValueError):
                    shutil.rmtree(root)  # an attack on another layout
    return folder / "all"


def ask_everything(ask, folder) -> None:
    client = ask(folder)
    datasets = client.json("/api/datasets")["datasets"]
    assert len(datasets) > 10
    problems = []
    for each in datasets:
        for page in PAGES:
            status, data, _ = client.ask(f"/api/d/{each['id']}{page}")
            if status not in SAID:
                problems.append((each["name"], page, status, data[:300]))
            if status != 200:
                assert json.loads(data)["message"], (each["name"], page)
    assert problems == []
    assert client.ask("/api/datasets")[0] == 200


def test_a_hostile_dataset_is_an_error_on_the_page(ask, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    ask_everything(ask, attacked(tmp_path, (0,)))


@pytest.mark.soak
def test_many_hostile_datasets_are_errors_on_the_page(ask, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    ask_everything(ask, attacked(tmp_path, range(1, 8)))


def test_marks_of_direction_in_a_text_turn_nothing_else_around(page, serve, tmp_path):
    root = make_dataset(tmp_path / "ds", episodes=(3,), tasks=("\u202eevil " * 100,))
    page.goto(serve(root).address)
    page.click("[data-episode='0']")
    page.wait_for_selector("main[data-shown='0']")
    boxes = [page.locator(each).bounding_box() for each in (".draft", ".marks", ".stars")]
    left = [box["x"] for box in boxes]
    assert left == sorted(left)
    assert left[-1] + boxes[-1]["width"] < 1280  # nor does a long one push them out


def test_a_page_of_a_hostile_dataset_says_what_is_wrong(page, serve, tmp_path):
    root = make_bases(tmp_path, ("v3",))["v3"]
    info = json.loads((root / "meta" / "info.json").read_text())
    info["features"]["action"]["shape"] = [1 << 40]
    (root / "meta" / "info.json").write_text(json.dumps(info))
    page.goto(serve(root).address)
    page.wait_for_selector(".error, .problem:not(:empty)")
