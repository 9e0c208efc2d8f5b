"""How often each level occurs in an episode's frames: a file beside the episodes' metadata.

Statistics of several episodes' frames follow exactly from these counts, quantiles too; from the
episodes' own statistics they do not. One row for each episode and camera (``layouts/beside.py``).
The statistics that follow from a row must be those that the episode's own metadata state; see
``stats.levels.validated_histograms``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from demoreel.errors import ArgumentError, UnknownKeyError, nearest
from demoreel.layouts.beside import Beside, BesideWriter
from demoreel.layouts.v3.files import FilePlace

_MOST_LEVELS = 65536

HISTOGRAMS = Beside(
    "histograms",
    pa.schema(
        [
            ("episode_index", pa.int64()),
            ("camera", pa.string()),
            ("frames", pa.int64()),
            ("channels", pa.int64()),
            ("levels", pa.int64()),
            ("first_level", pa.int64()),
            ("counts", pa.list_(pa.int64())),
        ]
    ),
    dictionary=["camera"],
    # Neighbouring levels occur about as often: differences take few bits.
    encodings={"counts.list.element": "DELTA_BINARY_PACKED"},
)


@dataclass(frozen=True, slots=True)
class Histogram:
    """What one camera saw in one episode.

    Attributes:
        episode: The episode's ``episode_index``.
        camera: The camera's key.
        frames: Frames that were counted.
        counts: Pixels of each level: channels x levels.
    """

    episode: int
    camera: str
    frames: int
    counts: np.ndarray


def histograms_name(place: FilePlace) -> str:
    """Return the path of a file, relative to the dataset's folder."""
    return HISTOGRAMS.path(place)


def histogram_files(meta: Path) -> list[Path]:
    """Return the files below a folder of metadata; none where there are none."""
    return HISTOGRAMS.files(meta)


def check_histograms(histograms: Mapping[str, np.ndarray], cameras: Sequence[str]) -> None:
    """Refuse histograms that no camera of these can have."""
    for key, counts in histograms.items():
        if key not in cameras:
            raise UnknownKeyError(
                f"The dataset declares no camera {key!r}.", hint=nearest(key, cameras)
            )
        if counts.ndim != 2 or counts.dtype.kind not in "iu" or counts.shape[1] > _MOST_LEVELS:
            raise ArgumentError(
                f"A histogram is channels x levels of whole numbers, not {counts.dtype} "
                f"{list(counts.shape)}.",
                camera=key,
            )


class HistogramWriter(BesideWriter):
    """Writes a file of histograms, some at a time; use it as a context manager.

    Takes about 1 to 3 kB on disk for each episode and camera of 8-bit frames.

    Args:
        path: The file to make.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(path, HISTOGRAMS)

    def add(self, histogram: Histogram) -> None:
        """Take one; it is written with others."""
        self.add_row(_row_of(histogram))


def write_histograms(path: Path, histograms: Iterable[Histogram]) -> None:
    """Write a file of histograms."""
    with HistogramWriter(path) as writer:
        for histogram in histograms:
            writer.add(histogram)


def read_histograms(meta: Path) -> Iterator[Histogram]:
    """Yield all histograms below a folder of metadata; what cannot be read is passed over.

    Cost: reads the files once; memory for 64 of them at a time.
    """
    for table in HISTOGRAMS.tables(meta):
        yield from _histograms(table)


def _row_of(histogram: Histogram) -> dict[str, object]:
    """Return a row; of depth, only the levels between the nearest and the farthest are kept."""
    counts = histogram.counts
    present = np.flatnonzero(counts.any(axis=0))
    first, stop = (int(present[0]), int(present[-1]) + 1) if len(present) else (0, 0)
    return {
        "episode_index": histogram.episode,
        "camera": histogram.camera,
        "frames": histogram.frames,
        "channels": counts.shape[0],
        "levels": counts.shape[1],
        "first_level": first,
        "counts": np.ascontiguousarray(counts[:, first:stop], np.int64).reshape(-1),
    }


def _histograms(table: pa.Table) -> Iterator[Histogram]:
    for column in table.columns:
        if column.null_count:
            return
    values = table.column("counts").combine_chunks()
    names = ("episode_index", "camera", "frames", "channels", "levels", "first_level")
    columns = [table.column(name).to_pylist() for name in names]
    for number, row in enumerate(zip(*columns, strict=True)):
        episode, camera, frames, channels, levels, first = row
        found = values[number].values.to_numpy()
        if channels < 1 or not 0 < levels <= _MOST_LEVELS or len(found) % channels:
            continue
        width = len(found) // channels
        if not 0 <= first <= levels - width:
            continue
        counts = np.zeros((channels, levels), np.int64)
        counts[:, first : first + width] = found.reshape(channels, width)
        yield Histogram(episode, camera, frames, counts)
