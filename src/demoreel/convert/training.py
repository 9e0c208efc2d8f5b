"""Compares ways to encode a dataset for training, on this machine, with the dataset's images."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from demoreel.edit.cut import cut
from demoreel.errors import ArgumentError, DemoreelError
from demoreel.read.dataset import Dataset
from demoreel.read.packets import PacketDecoder, camera_form, packet_decoder
from demoreel.run.anywhere import is_here

_SECONDS = 0.5  # of reading, for each figure
_FRAMES = 300  # that are encoded for a measurement
_BATCH = 16


@dataclass(frozen=True, slots=True)
class TrainingForm:
    """A way to encode cameras, and what it costs here.

    Attributes:
        codec: The codec; None is the source as it is, as are the next three.
        gop: Frames from keyframe to keyframe.
        image_size: Height and width; None keeps them.
        crf: Constant quality.
        bytes_per_frame: Of all cameras together.
        frames_per_s: Random single frames of all cameras, with every core, or on the device.
        windows_per_s: Random windows of 8.
        encoded_per_s: Frames of all cameras that were encoded in a second.
        decoded_on: What decoded it: ``cpu``, or the device.
        problem: Why this could not be measured: an encoder that is not here, or a device that does
            not decode it.
    """

    codec: str | None
    gop: int | None
    image_size: tuple[int, int] | None
    crf: int | None
    bytes_per_frame: float = 0.0
    frames_per_s: float = 0.0
    windows_per_s: float = 0.0
    encoded_per_s: float = 0.0
    decoded_on: str = "cpu"
    problem: str | None = None

    def options(self) -> str:
        """Return it as the options of ``demoreel convert``."""
        if self.codec is None:
            return ""
        said = [f"--codec {self.codec}", f"--gop {self.gop}", f"--crf {self.crf}"]
        if self.image_size is not None:
            said.append(f"--image-size {self.image_size[0]}x{self.image_size[1]}")
        return " ".join(said)


def measure_for_training(
    source: str | os.PathLike[str],
    *,
    codecs: Sequence[str] = ("h264", "hevc", "av1"),
    gops: Sequence[int] = (2, 12),
    image_size: tuple[int, int] | None = None,
    crf: int = 30,
    jobs: int | None = None,
    device: Any = "cpu",
    progress: Callable[[float], None] | None = None,
) -> list[TrainingForm]:
    """Encode a piece of a dataset in several ways, and read random frames of each.

    Cost: about 300 frames are decoded and encoded for each row, and read for a second; nothing
    stays on disk.

    Args:
        source: The dataset's folder.
        codecs: To be tried, with every one of ``gops``.
        gops: Frames from keyframe to keyframe.
        image_size: Also try this size; None tries half the height and width of the first camera.
        crf: Quality of all of them.
        jobs: Clips that are encoded at a time; None is every core.
        device: What decodes, as ``decode_device=`` of ``Dataset.batch``. A way that this GPU does
            not decode has a ``problem``; the source is then read by the CPU.
        progress: Called with the share that is done.

    Returns:
        The source as it is, first; then the ways, those that read fastest first.

    Raises:
        ArgumentError: There is no such device, or the dataset is not on this machine.
        MissingExtraError: What decodes there is not installed.
    """
    from demoreel.convert.run import convert

    decoder = packet_decoder(device)
    if not is_here(source):
        raise ArgumentError(
            "A way to encode is measured on a dataset of this machine.", hint="pull it first"
        )
    with tempfile.TemporaryDirectory(prefix="demoreel-for-training-") as scratch:
        piece = Path(scratch) / "piece"
        _take_piece(source, piece)
        dataset = Dataset(piece)
        colour = [key for key in dataset.cameras if not dataset.features[key].is_depth]
        if not colour:
            raise ArgumentError("No camera could be re-encoded.", dataset=Path(source))
        sizes = (None, image_size or _half(dataset, colour[0]))
        ways = [
            TrainingForm(codec, gop, size, crf)
            for size in sizes
            for codec in codecs
            for gop in gops
        ]
        found = [_measured(TrainingForm(None, None, None, None), piece, colour, decoder)]
        for number, way in enumerate(ways):
            made = Path(scratch) / f"way-{number}"
            began = time.perf_counter()
            try:
                convert(
                    piece,
                    made,
                    to="v3.0",
                    codec=way.codec,
                    gop=way.gop,
                    crf=way.crf,
                    image_size=way.image_size,
                    cameras=colour,
                    picture_stats=False,
                    verify="none",
                    jobs=jobs,
                )
            except DemoreelError as error:
                found.append(replace(way, problem=error.what))
                continue
            way = replace(way, encoded_per_s=len(dataset) / (time.perf_counter() - began))
            if decoder is not None and not _is_decoded(made, colour, decoder):
                way = replace(way, problem=f"{decoder} does not decode it")
            found.append(way if way.problem else _measured(way, made, colour, decoder))
            if progress is not None:
                progress((number + 1) / len(ways))
    return [found[0], *sorted(found[1:], key=lambda way: -way.frames_per_s)]


def _is_decoded(folder: Path, cameras: Sequence[str], decoder: PacketDecoder) -> bool:
    """Whether a device decodes all these cameras."""
    reader = Dataset(folder).reader
    forms = [camera_form(reader, key) for key in cameras]
    return all(form is not None and decoder.is_decoded(form) for form in forms)


def _take_piece(source: str | os.PathLike[str], piece: Path) -> None:
    """Copy the beginning of some episodes."""
    whole = cut(source)
    lengths = Dataset(source).episodes
    chosen: list[int] = []
    for number, length in zip(lengths.episode_index.tolist(), lengths.length.tolist(), strict=True):
        chosen.append(number)
        if sum(lengths.length[: len(chosen)]) >= _FRAMES or length >= _FRAMES:
            break
    whole.keep(chosen).render(piece)


def _half(dataset: Dataset, camera: str) -> tuple[int, int]:
    height, width = dataset.features[camera].image_shape[:2]
    return max(2, height // 4 * 2), max(2, width // 4 * 2)


def _measured(
    way: TrainingForm, folder: Path, cameras: Sequence[str], decoder: PacketDecoder | None
) -> TrainingForm:
    if decoder is not None and not _is_decoded(folder, cameras, decoder):
        decoder = None
    rates = []
    for window in (1, 8):
        windows = {key: list(range(1 - window, 1)) for key in cameras} if window > 1 else None
        rates.append(_rate(Dataset(folder, cameras=cameras, windows=windows), decoder))
    dataset = Dataset(folder, cameras=cameras)
    return replace(
        way,
        bytes_per_frame=_image_bytes(dataset) / len(dataset),
        frames_per_s=rates[0],
        windows_per_s=rates[1],
        decoded_on="cpu" if decoder is None else str(decoder),
    )


def _rate(dataset: Dataset, decoder: PacketDecoder | None) -> float:
    random = np.random.default_rng(0)

    def read() -> None:
        dataset.batch(random.integers(0, len(dataset), _BATCH), decode_device=decoder)
        if decoder is not None:
            decoder.synchronize()

    read()  # warms up
    samples, began = 0, time.perf_counter()
    while time.perf_counter() < began + _SECONDS:
        read()
        samples += _BATCH
    return samples / (time.perf_counter() - began)


def _image_bytes(dataset: Dataset) -> int:
    total, reader = 0, dataset.reader
    rows = np.arange(len(dataset))
    for key in dataset.cameras:
        if reader.in_tables(key):
            total += sum(map(len, reader.encoded(rows, key)))
            continue
        for position in range(len(reader.episodes)):
            clip = reader.clip(position, key)
            frames = clip.frames(np.arange(int(reader.episodes.length[position])))
            index = clip.video.index
            total += int(index.size[index.packet_of[frames]].sum())
    return total
