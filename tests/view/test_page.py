"""The viewer's pages in a real browser: what they show is what they say they show."""

from __future__ import annotations

from urllib.parse import parse_qs

import numpy as np
import pytest

import demoreel
from demoreel.testing import make_dataset
from support.pages import CAMERA, seek, shown, stamp


def open_episode(page, viewer, episode: int, query: str = "") -> None:
    page.goto(viewer.address)
    page.wait_for_selector(".item[href]")
    id = page.evaluate("location.hash").split("/")[2]
    page.goto(f"http://127.0.0.1:{viewer.port}/#/d/{id}/e/{episode}{query}")
    page.wait_for_selector("main[data-shown]")


# Stamps tell frames apart, sizes tell cameras apart.
SIZES = {CAMERA: (64, 64), "observation.images.cam1": (48, 80)}
CODED = {
    "h264 with B-frames": {"codec": "h264", "gop": 12, "b_frames": 2},
    "h264, B-frames, one long GOP": {"codec": "h264", "gop": 250, "b_frames": 2, "fps": 50},
    "av1": {"codec": "av1", "gop": 2, "fps": 50},
    "vp9, one long GOP": {"codec": "vp9", "gop": 250, "fps": 50},
    "av1, one long GOP": {"codec": "av1", "gop": 250, "fps": 30},
    "hevc, by the server": {"codec": "hevc", "gop": 12},
    "images, by the server": {"cameras": 0, "image_cameras": SIZES, "fps": 50},
}


QUICK = ("h264 with B-frames", "av1", "hevc, by the server")


@pytest.mark.parametrize(
    "coded", [n if n in QUICK else pytest.param(n, marks=pytest.mark.soak) for n in CODED]
)
def test_every_frame_is_the_one_that_the_page_names(page, serve, tmp_path, coded):
    lengths = (15, 70, 20)
    depth = {"observation.images.depth": (64, 96)}
    options = {"cameras": SIZES, "depth_cameras": depth, **CODED[coded]}
    root = make_dataset(tmp_path / "ds", episodes=lengths, **options)
    open_episode(page, serve(root), 1)
    way = "server" if "server" in coded else "WebCodecs"
    assert [way in text for text in page.locator(".way").all_text_contents()[:2]] == [True] * 2

    def is_exact(frame: int, episode: int = 1) -> None:
        for camera, (height, width) in (SIZES | depth).items():
            assert shown(page, camera) == (frame, episode, frame)
            canvas = page.locator(f"canvas[data-camera='{camera}']")
            assert canvas.evaluate("(each) => [each.height, each.width]") == [height, width]

    wanted = [0, 69, 1, 35, 34, 33, 64, 63, 12, 13, 68]
    for frame in wanted:
        seek(page, frame)
        is_exact(frame)
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
        is_exact(frame)
    for key, frame in (("Home", 0), ("ArrowRight", 1), ("ArrowRight", 2), ("ArrowLeft", 1)):
        page.keyboard.press(key)
        page.wait_for_selector(f"main[data-shown='{frame}']")
        is_exact(frame)
    page.keyboard.press("n")
    page.wait_for_function("() => location.hash.includes('/e/2')")
    page.wait_for_selector("main[data-shown='0']")
    is_exact(0, 2)


def test_depth_under_the_pointer_is_that_of_the_frame(page, serve, tmp_path):
    camera = "observation.images.depth"
    root = make_dataset(tmp_path / "ds", episodes=(4, 40), depth_cameras={camera: (64, 64)})
    view = demoreel.open(root).episode(1)
    open_episode(page, serve(root), 1)
    canvas = page.locator(f"canvas[data-camera='{camera}']")
    area = canvas.bounding_box()
    # The lowest row of the grid carries no stamp, and another depth in each frame.
    side = min(area["width"], area["height"])
    page.mouse.move(area["x"] + area["width"] / 2, area["y"] + (area["height"] + side * 0.95) / 2)
    for frame in (*range(40), 3, 0):  # decoded long ago
        seek(page, frame)
        (depth,) = view.frames(camera, frame, frame + 1)
        told = page.locator(".camera", has=canvas).locator(".way")
        wanted = f"{float(depth[62, 32]) / 1000:.3f} m"
        page.wait_for_function(
            "([each, wanted]) => each.textContent === wanted", arg=[told.element_handle(), wanted]
        )


def test_the_server_sends_images_at_the_size_that_is_shown(page, serve, tmp_path):
    sizes = {f"observation.images.cam{number}": (720, 960) for number in range(4)}
    root = make_dataset(tmp_path / "ds", episodes=(2, 4), cameras=sizes, codec="hevc")
    open_episode(page, serve(root), 1)
    canvas = page.locator(f"canvas[data-camera='{CAMERA}']")

    def widths() -> tuple[int, float]:
        told = canvas.evaluate(
            "(each) => [each.width, Math.min(each.clientWidth, (each.clientHeight * 960) / 720)]"
        )
        return told[0], told[1]

    for frame in (0, 3):
        seek(page, frame)
        sent, seen = widths()
        assert seen <= sent < seen + 161 < 960
        assert shown(page) == (frame, 1, frame)
    page.keyboard.press("v")  # one camera, larger: the same frame, sharper
    page.wait_for_function(
        """(before) => document.querySelector("canvas[data-camera]").width > before""", arg=sent
    )
    sent, seen = widths()
    assert seen <= sent < seen + 161
    assert shown(page) == (3, 1, 3)


def test_a_page_that_is_left_gives_up(page, serve, tmp_path):
    """In the middle of a seek, and before it is whole: what is shown is what is asked for last."""
    root = make_dataset(tmp_path / "ds", episodes=(6, 250, 8), gop=250)
    page.add_init_script(
        """const own = window.fetch; // answers of episode 1 come late
        window.fetch = async (path, options) => {
            if (window.late?.test(path)) await new Promise((done) => setTimeout(done, 300));
            return own(path, options);
        };"""
    )
    open_episode(page, serve(root), 1)
    address = page.evaluate("location.hash.split('?')[0]")
    page.evaluate(
        """() => {
            document.getElementById("main").demoreel.seek(249);
            location.hash = location.hash.replace("/e/1", "/e/2");
        }"""
    )
    page.wait_for_function("() => document.querySelector('#path').textContent.includes('2')")
    page.wait_for_selector("main[data-shown='0']")
    page.evaluate("window.late = /[/]e[/]1/")
    for ends in ("0", "1", "2", "1", "0"):
        page.evaluate("(address) => { location.hash = address; }", address[:-1] + ends)
    page.wait_for_function("() => document.querySelector('#path').textContent.includes('0')")
    page.wait_for_selector("main[data-shown='0']")
    page.wait_for_timeout(500)  # a page of episode 1 would be there by now
    assert page.locator(".episode").count() == page.locator("#facts .marks").count() == 1
    assert shown(page) == (0, 0, 0)


PLAYED = {
    "slowly, three cameras": ("0.5", {"cameras": 3}),
    "at 2x, B-frames": ("2", {"codec": "h264", "gop": 12, "b_frames": 2, "cameras": 2}),
    "at 1x, decoded by the server": ("1", {"codec": "hevc", "cameras": 1}),
}


@pytest.mark.parametrize(
    "played", [n if "B-frames" in n else pytest.param(n, marks=pytest.mark.soak) for n in PLAYED]
)
def test_playing_draws_each_frame_as_it_is_and_in_order(page, serve, tmp_path, played):
    speed, options = PLAYED[played]
    root = make_dataset(tmp_path / "ds", episodes=(40, 40), fps=20, **options)
    open_episode(page, serve(root), 1)
    page.evaluate(
        """() => {
            window.drawn = [];
            for (const canvas of document.querySelectorAll("canvas[data-camera]")) {
                // Before anything else is drawn: the callback runs when the drawing has ended.
                new MutationObserver(() => window.drawn.push(
                    [canvas.dataset.camera, Number(canvas.dataset.frame), canvas.toDataURL()]
                )).observe(canvas, { attributes: true, attributeFilter: ["data-frame"] });
            }
        }"""
    )
    page.select_option("select", speed)
    page.keyboard.press(" ")
    page.wait_for_selector("main[data-shown='39']", timeout=60000)
    drawn = page.evaluate("window.drawn")
    dropped = page.evaluate("document.getElementById('main').demoreel.dropped()")
    for number in range(options["cameras"]):
        camera = f"observation.images.cam{number}"
        own = [(frame, data) for name, frame, data in drawn if name == camera]
        frames = [frame for frame, _ in own]
        assert frames == sorted(set(frames))
        assert frames[-1] == 39
        if float(speed) <= 1:
            assert len(frames) + dropped == 39
        for frame, data in own:
            assert stamp(data) == (1, frame)
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


def test_an_address_that_makes_no_sense_shows_the_episode(page, serve, tmp_path):
    root = make_dataset(tmp_path / "ds", episodes=(30,), fps=30)
    viewer = serve(root)
    open_episode(page, viewer, 0, "?f=x&in=-1&out=1e9&zoom=x-y&speed=7&camera=none&hide=none")
    assert shown(page) == (0, 0, 0)
    page.evaluate("document.getElementById('main').demoreel.ready")
    page.evaluate("location.hash = location.hash.split('?')[0] + '?f=99&in=20&out=10'")
    page.wait_for_selector("main[data-shown='29']")
    assert shown(page) == (29, 0, 29)
    page.keyboard.press("ArrowLeft")
    page.wait_for_selector("main[data-shown='28']")


def test_the_address_carries_all_of_the_page(page, serve, tmp_path):
    """Camera, speed, zoom and hidden lines, besides frame and range: taken from it, and put in."""
    other = "observation.images.cam1"
    root = make_dataset(tmp_path / "ds", episodes=(30,), cameras=2, fps=30)
    query = f"?f=5&camera={other}&speed=0.25&zoom=3-20&hide=observation.state[0]"
    viewer = serve(root)
    hidden = ".legend button[aria-pressed='false']"

    def found() -> dict[str, list[str]]:
        return parse_qs(page.evaluate("location.hash").partition("?")[2])

    def holds(camera: str, speed: str, zoom: str, lines: int) -> None:
        page.wait_for_selector(f"canvas[data-camera='{camera}']")
        assert page.locator("canvas[data-camera] >> visible=true").count() == 1
        page.wait_for_selector(hidden)
        assert page.locator(hidden).count() == lines
        assert page.locator(".transport select").input_value() == speed
        frame = page.evaluate("document.getElementById('main').demoreel.state.shown")
        step = frame + 1 if frame < 10 else frame - 1
        seek(page, step)  # writes the address anew, from what is shown
        page.wait_for_function("(step) => location.hash.includes(`f=${step}&`)", arg=step)
        seek(page, frame)
        page.wait_for_function("(frame) => location.hash.includes(`f=${frame}&`)", arg=frame)
        now = found()
        assert (now["camera"], now["speed"], now["zoom"]) == ([camera], [speed], [zoom])
        assert len(now["hide"]) == lines

    open_episode(page, viewer, 0, query)
    assert shown(page, other) == (5, 0, 5)
    holds(other, "0.25", "3-20", 1)
    assert found()["hide"] == ["observation.state[0]"]
    page.keyboard.press("v")  # all cameras, then the first
    page.keyboard.press("v")
    page.keyboard.press("+")
    page.locator(".legend button[aria-pressed='true'] >> nth=0").click()
    page.keyboard.press("i")
    seek(page, 15)
    page.keyboard.press("o")
    page.keyboard.press("Z")
    page.wait_for_function("() => location.hash.includes('zoom=5-15')")
    page.wait_for_function("() => location.hash.includes('camera=observation.images.cam0')")
    address = page.evaluate("location.href")
    page.goto("about:blank")
    page.goto(address)
    page.wait_for_selector("main[data-shown='15']")
    assert shown(page) == (15, 0, 15)
    holds(CAMERA, "0.5", "5-15", 2)
    assert (found()["in"], found()["out"]) == (["5"], ["15"])


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
