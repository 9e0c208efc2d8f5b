"""Files of predicted actions, to be drawn over recorded ones: parquet or npz.

A file has a row for each frame: columns of numbers, ``episode_index`` and ``frame_index``. Without
these two, its rows are the frames of the one episode that has as many.
"""

from __future__ import annotations

import io
import threading
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

import numpy as np
import pyarrow as pa

from demoreel.errors import ArgumentError, UnknownKeyError
from demoreel.storage.arrow import UNREADABLE
from demoreel.storage.parquet import open_parquet

MOST_SENT = 64 << 20
_MOST_BYTES = 512 << 20
_MOST_DIMENSIONS = 1024
_MOST_UPLOADED = 8
_NO_ARRAYS = (ValueError, EOFError, zipfile.BadZipFile, NotImplementedError)
_WHICH = ("episode_index", "frame_index")
_HINT = "parquet or npz, with a column action, and episode_index and frame_index"


class Predictions:
    """The files of predictions of a viewer: those it was started with, and those sent by a page.

    Args:
        paths: The files it was started with; no other can be named.
    """

    def __init__(self, paths: Sequence[str]) -> None:
        for path in paths:
            if not Path(path).is_file():
                raise ArgumentError("There is no such file of predictions.", hint=_HINT, file=path)
        self._files: list[tuple[str, str | bytes]] = [(Path(path).name, path) for path in paths]
        self._first_sent = len(self._files)
        self._lock = threading.Lock()
        self._read: dict[int, dict[str, np.ndarray]] = {}

    def listed(self) -> list[dict[str, object]]:
        """Return the files' numbers and names."""
        return [{"number": n, "name": name} for n, (name, _) in enumerate(self._files)]

    def add(self, name: str, content: bytes) -> int:
        """Take a file that a page has sent; return its number."""
        columns = _columns_of(content, name)
        with self._lock:
            if len(self._files) - self._first_sent >= _MOST_UPLOADED:
                raise ArgumentError(f"There are {_MOST_UPLOADED} files of predictions already.")
            self._files.append((name[:200], b""))
            self._read[len(self._files) - 1] = columns
            return len(self._files) - 1

    def columns(self, number: int, episode: int, length: int) -> dict[str, np.ndarray]:
        """Return what a file predicts for each frame of an episode, (frames, dimensions).

        Frames that it does not have are NaN.

        """
        if not 0 <= number < len(self._files):
            raise UnknownKeyError(f"There is no file of predictions {number}.")
        with self._lock:
            if number not in self._read:
                name, path = self._files[number]
                self._read[number] = _columns_of(path, name)
            columns = self._read[number]
        return _of_episode(columns, self._files[number][0], episode, length)


def _of_episode(
    columns: Mapping[str, np.ndarray], name: str, episode: int, length: int
) -> dict[str, np.ndarray]:
    rows = len(next(iter(columns.values())))
    frames = np.arange(rows)
    mine = np.ones(rows, bool)
    if "episode_index" in columns:
        mine = columns["episode_index"].reshape(rows, -1)[:, 0] == episode
        frames = np.cumsum(mine) - 1
    elif rows != length:
        raise ArgumentError(
            f"{name} has {rows} rows and no episode_index; episode {episode} has {length} frames.",
            hint=_HINT,
        )
    if "frame_index" in columns:
        frames = columns["frame_index"].reshape(rows, -1)[:, 0].astype(np.int64)
    mine &= (frames >= 0) & (frames < length)
    if not mine.any():
        raise ArgumentError(f"{name} predicts nothing of episode {episode}.")
    found = {}
    for key, values in columns.items():
        if key not in _WHICH:
            found[key] = np.full((length, values.shape[1]), np.nan)
            found[key][frames[mine]] = values[mine]
    return found


def _columns_of(source: str | bytes, name: str) -> dict[str, np.ndarray]:
    """Return the number columns of a file, each (rows, dimensions) in float64."""
    size = len(source) if isinstance(source, bytes) else Path(source).stat().st_size
    if size > _MOST_BYTES:
        raise ArgumentError(f"{name} has more than {_MOST_BYTES >> 20} MB.")
    with io.BytesIO(source) if isinstance(source, bytes) else Path(source).open("rb") as opened:
        start = opened.read(4)
        opened.seek(0)
        try:
            if start == b"PAR1":
                found = _of_parquet(source)
            elif start == b"PK\x03\x04":
                found = _of_npz(opened, name)
            else:
                raise ArgumentError(f"{name} is neither parquet nor npz.", hint=_HINT)
        except (
            *UNREADABLE,
            ValueError,
            EOFError,
            zipfile.BadZipFile,
            NotImplementedError,
        ) as error:
            raise ArgumentError(f"{name} cannot be read: {error}"[:300], hint=_HINT) from error
    lengths = {len(values) for values in found.values()}
    if not set(found) - set(_WHICH) or len(lengths) != 1 or lengths == {0}:
        raise ArgumentError(f"{name} has no columns of numbers with the same rows.", hint=_HINT)
    return found


def _of_parquet(source: str | bytes) -> dict[str, np.ndarray]:
    with open_parquet(source, kind=ArgumentError) as parquet:
        schema = parquet.schema_arrow
        wanted = [field.name for field in schema if _dimensions_may_be(field.type)]
        parts: list[pa.Table] = []
        total = 0
        for part in parquet.blocks(wanted):
            total += part.nbytes
            if total > _MOST_BYTES:
                raise ArgumentError(f"The table has more than {_MOST_BYTES >> 20} MB.")
            parts.append(part)
    table = pa.concat_tables(parts) if parts else schema.empty_table()
    found = {}
    for key in wanted:
        column = table[key].combine_chunks()
        rows = len(column)
        while pa.types.is_nested(column.type):
            column = column.flatten()
        values = np.asarray(column.to_numpy(zero_copy_only=False), np.float64)
        if rows and len(values) % rows == 0 and 0 < len(values) // rows <= _MOST_DIMENSIONS:
            found[key] = values.reshape(rows, -1)
    return found


def _dimensions_may_be(kind: pa.DataType) -> bool:
    types = pa.types
    while types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        kind = kind.value_type
    return bool(types.is_floating(kind) or types.is_integer(kind))


def _of_npz(opened: IO[bytes], name: str) -> dict[str, np.ndarray]:
    found = {}
    with zipfile.ZipFile(opened) as packed:
        entries = [entry for entry in packed.infolist() if entry.filename.endswith(".npy")]
        if sum(entry.file_size for entry in entries) > _MOST_BYTES:
            raise ArgumentError(f"{name} has more than {_MOST_BYTES >> 20} MB.")
        for entry in entries:
            with packed.open(entry) as part:
                values = _array_of(part, entry.file_size)
            if values is None:
                continue
            if values.ndim == 3:  # chunks of actions: the first is for the frame itself
                values = values[:, 0]
            key = entry.filename.removesuffix(".npy")
            if values.ndim in (1, 2) and values[:1].size <= _MOST_DIMENSIONS:
                found[key] = values.reshape(len(values), -1).astype(np.float64)
    return found


def _array_of(part: IO[bytes], size: int) -> np.ndarray | None:
    """Return an array whose header tells no more than there is; None if it has no numbers."""
    version = np.lib.format.read_magic(part)
    read = np.lib.format.read_array_header_1_0
    if version == (2, 0):
        read = np.lib.format.read_array_header_2_0
    elif version != (1, 0):
        raise ValueError(f"an array of version {version}")
    shape, is_fortran, kind = read(part)
    if kind.kind not in "fiub" or kind.hasobject:
        return None
    count = int(np.prod([int(length) for length in shape], dtype=object))
    if count * kind.itemsize > size:
        raise ValueError("an array is cut off")
    values = np.frombuffer(part.read(count * kind.itemsize), kind, count)
    return values.reshape(shape, order="F" if is_fortran else "C")
