"""Record beside lerobot: 3 cameras at 30 frames a second, on this machine, in one run.

    python bench/record.py [--seconds 10] [--episodes 2] [--without-lerobot]

Each side records the same images (real ones, from the G1 video) at a steady pace. What counts:
how long `add_frame` and `save_episode` hold the loop up, the rate that the loop achieves, frames
that are missing in the end, and the bytes and the quality of what was written.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from record_pace import CAMERAS, frame

HERE = Path(__file__).parent
_FPS_ROUNDING = 0.05  # both sides sleep between frames, and wake up a little late
FIXTURE = HERE.parents[1] / "shared" / "fixtures" / "g1_v30"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--episodes", type=int, default=2)
    parser.add_argument("--vcodec", default="auto")
    parser.add_argument("--without-lerobot", action="store_true")
    parser.add_argument("--out", type=Path, default=HERE / "results" / "record.json")
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="demoreel-record-"))
    try:
        pictures = folder / "pictures.npy"
        np.save(pictures, real_images())
        results = {"demoreel": run_side(options, folder, pictures, "demoreel")}
        python = os.environ.get("DEMOREEL_LEROBOT_PYTHON")
        if python and not options.without_lerobot:
            for mode in ("default", "streaming"):
                results[f"lerobot {mode}"] = run_side(options, folder, pictures, mode, python)
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(results, indent=2))
        show(results)
        return verdict(results)
    finally:
        shutil.rmtree(folder)


def real_images(count: int = 120) -> np.ndarray:
    """Return images that a camera took: neighbours in time, 480x640."""
    import demoreel

    ds = demoreel.open(FIXTURE)
    batch = ds.batch(range(60, 60 + count))[ds.cameras[0]]
    return np.ascontiguousarray(batch.transpose(0, 2, 3, 1))


def run_side(
    options: argparse.Namespace, folder: Path, pictures: Path, mode: str, python: str | None = None
) -> dict[str, Any]:
    root = folder / mode
    command = [python or sys.executable, str(HERE / "lerobot_record.py"), str(root), "--mode", mode]
    if mode == "demoreel":
        command = [sys.executable, str(HERE / "demoreel_record.py"), str(root)]
        command += ["--vcodec", options.vcodec]
    command += ["--pictures", str(pictures), "--seconds", str(options.seconds)]
    command += ["--episodes", str(options.episodes)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{mode} failed:\n{done.stderr[-3000:]}")
    answer = json.loads(done.stdout.strip().splitlines()[-1])
    answer |= what_was_written(root, np.load(pictures), options)
    print(f"{mode}: done", file=sys.stderr)
    return answer


def what_was_written(
    root: Path, pictures: np.ndarray, options: argparse.Namespace
) -> dict[str, Any]:
    """Return bytes per image, missing rows and images, and PSNR of every 10th frame."""
    import av
    import pyarrow.parquet as pq

    wanted = round(options.seconds * 30) * options.episodes
    size, shown, errors = 0, 0, []
    for camera in CAMERAS:
        for path in sorted((root / "videos" / camera).rglob("*.mp4")):
            size += path.stat().st_size
            with av.open(str(path)) as container:
                for decoded in container.decode(video=0):
                    number = shown % wanted % round(options.seconds * 30)
                    if shown % 10 == 0:
                        made = decoded.to_ndarray(format="rgb24").astype(np.float32)
                        errors.append(((made - frame(pictures, number)[camera]) ** 2).mean())
                    shown += 1
    rows = sum(pq.read_metadata(path).num_rows for path in (root / "data").rglob("*.parquet"))
    return {
        "missing_rows": wanted - rows,
        "missing_images": wanted * len(CAMERAS) - shown,
        "bytes_per_image": size / max(1, shown),
        # Only where no image is missing do images and numbers belong together.
        "psnr_db": float(10 * np.log10(255**2 / np.mean(errors)))
        if shown == wanted * len(CAMERAS)
        else None,
    }


def show(results: dict[str, dict[str, Any]]) -> None:
    ours = results["demoreel"]
    print(
        f"{'':20} {'add p50':>8} {'p99':>8} {'max':>8} {'save s':>8} {'fps':>6} "
        f"{'missing':>8} {'B/image':>10} {'PSNR':>6}"
    )
    for name, told in results.items():
        add = told["add_frame_ms"]
        psnr = "" if told["psnr_db"] is None else f"{told['psnr_db']:.2f}"
        print(
            f"{name:20} {add['p50']:8.2f} {add['p99']:8.2f} {add['max']:8.2f} "
            f"{np.mean(told['save_episode_s']):8.3f} {told['achieved_fps']:6.2f} "
            f"{told['missing_images']:8d} {told['bytes_per_image']:10.0f} {psnr:>6}"
        )
    for name, told in results.items():
        if name != "demoreel":
            ratio = np.mean(told["save_episode_s"]) / np.mean(ours["save_episode_s"])
            print(f"save_episode is {ratio:.0f} times faster than {name}")


def verdict(results: dict[str, dict[str, Any]]) -> int:
    """Say what must hold on any machine; return 1 where it does not.

    How long something takes depends on the machine. That no frame is lost does not, nor that the
    loop runs at least as steadily as beside lerobot.
    """
    ours = results["demoreel"]
    held = [("no frame lost", ours["missing_images"] == 0 and ours["missing_rows"] == 0)]
    for name, told in results.items():
        if name != "demoreel":
            lost = told["missing_images"] + told["missing_rows"]
            as_fast = ours["achieved_fps"] >= told["achieved_fps"] - _FPS_ROUNDING
            held.append((f"loop at least as fast as beside {name}, which lost {lost}", as_fast))
    for what, holds in held:
        print(f"{'yes' if holds else 'NO':>4}  {what}")
    return 0 if all(holds for _, holds in held) else 1


if __name__ == "__main__":
    sys.exit(main())
