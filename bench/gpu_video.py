"""Videos decoded by the GPU: exact frames, colours beside the CPU's, and speed.

    python bench/gpu_video.py [--frames 2000] [--seconds 5] [--workers 4]

Writes datasets of H.264 and HEVC (480x640, GOPs of 2 and 12, with and without B-frames), whose
images carry their episode and frame number. Every number is read back from images that the GPU has
decoded; then random batches of 32 are timed, single frames and windows of 8, from the files to RGB
on the device, with the processor time of all processes. Exit status: 0; 1 if a frame is wrong or
colours differ by more than 3 of 255; 75 where there is no GPU that decodes video.
"""

from __future__ import annotations

import argparse
import json
import resource
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader

from demoreel.testing import make_dataset, read_stamp
from demoreel.torch import LeRobotDataset, to_device
from demoreel.torch.device import missing_for_video

CANNOT_RUN = 75
CAMERA = "observation.images.front"
VIDEOS: tuple[dict[str, Any], ...] = (
    {"codec": "h264", "gop": 2},
    {"codec": "h264", "gop": 12, "b_frames": 2},
    {"codec": "hevc", "gop": 2},
    {"codec": "hevc", "gop": 12, "b_frames": 2},
)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--frames", type=int, default=2000)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--workers", type=int, nargs="+", default=[0, 2, 4])
    parser.add_argument("--size", type=int, nargs=2, default=(480, 640))
    options = parser.parse_args()
    missing = missing_for_video()
    if missing is not None:
        print(missing, file=sys.stderr)
        return CANNOT_RUN
    result: dict[str, Any] = {"device": torch.cuda.get_device_name(), "torch": torch.__version__}
    right = True
    with tempfile.TemporaryDirectory(prefix="gpu-video-") as scratch:
        for video in VIDEOS:
            name = f"{video['codec']}, GOP {video['gop']}"
            root = make_dataset(
                Path(scratch) / name.replace(", ", "-"),
                episodes=[options.frames // 10] * 10,
                cameras={CAMERA: tuple(options.size)},
                **video,
            )
            found = result[name] = {"exact": exact(root), "colours": colours(root)}
            right &= found["exact"] and found["colours"] <= 3
            for workers in options.workers:
                for kind, window in (("frames", None), ("windows of 8", 8)):
                    found[f"{kind}, {workers} workers"] = speed(
                        root, window, workers, options.seconds
                    )
    print(json.dumps(result, indent=2))
    return 0 if right else 1


def opened(root: Path, device: str, window: int | None = None) -> LeRobotDataset:
    times = None if window is None else {CAMERA: [(n - window + 1) / 30 for n in range(window)]}
    return LeRobotDataset(
        "a/b", root=root, decode_device=device, return_uint8=True, delta_timestamps=times
    )


def exact(root: Path) -> bool:
    """Read the numbers of every third frame, in random order, back from the images."""
    dataset = opened(root, "cuda")
    order = torch.randperm(len(dataset))[::3]
    for indices in order.split(32):
        batch = dataset.read_batch(indices.tolist())
        wanted = zip(batch["episode_index"].tolist(), batch["frame_index"].tolist(), strict=True)
        for image, (episode, frame) in zip(batch[CAMERA].cpu(), wanted, strict=True):
            if tuple(read_stamp(image)) != (episode, frame):
                return False
    return True


def colours(root: Path) -> int:
    """Return the largest difference from the CPU's images, of 255."""
    indices = torch.randperm(len(opened(root, "cpu")))[:64].tolist()
    gpu = opened(root, "cuda").read_batch(indices)[CAMERA].cpu().int()
    cpu = opened(root, "cpu").read_batch(indices)[CAMERA].int()
    return int((gpu - cpu).abs().max())


def speed(root: Path, window: int | None, workers: int, seconds: float) -> dict[str, float]:
    """Return frames per second and the cores that all processes of the loader kept busy."""
    dataset = opened(root, "cuda", window)
    loader = to_device(
        DataLoader(dataset, batch_size=32, shuffle=True, drop_last=True, num_workers=workers)
    )
    frames = 0
    begin, used = 0.0, 0.0
    while not begin or time.perf_counter() - begin < seconds:
        for number, batch in enumerate(loader):
            torch.cuda.synchronize()
            if not begin and number == 3:
                begin, used = time.perf_counter(), processor_time()
            elif begin:
                frames += 32 * (window or 1)
            if begin and time.perf_counter() - begin > seconds:
                break
            del batch
    took = time.perf_counter() - begin
    return {
        "frames/s": round(frames / took, 1),
        "cores": round((processor_time() - used) / took, 2),
    }


def processor_time() -> float:
    found = 0.0
    for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN):
        usage = resource.getrusage(who)
        found += usage.ru_utime + usage.ru_stime
    return found


if __name__ == "__main__":
    sys.exit(main())
