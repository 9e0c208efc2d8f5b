"""How fast batches arrive on a device, against the floor.

The floor is what no loader can beat: the very same decoders, given packets that were read
beforehand, and nothing else to do.
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, nullcontext
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch.utils.data import DataLoader, RandomSampler

from demoreel.errors import ArgumentError
from demoreel.read.dataset import Dataset
from demoreel.read.packets import EncodedFrames
from demoreel.torch.dataset import LeRobotDataset
from demoreel.torch.device import DecodeDevice
from demoreel.torch.device_loader import to_device
from demoreel.torch.nvml import DecoderLoad
from demoreel.torch.packet_images import EncodedImages, decoding_later
from demoreel.torch.sampler import PrefetchBatchSampler
from demoreel.torch.video_decoders import current_device

ROUNDS = 3
_FLOOR_BATCHES = 32  # whose packets are held in memory
_WARM_UP = 10  # batches that are not timed: the first ones are ready before the clock starts


@dataclass(frozen=True, slots=True)
class DeviceSpeed:
    """What was measured.

    Attributes:
        device: Where images arrived.
        decoded_on: Where each camera's images were decoded.
        window: Frames of each camera in a sample.
        batch_size: Samples in a batch.
        workers: Processes that read packets.
        samples: Samples that were timed through the loader.
        open_s: Seconds that opening the dataset took.
        samples_per_s: Median over the rounds, through ``to_device``.
        floor_samples_per_s: Likewise of the decoders alone; None where the device decodes nothing.
        share: Of the loader in the floor.
        cores: Processor cores that the loader kept busy, all its processes together; None where
            the system does not say.
        decoders_busy: Share of time that the GPU's video decoders were busy while loading, 0 to 1.
        decoders_unknown: Why that is not known.
        bytes_per_sample: Encoded bytes that the device was given for a sample.
    """

    device: str
    decoded_on: dict[str, str]
    window: int
    batch_size: int
    workers: int
    samples: int
    open_s: float
    samples_per_s: float
    floor_samples_per_s: float | None
    share: float | None
    cores: float | None
    decoders_busy: float | None
    decoders_unknown: str | None
    bytes_per_sample: float


def measure_device_speed(
    root: str | os.PathLike[str],
    *,
    device: DecodeDevice = "cuda",
    window: int = 1,
    cameras: Iterable[str] | None = None,
    batch_size: int = 32,
    seconds: float = 5.0,
    workers: int = 2,
    threads: int | None = None,
    seed: int = 0,
    progress: Callable[[float], None] | None = None,
) -> DeviceSpeed:
    """Load random batches onto a device, and decode packets there without the loader.

    Args:
        root: The dataset's folder or URI.
        device: ``"cuda"``, ``"cuda:1"``, ...
        window: Frames of each camera in a sample, the last being the current one.
        cameras: Decode only these.
        batch_size: Samples in a batch.
        seconds: How long to measure, both sides together.
        workers: Processes that read packets; 0 reads in threads of this one.
        threads: Threads of a process that decode what the device does not.
        seed: Draws the frames.
        progress: Called with the share that is done, 0 to 1.

    Raises:
        ArgumentError: There is no such device, or a number makes no sense.
        MissingExtraError: PyNvVideoCodec is not installed.
    """
    for name, value in (("window", window), ("batch_size", batch_size), ("seconds", seconds)):
        if not value > 0:
            raise ArgumentError(f"{name} must be positive, not {value}.")
    started = time.perf_counter()
    dataset = _opened(root, device, window, cameras, threads)
    open_s = time.perf_counter() - started
    place = current_device(dataset.decode_device)
    packets, encoded_bytes = _packets(dataset, batch_size, seed)
    load = DecoderLoad(place)
    rates: list[Rate] = []
    floors: list[float] = []
    every = seconds / (2 * ROUNDS)
    with (
        closing(iter(_loader(dataset, batch_size, workers, seed))) as loaded,
        closing(iter(to_device(itertools.cycle(packets), device=place))) as floor,
    ):
        for number in range(ROUNDS):
            skip = _WARM_UP + 4 * workers  # what workers have read ahead meanwhile
            rates.append(measure_rate(loaded, place, every, skip=skip, load=load))
            if encoded_bytes:
                rate = measure_rate(floor, place, every)
                floors.append(rate.batches_per_s * batch_size)
            if progress is not None:
                progress((number + 1) / ROUNDS)
    cores = [rate.cores for rate in rates if rate.cores is not None]
    samples_per_s = median(rate.batches_per_s for rate in rates) * batch_size
    return DeviceSpeed(
        device=str(place),
        decoded_on={key: str(where) for key, where in dataset.decoded_on.items()},
        window=window,
        batch_size=batch_size,
        workers=workers,
        samples=sum(rate.batches for rate in rates) * batch_size,
        open_s=open_s,
        samples_per_s=samples_per_s,
        floor_samples_per_s=median(floors) if floors else None,
        share=samples_per_s / median(floors) if floors else None,
        cores=median(cores) if cores else None,
        decoders_busy=load.share,
        decoders_unknown=load.missing,
        bytes_per_sample=encoded_bytes / (len(packets) * batch_size),
    )


def _opened(
    root: str | os.PathLike[str],
    device: DecodeDevice,
    window: int,
    cameras: Iterable[str] | None,
    threads: int | None,
) -> LeRobotDataset:
    known = Dataset(root, cameras=cameras)
    offsets = [(number - window + 1) / known.fps for number in range(window)]
    times = dict.fromkeys(known.cameras, offsets) if window > 1 else None
    return LeRobotDataset(
        "bench/dataset",
        root,
        cameras=list(known.cameras),
        delta_timestamps=times,
        return_uint8=True,
        decode_threads=threads,
        decode_device=device,
    )


def _loader(dataset: LeRobotDataset, batch_size: int, workers: int, seed: int) -> Any:
    random = torch.Generator().manual_seed(seed)
    order = RandomSampler(dataset, replacement=True, num_samples=1 << 30, generator=random)
    batches = PrefetchBatchSampler(order, batch_size=batch_size, num_workers=workers)
    return to_device(DataLoader(dataset, batch_sampler=batches, num_workers=workers))


def _packets(
    dataset: LeRobotDataset, batch_size: int, seed: int
) -> tuple[list[dict[str, EncodedImages]], int]:
    """Read the packets of random batches, as a worker does; also return how many bytes."""
    random = torch.Generator().manual_seed(seed)
    found: list[dict[str, EncodedImages]] = []

    size = 0
    with decoding_later():
        for _ in range(_FLOOR_BATCHES):
            indices = torch.randint(len(dataset), (batch_size,), generator=random).tolist()
            batch = dataset.read_batch(indices)
            found.append({k: v for k, v in batch.items() if isinstance(v, EncodedImages)})
            pieces = [one for value in found[-1].values() for _, one in value.images.pieces]
            size += sum(len(one.data) for one in pieces if isinstance(one, EncodedFrames))
    return found, size


@dataclass(frozen=True, slots=True)
class Rate:
    """How fast batches came.

    Attributes:
        batches: That were timed.
        batches_per_s: Of them.
        cores: Processor cores that this process and its children kept busy.
    """

    batches: int
    batches_per_s: float
    cores: float | None


def measure_rate(
    batches: Iterator[Any],
    device: torch.device,
    seconds: float,
    *,
    skip: int = _WARM_UP,
    load: DecoderLoad | None = None,
) -> Rate:
    """Take batches for so long, each of which must be ready on the device.

    Args:
        batches: Where they come from.
        device: The device.
        seconds: How long.
        skip: Batches that come first, and are not timed.
        load: Is told meanwhile how busy the device's decoders are.
    """
    for _ in range(skip):
        next(batches)
    begin, used, count = time.perf_counter(), processor_time(), 0
    with load or nullcontext():
        while time.perf_counter() - begin < seconds or not count:
            batch = next(batches)
            if device.type == "cuda":
                torch.cuda.current_stream(device).synchronize()
            count += 1
            del batch  # its memory serves the next one
        took = time.perf_counter() - begin
    cores = None if used is None else ((processor_time() or 0.0) - used) / took
    return Rate(count, count / took, cores)


def processor_time() -> float | None:
    """Return the seconds that this process and its children have computed, as /proc says."""
    if not Path("/proc/self/stat").exists():
        return None
    total, wanted = 0.0, {os.getpid()}
    ticks = os.sysconf("SC_CLK_TCK")
    for folder in sorted(Path("/proc").glob("[0-9]*"), key=lambda one: int(one.name)):
        try:
            words = (folder / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(folder.name) in wanted or int(words[1]) in wanted:
            wanted.add(int(folder.name))
            total += (int(words[11]) + int(words[12])) / ticks
    return total
