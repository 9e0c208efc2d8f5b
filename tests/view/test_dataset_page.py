"""The dataset's page in a real browser: plots that filter, findings, columns, keys."""

from __future__ import annotations

import numpy as np
import pytest

import demoreel
from demoreel.testing import make_dataset

LENGTHS = (30, 45, 28, 60, 12, 33, 41, 39, 300, 25)


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return make_dataset(
        tmp_path_factory.mktemp("page") / "ds",
        episodes=LENGTHS,
        tasks=("pick", "place <b>it</b>"),
        features={"next.success": {"dtype": "bool", "shape": [1]}},
    )


@pytest.fixture
def opened(page, serve, root, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    page.goto(serve(root).address)
    page.wait_for_selector("[data-measure='length']")
    return page


SHOWN = (
    "() => [...document.querySelectorAll('[data-episode]')].map((e) => e.dataset.episode).join()"
)


def wait_for_rows(page, *episodes: int) -> None:
    page.wait_for_function(f"() => ({SHOWN})() === '{','.join(map(str, episodes))}'")


def test_a_selection_in_a_plot_filters_the_table(opened):
    page = opened
    area = page.locator("[data-measure='length'] canvas").bounding_box()
    middle = area["y"] + area["height"] / 2
    page.mouse.move(area["x"] + area["width"] * 0.5, middle)
    page.mouse.down()
    page.mouse.move(area["x"] + area["width"] - 1, middle, steps=4)
    page.mouse.up()
    wait_for_rows(page, 8)
    assert "r=length" in page.evaluate("location.hash")
    page.reload()  # the address carries the selection
    wait_for_rows(page, 8)
    page.click(".chip")
    page.wait_for_selector("[data-episode='0']")


def test_a_plot_is_selected_by_keys(opened):
    page = opened
    page.focus("[data-measure='length']")
    for _ in range(20):
        page.keyboard.press("ArrowRight")
    wait_for_rows(page, 8)
    page.keyboard.press("Delete")
    page.wait_for_selector("[data-episode='0']")


def test_a_task_and_outliers_filter(opened):
    page = opened
    page.wait_for_selector(".far")
    page.keyboard.press("o")
    page.wait_for_selector("[data-episode='0']", state="detached")
    page.wait_for_selector("[data-episode='8']")
    page.keyboard.press("o")
    page.wait_for_selector("[data-episode='0']")
    page.click(".task:has-text('<b>it</b>')")  # text, never markup
    wait_for_rows(page, 1, 3, 5, 7, 9)


def test_every_column_sorts(opened):
    page = opened
    for name, first in (("frames", 8), ("idle", None), ("jerk", None), ("success", None)):
        page.click(f".head button[title='Sort by {name}']")
        page.wait_for_selector(f".head button[title='Sort by {name}'][aria-sort='descending']")
        if first is not None:
            page.wait_for_function(
                f"() => document.querySelector('[data-episode]')?.dataset.episode === '{first}'"
            )
    page.keyboard.press("r")
    page.wait_for_selector(".head button[aria-sort='ascending']")
    assert page.locator(".problem:not(:empty)").count() == 0


def test_findings_lead_to_their_episode_and_frame(page, serve, tmp_path):
    features = {"action": {"dtype": "float32", "shape": (1,), "names": None}}
    recorder = demoreel.create(tmp_path / "ds", fps=10, features=features)
    for number in range(10):
        for frame in range(40):
            value = frame / 4 + number * np.sin(frame / 4) / 20
            value += 500 if (number, frame) == (5, 12) else 0
            recorder.add_frame({"action": np.array([value], np.float32), "task": "go"})
        recorder.save_episode()
    recorder.finalize()
    page.goto(serve(tmp_path / "ds").address)
    page.wait_for_selector("[data-episode='5'] .mark")
    page.keyboard.press("f")
    page.click("a[data-finding='action-jump']")
    page.wait_for_selector("main[data-shown]")
    address = page.evaluate("location.hash")
    assert "/e/5?f=1" in address
    assert page.get_attribute("main", "data-shown") in ("12", "13")


def test_the_help_lists_the_keys_of_the_page(opened):
    page = opened
    page.keyboard.press("?")
    text = page.text_content("#keys")
    for does in ("distributions", "check found", "sort", "compare", "outliers"):
        assert does in text
