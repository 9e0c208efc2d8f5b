"""The viewer in a real browser: how long until a frame is on the screen, and how many a second.

    .venv/bin/python bench/view.py [PATH] [--rounds 3]

Without PATH, a dataset of 93 episodes with three 480x640 AV1 cameras (GOP 2) is made first. Needs
chromium, and playwright (in the dev group). Prints JSON, with the machine's cores.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

from playwright.sync_api import Page, sync_playwright

from demoreel.testing import make_dataset

SCRUB = """async () => {
    const main = document.getElementById("main").demoreel;
    const last = Number(document.querySelector("input[type=range]").max);
    const times = [], begin = performance.now();
    for (let step = 0; step < 200; step++) {
        const frame = Math.floor(Math.random() * last), before = performance.now();
        await main.seek(frame);
        times.push(performance.now() - before);
        for (const canvas of document.querySelectorAll("canvas[data-camera]"))
            if (Number(canvas.dataset.frame) !== frame) throw new Error(`wrong frame ${frame}`);
    }
    times.sort((a, b) => a - b);
    const seconds = (performance.now() - begin) / 1000;
    return { per_second: 200 / seconds, median_ms: times[100], p95_ms: times[190] };
}"""
PLAY = """async (seconds) => {
    const main = document.getElementById("main").demoreel;
    await main.seek(0);
    const begin = performance.now();
    main.play();
    await new Promise((resolve) => setTimeout(resolve, seconds * 1000));
    main.pause();
    const expected = Math.floor((performance.now() - begin) / 1000 * FPS);
    return { shown: main.state.shown, expected, dropped: main.dropped() };
}"""


def measure(root: Path, page: Page, fps: float) -> dict[str, Any]:
    begin = time.perf_counter()
    server = subprocess.Popen(
        [sys.executable, "-m", "demoreel", "view", str(root), "--no-browser"],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert server.stdout is not None
        address = server.stdout.readline().strip()
        found: dict[str, Any] = {"command_to_address_s": time.perf_counter() - begin}
        page.goto(address)
        page.wait_for_function(
            "() => [...document.querySelectorAll('.thumb')].some((image) => image.naturalWidth > 0)"
        )
        found["command_to_first_image_s"] = time.perf_counter() - begin
        begin = time.perf_counter()
        page.keyboard.press("Enter")
        page.wait_for_selector("main[data-shown]")
        found["click_to_first_frame_s"] = time.perf_counter() - begin
        found["cameras"] = page.locator("canvas[data-camera]").count()
        found["ways"] = sorted(set(page.locator(".way").all_text_contents()))
        found["scrub_all_cameras"] = page.evaluate(SCRUB)
        found["play"] = page.evaluate(PLAY.replace("FPS", str(fps)), 4)
        status = Path(f"/proc/{server.pid}/status").read_text()
        peak = next(line for line in status.splitlines() if line.startswith("VmHWM"))
        found["server_mb"] = int(peak.split()[1]) >> 10
        return found
    finally:
        server.terminate()
        server.wait()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("path", type=Path, nargs="?")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--cameras", type=int, default=3)
    options = parser.parse_args()
    program = shutil.which("chromium")
    if program is None:
        sys.exit("there is no browser: apt-get install chromium")
    import demoreel

    with tempfile.TemporaryDirectory(prefix="demoreel-view-") as folder, sync_playwright() as run:
        root = options.path or make_dataset(
            Path(folder) / "ds",
            episodes=(150, *(4,) * 92),
            cameras={f"observation.images.cam{n}": (480, 640) for n in range(options.cameras)},
            codec="av1",
            gop=2,
        )
        fps = demoreel.open(root).fps
        arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
        browser = run.chromium.launch(executable_path=program, args=arguments)
        rounds = []
        for _ in range(options.rounds):
            context = browser.new_context(viewport={"width": 1280, "height": 720})
            rounds.append(measure(root, context.new_page(), fps))
            context.close()
        browser.close()
    times = ("command_to_address_s", "command_to_first_image_s", "click_to_first_frame_s")
    medians = {name: round(median(each[name] for each in rounds), 3) for name in times}
    print(json.dumps({"cores": os.cpu_count(), "medians": medians, "rounds": rounds}, indent=2))


if __name__ == "__main__":
    main()
