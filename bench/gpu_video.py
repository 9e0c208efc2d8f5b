"""Videos decoded by the GPU: exact frames, colours beside the CPU's, and speed.

    python bench/gpu_video.py [--seconds 5] [--only exact,frames,s3,step] [--json FILE]
        [--work FOLDER]

``exact`` writes datasets of H.264, HEVC and VP9 (B-frames, open GOPs, BT.601 and BT.709, limited
and full range, several sizes) whose images carry their episode and frame number. Every number is
read back from images that the GPU has decoded, and colours are compared with the CPU's. ``frames``
times random batches of 32 at 480x640, single frames and windows of 8, from the files to RGB on the
device, with the processor time of all processes. ``s3`` reads the same from an S3 server on
loopback, each request 30 ms late. ``step`` trains a small policy beside the loader, and on a batch
that is on the device already. Datasets are written first, on all cores; with ``--work`` they are
kept there for the next run. Exit status: 0; 1 if a frame is wrong or colours differ by more
than 3 of 255; 75 where there is no GPU that decodes video.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
from late_proxy import late
from torch.utils.data import DataLoader, RandomSampler

from demoreel.testing import make_dataset, read_stamp
from demoreel.torch import LeRobotDataset, PrefetchBatchSampler, to_device
from demoreel.torch.device import missing_for_video
from demoreel.torch.device_speed import measure_rate

CANNOT_RUN = 75
BATCH = 32
CAMERA = "observation.images.front"
OTHER = "observation.images.wrist"
LATENCY_S = 0.03
STEPS = ("exact", "frames", "s3", "step")
EXACT: tuple[dict[str, Any], ...] = (
    {"codec": "h264", "gop": 2},
    {"codec": "h264", "gop": 12},
    {"codec": "h264", "gop": 12, "b_frames": 2},
    {"codec": "h264", "gop": 6, "b_frames": 2, "open_gop": True},
    {"codec": "h264", "gop": 4, "pix_fmt": "yuvj420p"},
    {"codec": "hevc", "gop": 2},
    {"codec": "hevc", "gop": 12, "b_frames": 2},
    {"codec": "vp9", "gop": 10},
    {"codec": "av1", "gop": 2},
)
SPEED: tuple[dict[str, Any], ...] = (
    {"codec": "h264", "gop": 2},
    {"codec": "hevc", "gop": 2},
    {"codec": "h264", "gop": 12},
)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--frames", type=int, default=2000)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--only", default=",".join(STEPS))
    parser.add_argument("--json", type=Path, help="also write all figures here")
    parser.add_argument("--work", type=Path, help="keep the datasets here, for the next run")
    options = parser.parse_args()
    missing = missing_for_video()
    if missing is not None:
        print(missing, file=sys.stderr)
        return CANNOT_RUN
    wanted = options.only.split(",")
    if not set(wanted) <= set(STEPS):
        parser.error(f"--only takes {', '.join(STEPS)}")
    result: dict[str, Any] = {"device": torch.cuda.get_device_name(), "torch": torch.__version__}
    with tempfile.TemporaryDirectory(prefix="gpu-video-") as scratch:
        work = options.work or Path(scratch)
        write_all(work, wanted, options.frames)
        for step in wanted:
            result[step] = {}
            for name, found in globals()[f"measure_{step}"](work, options):
                result[step][name] = found
                show(step, name, found)
                if options.json:
                    options.json.write_text(json.dumps(result, indent=2))
    right = all(
        found["exact"] and found["colours"] <= 3 for found in result.get("exact", {}).values()
    )
    return 0 if right else 1


def write_all(work: Path, steps: list[str], frames: int) -> None:
    """Write the datasets that these steps read and that are not there yet, on all cores."""
    speeds = SPEED if "frames" in steps else SPEED[:1]
    jobs: list[tuple[Path, dict[str, Any]]] = []
    if set(steps) - {"exact"}:
        size = {"episodes": [frames // 10] * 10, "cameras": {CAMERA: (480, 640)}, "crf": 23}
        jobs += [(folder_of(work, video, "speed"), {**size, **video}) for video in speeds]
    if "exact" in steps:
        size = {"episodes": [100] * 3, "cameras": {CAMERA: (480, 640), OTHER: (240, 322)}}
        jobs += [(folder_of(work, video, "exact"), {**size, **video}) for video in EXACT]
    # Spawned: a fork would share this process's CUDA.
    with ProcessPoolExecutor(mp_context=get_context("spawn")) as pool:
        for job in [pool.submit(make_dataset, *a, **k) for (*a, k) in jobs if not a[0].exists()]:
            job.result()


def folder_of(work: Path, video: dict[str, Any], purpose: str) -> Path:
    return work / f"{purpose}-{named(video).replace(' ', '-')}"


Figures = Iterator[tuple[str, Any]]


def measure_exact(work: Path, options: argparse.Namespace) -> Figures:
    """Check every third frame of every kind of video, and its colours."""
    for video in EXACT:
        root = folder_of(work, video, "exact")
        dataset = opened(root, "cuda")
        yield (
            named(video),
            {
                "exact": exact(dataset),
                "colours": colours(root),
                "decoded on": {key: str(place) for key, place in dataset.decoded_on.items()},
            },
        )


def exact(dataset: LeRobotDataset) -> bool:
    """Read the numbers of every third frame, in random order, back from the images."""
    order = torch.randperm(len(dataset), generator=torch.Generator().manual_seed(0))[::3]
    for indices in order.split(32):
        batch = dataset.read_batch(indices.tolist())
        wanted = list(
            zip(batch["episode_index"].tolist(), batch["frame_index"].tolist(), strict=True)
        )
        for key in (CAMERA, OTHER):
            try:
                found = [tuple(read_stamp(image)) for image in batch[key].cpu()]
            except ValueError:
                return False
            if found != wanted:
                return False
    return True


def colours(root: Path) -> int:
    """Return the largest difference from the CPU's images, of 255."""
    indices = torch.randperm(len(opened(root, "cpu")))[:64].tolist()
    gpu, cpu = (opened(root, device).read_batch(indices) for device in ("cuda", "cpu"))
    return max(int((gpu[key].cpu().int() - cpu[key].int()).abs().max()) for key in (CAMERA, OTHER))


def measure_frames(work: Path, options: argparse.Namespace) -> Figures:
    """Time batches of every codec, window and number of workers."""
    for video in SPEED:
        root = folder_of(work, video, "speed")
        for window in (None, 8):
            for workers, at_once in ((0, 1), (0, 2), (2, 2)):
                name = f"{named(video)}, {kind(window)}, {workers} workers, {at_once} at once"
                batches = loader(root, window, workers, at_once)
                yield name, speed(batches, window, options.seconds)


def measure_s3(work: Path, options: argparse.Namespace) -> Figures:
    """Time the same batches from the disk, and from a server whose answers are late."""
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
    from support.s3_server import S3Server

    root = folder_of(work, SPEED[0], "speed")
    with (
        tempfile.TemporaryDirectory(prefix="gpu-video-s3-") as scratch,
        S3Server(Path(scratch) / "s3") as server,
        late(server.endpoint, LATENCY_S) as endpoint,
    ):
        remote = server.upload(root, "ds")
        os.environ.update(
            server.environment,
            AWS_ENDPOINT_URL=endpoint,
            AWS_ALLOW_HTTP="true",
            DEMOREEL_CACHE=str(Path(scratch) / "metadata"),
        )
        for window in (None, 8):
            found = {}
            for place, where in (("local", root), ("S3", remote)):
                found[place] = speed(loader(where, window, 8), window, options.seconds)
                yield f"{place}, {kind(window)}", found[place]
            share = found["S3"]["frames/s"] / found["local"]["frames/s"]
            yield f"share, {kind(window)}", round(share, 3)


def measure_step(work: Path, options: argparse.Namespace) -> Figures:
    """Time training steps of a small policy, with the loader and without it."""
    train = trainer()
    batches = iter(loader(folder_of(work, SPEED[0], "speed"), None, 2))
    fixed = next(batches)
    rates = {}
    for name, source in (
        ("a batch that stays", iter(lambda: fixed, None)),
        ("the loader", batches),
        ("a batch that stays, again", iter(lambda: fixed, None)),
    ):
        for _ in range(5):
            train(next(source))
        torch.cuda.synchronize()
        begin, steps = time.perf_counter(), 0
        while time.perf_counter() - begin < options.seconds:
            train(next(source))
            steps += 1
        torch.cuda.synchronize()
        rates[name] = round(steps / (time.perf_counter() - begin), 2)
        yield f"steps/s, {name}", rates[name]
    alone = max(rates["a batch that stays"], rates["a batch that stays, again"])
    yield "lost", round(1 - rates["the loader"] / alone, 4)


def trainer() -> Any:
    """Return a training step: a residual network of 11 million weights, and a head for actions."""
    from torch import nn

    class Block(nn.Module):
        def __init__(self, inside: int, outside: int, stride: int) -> None:
            super().__init__()
            self.body = nn.Sequential(
                nn.Conv2d(inside, outside, 3, stride, 1, bias=False),
                nn.BatchNorm2d(outside),
                nn.ReLU(),
                nn.Conv2d(outside, outside, 3, 1, 1, bias=False),
                nn.BatchNorm2d(outside),
            )
            self.short = nn.Conv2d(inside, outside, 1, stride, bias=False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.relu(self.body(x) + self.short(x))

    sizes = ((64, 64, 1), (64, 64, 1), (64, 128, 2), (128, 128, 1), (128, 256, 2), (256, 256, 1))
    body = [Block(*size) for size in (*sizes, (256, 512, 2), (512, 512, 1))]
    policy = nn.Sequential(
        nn.Conv2d(3, 64, 7, 2, 3), nn.MaxPool2d(2), *body, nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        nn.Linear(512, 6),
    ).cuda()  # fmt: skip
    adam = torch.optim.AdamW(policy.parameters(), fused=True)

    def step(batch: dict[str, Any]) -> None:
        images = batch[CAMERA].to(torch.bfloat16).div_(255).to(memory_format=torch.channels_last)
        with torch.autocast("cuda", torch.bfloat16):
            wrong = policy(images).float() - batch["action"][:, :6].float()
        adam.zero_grad()
        wrong.square().mean().backward()
        adam.step()

    return step


def opened(root: Any, device: str, window: int | None = None) -> LeRobotDataset:
    times = None if window is None else {CAMERA: [(n - window + 1) / 30 for n in range(window)]}
    return LeRobotDataset(
        "a/b", root=root, decode_device=device, return_uint8=True, delta_timestamps=times
    )


def loader(root: Any, window: int | None, workers: int, at_once: int = 2) -> Any:
    dataset = opened(root, "cuda", window)
    order = RandomSampler(dataset, replacement=True, num_samples=1 << 30)
    batches = PrefetchBatchSampler(order, batch_size=BATCH, num_workers=workers)
    return to_device(
        DataLoader(dataset, batch_sampler=batches, num_workers=workers), at_once=at_once
    )


def speed(batches: Any, window: int | None, seconds: float) -> dict[str, float]:
    """Return frames per second and the cores that all processes of the loader kept busy."""
    source: Iterator[Any] = iter(batches)
    rate = measure_rate(source, torch.device("cuda"), seconds)
    source.close()  # type: ignore[attr-defined]
    return {
        "frames/s": round(rate.batches_per_s * BATCH * (window or 1), 1),
        "cores": round(rate.cores or 0.0, 2),
    }


def named(video: dict[str, Any]) -> str:
    return " ".join(f"{key} {value}" if key != "codec" else value for key, value in video.items())


def kind(window: int | None) -> str:
    return "single frames" if window is None else f"windows of {window}"


def show(*what: Any) -> None:
    print(*what, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
