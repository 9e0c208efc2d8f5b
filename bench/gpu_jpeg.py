"""JPEGs of a lance-frames dataset by the GPU and by the CPU: are the pixels near, and how fast?

    python bench/gpu_jpeg.py [--frames 600] [--size 480 640] [--batch 32]

Makes its own dataset, or reads one: `--dataset FRAMES_LANCE`. Needs a CUDA device and torchvision;
says what is missing where it cannot run, with exit status 75. NVJPEG and libjpeg-turbo scale the
smaller colour planes up by different rules, so pixels at sharp edges may be far apart; on average
they must be within `--tolerance` levels of 255 (default 1).
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader

import demoreel
from demoreel.errors import DemoreelError
from demoreel.testing import make_dataset
from demoreel.torch import LeRobotLanceDataset
from demoreel.torch.device import missing_for_jpeg

CANNOT_RUN = 75


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--dataset", type=Path, help="a lance-frames dataset of JPEGs")
    parser.add_argument("--frames", type=int, default=600)
    parser.add_argument("--size", type=int, nargs=2, default=(480, 640))
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--batches", type=int, default=60)
    parser.add_argument("--tolerance", type=float, default=1.0)
    options = parser.parse_args()
    missing = missing_for_jpeg()
    if missing is not None:
        print(missing, file=sys.stderr)
        return CANNOT_RUN
    with tempfile.TemporaryDirectory(prefix="gpu-jpeg-") as scratch:
        root = options.dataset or written(Path(scratch), options.frames, tuple(options.size))
        pixels = compare(root, options.batch)
        result = {
            "device": torch.cuda.get_device_name(),
            "torch": torch.__version__,
            "pixels": pixels,
            "images_per_s": {
                device: speed(root, device, options.batch, options.batches)
                for device in ("cpu", "cuda")
            },
            "workers": workers(root),
        }
    print(json.dumps(result, indent=2))
    return 0 if pixels["mean_difference"] <= options.tolerance else 1


def written(folder: Path, frames: int, size: tuple[int, int]) -> Path:
    """Write a dataset of smooth, moving images, and its lance-frames twin."""
    make_dataset(
        folder / "source", episodes=[frames // 3] * 3, cameras={"observation.images.front": size}
    )
    demoreel.convert(folder / "source", folder / "frames", to="lance-frames")
    return folder / "frames"


def opened(root: Path, device: str, **options: Any) -> LeRobotLanceDataset:
    return LeRobotLanceDataset(root=root, decode_device=device, return_uint8=True, **options)


def compare(root: Path, batch: int) -> dict[str, Any]:
    """Compare every key of batches with repetitions and windows; images by how far apart."""
    camera = opened(root, "cpu").meta.camera_keys[0]
    fps = opened(root, "cpu").fps
    worst, total, count = 0, 0.0, 0
    for options in ({}, {"delta_timestamps": {camera: [-2 / fps, 0.0]}}):
        cpu, gpu = opened(root, "cpu", **options), opened(root, "cuda", **options)
        rng = np.random.default_rng(0)
        for _ in range(4):
            indices = rng.integers(0, len(cpu), batch).tolist()
            for left, right in zip(
                gpu.__getitems__(indices), cpu.__getitems__(indices), strict=True
            ):
                assert set(left) == set(right)
                for key, value in right.items():
                    if key in cpu.meta.camera_keys:
                        assert left[key].is_cuda
                        assert left[key].dtype == value.dtype
                        apart = (left[key].cpu().float() - value.float()).abs()
                        apart = apart * (255.0 if value.dtype == torch.float32 else 1.0)
                        worst = max(worst, round(float(apart.max())))
                        total, count = total + float(apart.sum()), count + apart.numel()
                    elif isinstance(value, torch.Tensor):
                        assert torch.equal(left[key], value), key
                    else:
                        assert left[key] == value, key
    return {"largest_difference": worst, "mean_difference": round(total / count, 4)}


def speed(root: Path, device: str, batch: int, batches: int) -> float:
    dataset = opened(root, device)
    rng = np.random.default_rng(1)
    order = [rng.integers(0, len(dataset), batch).tolist() for _ in range(batches + 5)]
    for indices in order[:5]:
        dataset.read_batch(indices)
    torch.cuda.synchronize()
    start = time.perf_counter()
    for indices in order[5:]:
        dataset.read_batch(indices)
    torch.cuda.synchronize()
    return round(batch * batches * len(dataset.meta.camera_keys) / (time.perf_counter() - start), 1)


def workers(root: Path) -> dict[str, str]:
    """What workers do: spawned ones decode on the GPU, forked ones say why not, auto continues."""
    found = {}
    torch.zeros(1, device="cuda")  # from here on, a forked child cannot use CUDA
    for device, method in (("cuda", "spawn"), ("cuda", "fork"), ("auto", "fork")):
        loader = DataLoader(
            opened(root, device), batch_size=4, num_workers=1, multiprocessing_context=method
        )
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                batch = next(iter(loader))
            found[f"{device}, {method}"] = str(batch[loader.dataset.meta.camera_keys[0]].device)
            del batch
        except DemoreelError as error:
            found[f"{device}, {method}"] = f"{type(error).__name__}: {error.what}"
        except RuntimeError as error:
            found[f"{device}, {method}"] = f"RuntimeError: {str(error)[:200]}"
    return found


if __name__ == "__main__":
    sys.exit(main())
