"""The dataset's page on every layout and on a store, in a real browser."""

from __future__ import annotations

import pytest

from support.pages import seek, shown

LAYOUTS = ("v2.0", "v2.1", "v3.0", "lance-frames", "lance-video", "lance-native")


@pytest.fixture(autouse=True)
def nothing_is_kept(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


def walk(page, address: str) -> None:
    """Sort, filter and open, from the table to an exact frame of each camera."""
    page.goto(address)
    page.wait_for_selector("[data-measure='length']")
    page.wait_for_function(
        "() => [...document.querySelectorAll('.thumb')].filter((i) => i.naturalWidth).length === 4"
    )
    page.click(".head button[title='Sort by frames']")
    page.wait_for_function(
        "() => document.querySelector('[data-episode]')?.dataset.episode === '3'"
    )
    page.wait_for_function(
        "() => /%/.test(document.querySelector('[data-episode]')?.textContent)"  # idle is measured
    )
    page.click(".task:has-text('放下')")
    page.wait_for_selector("[data-episode='0']", state="detached")
    row = page.locator("[data-episode='1']")
    assert "放下" in row.text_content()
    row.click()
    page.wait_for_selector("main[data-shown]")
    cameras = page.locator("canvas[data-camera]").count()
    assert cameras == 2
    for frame in (8, 0, 4):
        seek(page, frame)
        for number in range(cameras):
            camera = page.locator("canvas[data-camera]").nth(number).get_attribute("data-camera")
            assert shown(page, camera) == (frame, 1, frame)
    assert page.locator(".error").count() == 0


@pytest.mark.parametrize("layout", ["lance-native"])
def test_a_table_of_a_lance_dataset(page, serve, local_datasets, layout):
    walk(page, serve(local_datasets(layout)).address)


@pytest.mark.soak
@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout(page, serve, local_datasets, layout):
    walk(page, serve(local_datasets(layout)).address)


@pytest.mark.soak
@pytest.mark.parametrize("layout", ["v2.1", "v3.0", "lance-video", "lance-native"])
def test_a_store(page, serve, s3, proxy, local_datasets, layout):
    proxy.latency_s = 0.03
    walk(page, serve(s3.upload(local_datasets(layout), f"walked-{layout}")).address)
