"""Opens the sources of a cut list, and checks whether they have changed."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from weakref import WeakKeyDictionary

import numpy as np

from demoreel.edit.clips import Source
from demoreel.errors import ArgumentError
from demoreel.layouts.base import Column, Reader
from demoreel.layouts.detect import open_reader
from demoreel.layouts.lance.reader import LanceReader
from demoreel.layouts.pending import refuse_waiting
from demoreel.read.dataset import Dataset
from demoreel.run.anywhere import is_here
from demoreel.storage.folder import DatasetFolder, dataset_folder
from demoreel.storage.remote.folder import RemoteFolder

_METADATA = ("info.json", "stats.json", "tasks", "episodes")
_MOST_READERS = 64
_MOST_KEPT = 64 << 20
_BYTES_OF_TEXT = 4096  # more than a text, or a list of language rows, takes


def identity_of(reader: Reader) -> str:
    """Return letters that change when the dataset's metadata do, or the version of its tables.

    Equal for a copy of the dataset. Cost: reads all of ``meta/``.
    """
    _ = reader.episodes  # which brings what is remote still
    meta = reader.meta
    digest = hashlib.sha256(reader.layout.encode())
    for path in sorted(meta.rglob("*")):
        place = path.relative_to(meta)
        if path.is_file() and place.parts[0].startswith(_METADATA):
            digest.update(f"\n{place.as_posix()} {path.stat().st_size}\n".encode())
            with path.open("rb") as file:
                while data := file.read(1 << 20):
                    digest.update(data)
    if isinstance(reader, LanceReader):
        digest.update(repr([table.version for table in reader.tables.values()]).encode())
    return digest.hexdigest()[:24]


# By URI: a cut list names places, and says nothing of the credentials that opened them.
_remote_folders: dict[str, RemoteFolder] = {}


def remember_remote(folder: DatasetFolder) -> str:
    """Let sources of this URI be opened as this folder was; return the URI."""
    assert isinstance(folder, RemoteFolder)
    _remote_folders[folder.uri] = folder
    return folder.uri


def place_of(source: Source) -> Path | RemoteFolder:
    """Return where a source is; one that is remote is opened."""
    if is_here(source.path):
        return Path(source.path)
    if source.path not in _remote_folders:
        remember_remote(dataset_folder(source.path, with_versions=source.version is not None))
    return _remote_folders[source.path]


def remote_dataset_in(dataset: object) -> Dataset | None:
    """Return the dataset that torch's reads remotely; its folder is a copy of the metadata."""
    inner = getattr(dataset, "reader", None)
    return inner if isinstance(inner, Dataset) and inner.uri is not None else None


@lru_cache(maxsize=_MOST_READERS)
def _opened(path: str, identity: str, version: int | None) -> Reader:
    return open_reader(place_of(Source(path, identity, version=version)), version=version)


def open_source(source: Source) -> Reader:
    """Return the reader of a source; a second call in the same process costs nothing."""
    return _opened(source.path, source.identity, source.version)


def open_unchanged(sources: Sequence[Source]) -> list[Reader]:
    """Open all sources, and refuse those that are not what they were when the list was made."""
    _opened.cache_clear()
    readers = []
    for source in sources:
        reader = open_source(source)
        if source.version is None:
            refuse_waiting(reader.root, "cut")
        if source.identity and identity_of(reader) != source.identity:
            raise ArgumentError(
                "A source has changed since the cut list was made.",
                hint="make the cut list again",
                dataset=source.path,
            )
        readers.append(reader)
    return readers


def added_values(path: str) -> np.ndarray:
    """Return the values of an added feature without reading them yet."""
    try:
        values = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise ArgumentError(
            f"The values of a feature cannot be read ({error}).",
            hint="save them with numpy.save: one row for each frame of the source",
            file=path,
        ) from error
    if not isinstance(values, np.ndarray) or values.ndim == 0:
        raise ArgumentError("The values of a feature are not an array of rows.", file=path)
    return values


class _Kept:
    """Columns of spans of episodes, as long as they are small together."""

    def __init__(self) -> None:
        self._spans: list[tuple[int, int, Mapping[str, Column]]] = []
        self._room = _MOST_KEPT

    def find(self, reader: Reader, first: int, stop: int) -> Mapping[str, Column] | None:
        start = reader.episodes.start
        for begin, end, columns in self._spans:
            if begin <= first and stop <= end:
                rows = slice(int(start[first] - start[begin]), int(start[stop] - start[begin]))
                return {key: column[rows] for key, column in columns.items()}
        return None

    def keep(self, first: int, stop: int, columns: Mapping[str, Column]) -> None:
        size = sum(
            column.nbytes if isinstance(column, np.ndarray) else len(column) * _BYTES_OF_TEXT
            for column in columns.values()
        )
        if size <= self._room:
            self._room -= size
            self._spans.append((first, stop, columns))


_remembering: WeakKeyDictionary[Reader, _Kept] = WeakKeyDictionary()


@contextmanager
def remembering(reader: Reader) -> Iterator[None]:
    """Keep what ``rows_of_source`` reads of a source in the block, up to 64 MB of it."""
    _remembering[reader] = _Kept()
    try:
        yield
    finally:
        _remembering.pop(reader, None)


def rows_of_source(reader: Reader, first: int, stop: int) -> Mapping[str, Column]:
    """Return every column but the cameras' of the episodes at ``first`` to ``stop`` - 1.

    As the reader's own ``rows_once``; rows that were read before and are remembered cost nothing.
    They must not be changed.
    """
    kept = _remembering.get(reader)
    if kept is None:
        return reader.rows_once(first, stop)
    found = kept.find(reader, first, stop)
    if found is None:
        found = reader.rows_once(first, stop)
        kept.keep(first, stop, found)
    return found
