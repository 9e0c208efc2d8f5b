"""The viewer in a real browser: how long until a frame is on the screen, and how many a second.

    .venv/bin/python bench/view.py [--rounds 3] [--only local,million,gop250,charts,s3]

Makes its datasets: 93 episodes with three 480x640 AV1 cameras (GOP 2), the metadata of a million
episodes, one camera with a GOP of 250, and 14 dimensions x 100,000 points. Needs chromium,
playwright and, for ``s3``, SeaweedFS (both in the dev group). Prints JSON with the machine's cores
and load. ``floor`` is a page without the viewer's code that decodes the same packets: on a machine
that does other work, the ratio to it says more than the seconds.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from made import write_metadata_only
from playwright.sync_api import Browser, Page, sync_playwright

from demoreel.testing import make_dataset

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

TRIALS = Path(__file__).with_suffix(".js").read_text().partition("\n")[2].strip()
CAMERA = "observation.images.cam0"
LATENCY_S = 0.03
POINTS = 100_000


class Opened:
    """A viewer in a process of its own, and a page on it."""

    def __init__(self, page: Page, address: str, pid: int, begin: float) -> None:
        self.page, self.address, self.pid, self.begin = page, address, pid, begin
        self.address_s = time.perf_counter() - begin

    def first_image_s(self) -> float:
        self.page.goto(self.address)
        self.page.wait_for_function(
            "() => [...document.querySelectorAll('.thumb')].some((image) => image.naturalWidth > 0)"
        )
        return time.perf_counter() - self.begin

    def first_rows_s(self) -> float:
        self.page.goto(self.address)
        self.page.wait_for_selector("[data-episode]")
        return time.perf_counter() - self.begin

    def click_s(self, episode: int, *, rests_s: float | None) -> float:
        """Return the time from a click to the frame; before it, the pointer rests on the row."""
        row = f"[data-episode='{episode}']"
        if rests_s is not None:
            self.page.hover(row)
            time.sleep(rests_s)
        return float(
            self.page.evaluate(
                """async (row) => {
                    const begin = performance.now(), main = document.getElementById("main");
                    const screen = () => new Promise(requestAnimationFrame);
                    document.querySelector(row).click();
                    while (main.dataset.shown === undefined) await screen();
                    return (performance.now() - begin) / 1000;
                }""",
                row,
            )
        )

    def trial(self, name: str, given: Any) -> Any:
        return self.page.evaluate(f"([name, given]) => {TRIALS}[name](given)", [name, given])

    def back(self) -> None:
        self.page.keyboard.press("Escape")
        self.page.wait_for_selector("[data-episode]")

    def base(self, episode: int) -> str:
        return f"/api/d/{self.page.evaluate('location.hash').split('/')[2]}/e/{episode}"

    def memory_mb(self) -> dict[str, int]:
        lines = Path(f"/proc/{self.pid}/status").read_text().splitlines()
        found = dict(line.split(":", 1) for line in lines)
        return {name: int(found[name].split()[0]) >> 10 for name in ("VmHWM", "VmRSS")}


@contextlib.contextmanager
def opened(browser: Browser, place: str | Path, scratch: Path, **more: str) -> Iterator[Opened]:
    cache = tempfile.mkdtemp(dir=scratch)  # nothing is known from a round before
    fresh = {"XDG_CACHE_HOME": cache, "DEMOREEL_CACHE": cache, "XDG_STATE_HOME": cache}
    begin = time.perf_counter()
    server = subprocess.Popen(
        [sys.executable, "-m", "demoreel", "view", str(place), "--no-browser"],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, **fresh, **more},
    )
    context = browser.new_context(viewport={"width": 1280, "height": 720})
    try:
        assert server.stdout is not None
        address = server.stdout.readline().strip()
        yield Opened(context.new_page(), address, server.pid, begin)
    finally:
        context.close()
        server.terminate()
        server.wait()


def local(browser: Browser, root: Path, scratch: Path) -> dict[str, Any]:
    with opened(browser, root, scratch) as viewer:
        page = viewer.page
        found: dict[str, Any] = {"command_to_address_s": viewer.address_s}
        found["command_to_first_image_s"] = viewer.first_image_s()
        page.wait_for_timeout(1000)  # the table's own requests
        found["click_to_first_frame_s"] = viewer.click_s(0, rests_s=None)
        found["floor_one_camera"] = viewer.trial(
            "floor", {"base": viewer.base(0), "camera": CAMERA, "steps": 200}
        )
        page.evaluate("() => document.getElementById('main').demoreel.ready")
        found["scrub_all_cameras"] = viewer.trial("scrub", {"steps": 200})
        found["ways"] = sorted(set(page.locator(".way").all_text_contents()))
        found["play_all_cameras"] = viewer.trial("play", {"seconds": 4, "fps": 30})
        viewer.back()
        page.wait_for_timeout(500)
        found["click_after_hover_s"] = viewer.click_s(2, rests_s=0.4)
        found["server_mb"] = viewer.memory_mb()
        return found


def one_camera(browser: Browser, root: Path, scratch: Path) -> dict[str, Any]:
    with opened(browser, root, scratch) as viewer:
        viewer.first_image_s()
        viewer.click_s(0, rests_s=None)
        viewer.page.evaluate("() => document.getElementById('main').demoreel.ready")
        floor = viewer.trial("floor", {"base": viewer.base(0), "camera": CAMERA, "steps": 200})
        viewer.trial("scrub", {"steps": 20})
        scrub = viewer.trial("scrub", {"steps": 200})
        return {
            "floor": floor,
            "scrub": scrub,
            "of_floor": scrub["per_second"] / floor["per_second"],
        }


def long_gop(browser: Browser, root: Path, scratch: Path) -> dict[str, Any]:
    with opened(browser, root, scratch) as viewer:
        viewer.first_image_s()
        viewer.click_s(0, rests_s=None)
        return {"step_back": viewer.trial("back", 60)}


def million(browser: Browser, root: Path, scratch: Path) -> dict[str, Any]:
    with opened(browser, root, scratch) as viewer:
        found: dict[str, Any] = {"command_to_address_s": viewer.address_s}
        found["command_to_first_rows_s"] = viewer.first_rows_s()
        viewer.page.wait_for_selector("[data-measure]")
        found["command_to_distributions_s"] = time.perf_counter() - viewer.begin
        viewer.page.wait_for_timeout(3000)
        return {**found, "server_mb": viewer.memory_mb()}


def charts(browser: Browser, root: Path, scratch: Path) -> dict[str, Any]:
    with opened(browser, root, scratch) as viewer:
        viewer.first_rows_s()
        viewer.click_s(0, rests_s=None)
        return dict(viewer.trial("charts", 90))


def in_store(browser: Browser, root: Path, scratch: Path) -> dict[str, Any]:
    from support.fault_proxy import FaultProxy
    from support.s3_server import S3Server

    folder = Path(tempfile.mkdtemp(dir=scratch))
    with S3Server(folder) as server, FaultProxy(server.endpoint) as proxy:
        uri = server.upload(root, "ds")
        proxy.latency_s = LATENCY_S
        slow = {**server.environment, "AWS_ALLOW_HTTP": "true", "AWS_ENDPOINT_URL": proxy.endpoint}
        with opened(browser, uri, scratch, **slow) as viewer:
            found: dict[str, Any] = {"command_to_first_image_s": viewer.first_image_s()}
            viewer.page.wait_for_timeout(2000)
            found["click_to_first_frame_s"] = viewer.click_s(3, rests_s=None)
            viewer.back()
            viewer.page.wait_for_timeout(1000)
            found["click_after_hover_s"] = viewer.click_s(5, rests_s=0.4)
            return found


def make_numbers(root: Path) -> Path:
    import numpy as np

    import demoreel

    names = [f"{side}_joint_{number}" for side in ("left", "right") for number in range(7)]
    features = {
        key: {"dtype": "float32", "shape": (14,), "names": names}
        for key in ("observation.state", "action")
    }
    recorder = demoreel.create(root, fps=100, features=features)
    times = np.arange(POINTS)[:, None] / 300 + np.arange(14)
    values = (np.sin(times) + np.random.default_rng(0).normal(0, 0.1, times.shape)).astype("f4")
    for row in values:
        recorder.add_frame({"observation.state": row, "action": row * 1.1, "task": "go"})
    recorder.save_episode()
    recorder.finalize()
    return root


def coded(root: Path, cameras: int, episodes: tuple[int, ...], gop: int) -> Path:
    sizes = {f"observation.images.cam{number}": (480, 640) for number in range(cameras)}
    return make_dataset(root, episodes=episodes, cameras=sizes, codec="av1", gop=gop)


Measured = tuple[Callable[[Path], Path], Callable[[Browser, Path, Path], dict[str, Any]]]
PARTS: dict[str, Measured] = {
    "local": (lambda root: coded(root, 3, (150, *(4,) * 92), 2), local),
    "one camera": (lambda root: coded(root, 1, (150, 4), 2), one_camera),
    "gop250": (lambda root: coded(root, 1, (250, 4), 250), long_gop),
    "million": (lambda root: write_metadata_only(root, 1_000_000), million),
    "charts": (make_numbers, charts),
    "s3": (lambda root: coded(root, 3, (60,) * 8, 2), in_store),
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default=",".join(PARTS), help="parts, with commas between")
    options = parser.parse_args()
    program = shutil.which("chromium")
    if program is None:
        sys.exit("there is no browser: apt-get install chromium")
    arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
    found: dict[str, Any] = {"cores": os.cpu_count(), "load": os.getloadavg()[0]}
    with tempfile.TemporaryDirectory(prefix="demoreel-view-") as folder, sync_playwright() as run:
        browser = run.chromium.launch(executable_path=program, args=arguments)
        for name in options.only.split(","):
            make, measure = PARTS[name]
            print(f"{name} ...", file=sys.stderr, flush=True)
            root = make(Path(folder) / name.replace(" ", "-"))
            found[name] = [measure(browser, root, Path(folder)) for _ in range(options.rounds)]
            shutil.rmtree(root)
        browser.close()
    print(json.dumps(found, indent=2, default=float))


if __name__ == "__main__":
    main()
