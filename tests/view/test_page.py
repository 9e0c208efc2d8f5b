"""The viewer's pages in a real browser: what they show is what they say they show."""

from __future__ import annotations

import numpy as np
import pytest

from demoreel.testing import make_dataset
from support.pages import CAMERA, seek, shown


def open_episode(page, viewer, episode: int, query: str = "") -> None:
    page.goto(viewer.address)
    page.wait_for_selector(".item[href]")
    id = page.evaluate("location.hash").split("/")[2]
    page.goto(f"http://127.0.0.1:{viewer.port}/#/d/{id}/e/{episode}{query}")
    page.wait_for_selector("main[data-shown]")


CODED = {
    "h264 with B-frames": {"codec": "h264", "gop": 12, "b_frames": 2},
    "av1": {"codec": "av1", "gop": 2},
    "vp9, one long GOP": {"codec": "vp9", "gop": 250, "fps": 50},
    "av1, one long GOP": {"codec": "av1", "gop": 250, "fps": 30},
}


@pytest.mark.parametrize("coded", CODED)
def test_every_frame_is_the_one_that_the_page_names(page, serve, tmp_path, coded):
    lengths = (15, 70, 20)
    root = make_dataset(tmp_path / "ds", episodes=lengths, cameras=2, **CODED[coded])
    open_episode(page, serve(root), 1)
    assert "WebCodecs" in page.text_content(".way")
    wanted = [0, 69, 1, 35, 34, 33, 64, 63, 12, 13, 68]
    for frame in wanted:
        seek(page, frame)
        for camera in (CAMERA, "observation.images.cam1"):
            assert shown(page, camera) == (frame, 1, frame)
    for frame in (50, 7):  # the slider, as a hand moves it
        page.evaluate(
            """(frame) => {
                const slider = document.querySelector("input[type=range]");
                slider.value = frame;
                slider.dispatchEvent(new Event("input"));
            }""",
            frame,
        )
        page.wait_for_selector(f"main[data-shown='{frame}']")
        assert shown(page) == (frame, 1, frame)
    for key, frame in (("Home", 0), ("ArrowRight", 1), ("ArrowRight", 2), ("ArrowLeft", 1)):
        page.keyboard.press(key)
        page.wait_for_selector(f"main[data-shown='{frame}']")
        assert shown(page) == (frame, 1, frame)
    page.keyboard.press("n")
    page.wait_for_function("() => location.hash.includes('/e/2')")
    page.wait_for_selector("main[data-shown='0']")
    assert shown(page) == (0, 2, 0)


@pytest.mark.parametrize("stored", ["images", "a codec that browsers lack"])
def test_what_the_browser_does_not_decode_comes_from_the_server(page, serve, tmp_path, stored):
    options = {"cameras": 0, "image_cameras": {CAMERA: (48, 64)}}
    if stored != "images":
        options = {"cameras": {CAMERA: (48, 64)}, "codec": "hevc"}
    root = make_dataset(tmp_path / "ds", episodes=(5, 30), **options)
    open_episode(page, serve(root), 1)
    assert "server" in page.text_content(".way")
    for frame in (0, 29, 7, 8):
        seek(page, frame)
        assert shown(page) == (frame, 1, frame)


def test_playing_shows_each_frame_once_and_in_order(page, serve, tmp_path):
    root = make_dataset(tmp_path / "ds", episodes=(40, 40), cameras=3, fps=20)
    open_episode(page, serve(root), 1)
    page.evaluate(
        """() => {
            window.seen = [];
            const canvas = document.querySelector("canvas");
            new MutationObserver(() => window.seen.push(Number(canvas.dataset.frame)))
                .observe(canvas, { attributes: true, attributeFilter: ["data-frame"] });
        }"""
    )
    page.select_option("select", "0.5")
    page.keyboard.press(" ")
    page.wait_for_selector("main[data-shown='39']", timeout=30000)
    seen = page.evaluate("window.seen")
    assert seen == sorted(set(seen))
    dropped = page.evaluate("document.getElementById('main').demoreel.dropped()")
    assert len(seen) + dropped == 39
    assert shown(page) == (39, 1, 39)


def test_a_loop_and_an_address_that_carry_over(page, serve, tmp_path):
    root = make_dataset(tmp_path / "ds", episodes=(30,), fps=30)
    viewer = serve(root)
    open_episode(page, viewer, 0, "?f=12&in=10&out=14")
    assert shown(page) == (12, 0, 12)
    page.keyboard.press(" ")
    page.wait_for_selector("main[data-shown='14']")
    page.wait_for_selector("main[data-shown='10']")
    page.keyboard.press(" ")
    seek(page, 13)
    page.wait_for_function("() => location.hash.includes('f=13')")
    page.reload()
    page.wait_for_selector("main[data-shown='13']")
    assert shown(page) == (13, 0, 13)
    assert "in=10" in page.evaluate("location.hash")


def test_the_table_is_walked_filtered_and_opened_by_keys(page, serve, tmp_path):
    root = make_dataset(
        tmp_path / "ds", episodes=(5, 9, 7, 8), tasks=("pick", "place <img src=x onerror=alert(1)>")
    )
    page.goto(serve(root).address)
    page.wait_for_selector("[data-episode='3']")
    assert "place <img src=x" in page.text_content("[data-episode='1']")  # text, never markup
    page.keyboard.press("/")
    page.keyboard.type("pick")
    page.wait_for_selector("[data-episode='1']", state="detached")
    page.wait_for_selector("[data-episode='2']")
    assert page.locator("[data-episode]").count() == 2
    page.click("button[title^='Filter by an SQL']")
    page.fill("input[type=search]", "length > 7")
    page.wait_for_selector("[data-episode='3']")
    assert page.locator("[data-episode]").count() == 2
    page.fill("input[type=search]", "length >")
    page.wait_for_selector(".problem:not(:empty)")
    page.fill("input[type=search]", "")
    page.wait_for_selector("[data-episode='0']")
    page.keyboard.press("Escape")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    page.wait_for_selector("main[data-shown='0']")
    assert shown(page) == (0, 1, 0)
    page.keyboard.press("Escape")
    page.wait_for_selector("[data-episode='3']")


def test_many_dimensions_are_several_charts(page, serve, tmp_path):
    names = [f"{side}_{part}" for side in ("left", "right", "waist") for part in "abcdefghi"][:26]
    feature = {"dtype": "float32", "shape": [26], "names": names}
    root = make_dataset(tmp_path / "ds", episodes=(12,), features={"joints": feature})
    open_episode(page, serve(root), 0)
    page.evaluate("document.getElementById('main').demoreel.ready")
    charts = page.locator(".chart", has=page.locator(".title:has-text('joints')"))
    shown = [
        charts.nth(number).locator(".legend button").all_text_contents()
        for number in range(charts.count())
    ]
    assert [name for group in shown for name in group] == names
    assert max(map(len, shown)) <= 8
    for group in shown:  # left and right are not in one chart
        assert len({name.split("_")[0] for name in group}) == 1
    page.click(".legend button:has-text('right_b')")
    page.wait_for_function("() => location.hash.includes('hide=joints%5B10%5D')")


def test_a_row_under_the_pointer_is_fetched_before_it_is_opened(page, serve, tmp_path):
    root = make_dataset(tmp_path / "ds", episodes=(20, 20, 20), cameras=2, codec="h264")
    page.goto(serve(root).address)
    asked = []
    page.on("request", lambda request: asked.append(request.url))
    row = page.locator("[data-episode='1']")
    with page.expect_response(lambda answer: "/e/1/packets" in answer.url):
        row.hover()
    page.wait_for_function("() => !document.querySelector('main[data-shown]')")
    before = sum("/packets" in url for url in asked)
    row.click()
    page.wait_for_selector("main[data-shown]")
    assert before <= sum("/packets" in url for url in asked) == 2  # one for each camera
    for frame in (0, 19, 7):
        seek(page, frame)
        for camera in (CAMERA, "observation.images.cam1"):
            assert shown(page, camera) == (frame, 1, frame)


def test_numbers_stand_beside_the_frame(page, serve, tmp_path):
    import demoreel

    root = make_dataset(tmp_path / "ds", episodes=(12,), fps=10)
    open_episode(page, serve(root), 0, "?f=7")
    page.evaluate("document.getElementById('main').demoreel.ready")
    text = page.text_content(".side")
    state = np.asarray(demoreel.open(root).episode(0).column("observation.state"))[7]
    for value in state.reshape(-1).tolist():
        assert (f"{value:.5g}"[:5]) in text
    assert page.locator(".chart canvas").count() >= 1


def test_a_broken_camera_is_said_and_the_others_play(page, serve, tmp_path):
    root = make_dataset(tmp_path / "ds", episodes=(9,), cameras=2)
    for video in (root / "videos").rglob("*.mp4"):
        if "cam0" in str(video):
            video.write_bytes(b"nothing")
    open_episode(page, serve(root), 0)
    page.wait_for_selector(".camera .error")
    seek(page, 4)
    assert shown(page, "observation.images.cam1") == (4, 0, 4)
