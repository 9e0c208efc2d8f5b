"""The page of several datasets: sizes, cameras, first frames, two side by side."""

from __future__ import annotations

import pytest

from demoreel.testing import make_dataset


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("several")
    make_dataset(folder / "one", episodes=(5, 9), cameras=2)
    make_dataset(folder / "group" / "two", episodes=(6,), cameras=1, layout="v2.1", fps=10)
    (folder / "broken" / "meta").mkdir(parents=True)
    (folder / "broken" / "meta" / "info.json").write_text("{")
    return folder


def test_datasets_are_listed_with_what_they_hold(ask, folder):
    client = ask(folder)
    listed = {each["name"]: each for each in client.json("/api/datasets")["datasets"]}
    assert listed["one"]["cameras"] == ["cam0", "cam1"]
    assert listed["group/two"]["layout"] == "v2.1"
    assert "JSON" in listed["broken"]["error"]
    assert client.json("/api/datasets")["beside"] is None
    one = f"/api/d/{listed['one']['id']}"
    files = [path for path in (folder / "one").rglob("*") if path.is_file()]
    assert client.json(f"{one}/size") == {
        "bytes": sum(path.stat().st_size for path in files),
        "is_whole": True,
    }
    status, data, _ = client.ask(f"{one}/cover")
    assert status == 200
    assert data[:2] == b"\xff\xd8"
    assert client.ask(f"/api/d/{listed['broken']['id']}/cover")[0] == 422


@pytest.mark.parametrize("layout", ["lance-frames", "lance-video", "lance-native"])
def test_a_lance_dataset_is_listed_by_its_layout(ask, local_datasets, layout):
    (listed,) = ask(local_datasets(layout)).json("/api/datasets")["datasets"]
    assert listed["layout"] == layout


def test_the_list_is_searched_sorted_and_opened(page, serve, folder):
    page.goto(serve(folder).address)
    page.wait_for_selector("[data-dataset] img.thumb")
    assert page.locator("[data-dataset]").count() == 3
    page.wait_for_selector("[data-dataset]:has-text('kB')")
    page.click("button[title='Sort by episodes']")
    page.wait_for_function(
        "() => document.querySelector('[data-dataset] .cell')?.textContent === 'one'"
    )
    page.keyboard.press("/")
    page.keyboard.type("cam1")
    page.wait_for_function("() => document.querySelectorAll('[data-dataset]').length === 1")
    page.keyboard.press("Escape")
    page.keyboard.press("Enter")
    page.wait_for_selector("[data-episode='1']")


def test_two_datasets_stand_side_by_side(page, serve, folder):
    page.goto(serve(folder / "one", folder / "group" / "two").address)
    page.wait_for_selector(".shared [data-measure='length']")
    text = page.text_content("table.facts tr.differs:has-text('frames a second')")
    assert "30" in text
    assert "10" in text
    assert page.locator("tr.differs:has-text('observation.images.cam1')").count() == 1
    assert page.locator("tr.differs:has-text('frame_index')").count() == 0
    page.keyboard.press("v")
    page.wait_for_selector("main[data-compared='2']")
    assert page.locator(".side-of").count() == 2
