"""Files that demoreel stores beside the episodes' metadata, such as histograms.

They are in a folder that no other program looks into, and are named like the file under
``meta/episodes`` that they came with::

    meta/demoreel/KIND/chunk-000/file-000.parquet

Rows say which episode they are of, in any order. Another program may renumber or replace episodes
without touching these files, so a row is never used for its number alone: each kind has something
in it that must agree with the episode. ``capture_times.py`` is one kind; histograms are another:
how often each level occurs in an episode's frames, one row for each episode and camera.
Statistics of several episodes' frames follow exactly from these counts, quantiles too; from the
episodes' own statistics they do not. The statistics that follow from a row must be those that the
episode's own metadata state; see ``stats.levels.validated_histograms``.

``meta/demoreel.json`` says which statistics are not exactly those of the data. The note names the
file of statistics that it is about by a checksum: once another program has rewritten that file,
nothing is known any more.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from demoreel.errors import (
    ArgumentError,
    DemoreelError,
    MetadataError,
    UnknownKeyError,
    nearest,
    refuse_shortage,
)
from demoreel.layouts.v3.files import FilePlace
from demoreel.layouts.writing import write_json
from demoreel.model import Feature, Stats
from demoreel.storage.json_files import read_json
from demoreel.storage.parquet import open_parquet

_IN_META = "demoreel"


@dataclass(frozen=True)
class Beside:
    """One kind of such files.

    Attributes:
        name: The name of its folder.
        schema: Its columns.
        at_once: Rows that are written and read together.
        dictionary: Columns whose values repeat.
        encodings: Parquet encodings of other columns.
    """

    name: str
    schema: pa.Schema
    at_once: int = 64
    dictionary: Sequence[str] = ()
    encodings: Mapping[str, str] = field(default_factory=dict)

    @property
    def folder(self) -> str:
        """Its folder, below the folder of metadata."""
        return f"{_IN_META}/{self.name}"

    def path(self, place: FilePlace) -> str:
        """Return the path of a file, relative to the dataset's folder."""
        return f"meta/{self.folder}/chunk-{place.chunk:03d}/file-{place.file:03d}.parquet"

    def files(self, meta: Path) -> list[Path]:
        """Return the files below a folder of metadata; none where there are none."""
        # Not what is no file: opening a pipe would wait for ever.
        return sorted(path for path in (meta / self.folder).glob("*/*.parquet") if path.is_file())

    def tables(self, meta: Path) -> Iterator[pa.Table]:
        """Yield all rows below a folder of metadata, some at a time.

        What cannot be read is passed over: a damaged file is as good as none.
        """
        for path in self.files(meta):
            try:
                with open_parquet(path, kind=MetadataError) as parquet:
                    for table in parquet.blocks(self.schema.names, rows=self.at_once):
                        yield table.cast(self.schema)
            except (pa.ArrowException, OSError, ValueError, KeyError, MetadataError) as error:
                refuse_shortage(error)


class BesideWriter:
    """Writes a file of one kind, some rows at a time; use it as a context manager.

    Where nothing is added, no file is made.
    """

    def __init__(self, path: Path, kind: Beside) -> None:
        self._path = path
        self._kind = kind
        self._waiting: list[Mapping[str, Any]] = []
        self._writer: pq.ParquetWriter | None = None

    def add_row(self, row: Mapping[str, Any]) -> None:
        """Take one row; it is written with others."""
        self._waiting.append(row)
        if len(self._waiting) == self._kind.at_once:
            self._flush()

    def copy(self, path: Path) -> None:
        """Take all rows of another file, as they are."""
        self._flush()
        with open_parquet(path, kind=MetadataError) as parquet:
            for table in parquet.blocks(self._kind.schema.names, rows=self._kind.at_once):
                self._write(table.cast(self._kind.schema))

    def _flush(self) -> None:
        if self._waiting:
            self._write(pa.Table.from_pylist(list(self._waiting), schema=self._kind.schema))
            self._waiting = []

    def _write(self, table: pa.Table) -> None:
        if self._writer is None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._writer = pq.ParquetWriter(
                self._path,
                self._kind.schema,
                compression="zstd",
                use_dictionary=list(self._kind.dictionary),
                column_encoding=dict(self._kind.encodings),
            )
        self._writer.write_table(table)

    def close(self) -> None:
        """Write what is left and finish the file."""
        self._flush()
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            self.close()
        elif self._writer is not None:
            self._writer.close()


NOTE = "demoreel.json"
"""The note's name, in the folder of metadata."""

Approximate = dict[str, list[str]]
"""Feature key -> kinds of its statistics that are approximate; exact ones are left out."""

_STATS = ("episodes_stats.jsonl", "stats.json")


def write_note(path: Path, approximate: Mapping[str, Sequence[str]], *, stats: Path) -> None:
    """Write a note.

    Args:
        path: The file to make.
        approximate: Kinds of statistics that are approximate, by feature.
        stats: The file of statistics that it is about.
    """
    listed = {key: list(kinds) for key, kinds in approximate.items() if kinds}
    write_json(path, {"approximate_stats": listed, "of_stats": _check_sum(stats)})


def noted(meta: Path) -> Approximate | None:
    """Return which statistics are approximate; None where nothing is known.

    Cost: reads the file of statistics.
    """
    stats = next((meta / name for name in _STATS if (meta / name).is_file()), None)
    if stats is None or not (meta / NOTE).is_file():
        return None
    try:
        raw: Any = read_json(meta / NOTE)
        if raw["of_stats"] != _check_sum(stats):
            return None
        return {
            str(key): [str(k) for k in kinds] for key, kinds in raw["approximate_stats"].items()
        }
    except (DemoreelError, KeyError, TypeError, AttributeError):
        return None


def approximate_stats(meta: Path, features: Mapping[str, Feature], stats: Stats) -> Approximate:
    """Return which of a dataset's statistics are, or may be, approximate.

    Where nothing is known, because another program wrote them, these are: quantiles of numbers,
    which are combined from those of episodes there, and all of frames, of which some are looked
    at.
    """
    known = noted(meta)
    if known is not None:
        return known
    found: Approximate = {}
    for key, kinds in stats.items():
        camera = key in features and features[key].is_camera
        listed = [kind for kind in kinds if camera or kind.startswith("q")]
        if listed:
            found[key] = listed
    return found


def _check_sum(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


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
