"""Opening a cut list's sources, and knowing whether they still are what they were."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

import numpy as np

from demoreel.edit.clips import Source
from demoreel.errors import ArgumentError
from demoreel.layouts.base import Reader
from demoreel.layouts.detect import open_reader
from demoreel.layouts.lance_reader import LanceReader
from demoreel.read.dataset import Dataset
from demoreel.storage.far.folder import FarFolder
from demoreel.storage.far.uris import is_far, open_far

_METADATA = ("info.json", "stats.json", "tasks", "episodes")
_MOST_READERS = 64


def identity_of(reader: Reader) -> str:
    """Return letters that change when the dataset's metadata do, or the version of its tables.

    Equal for a copy of the dataset. Cost: reads all of ``meta/``.
    """
    _ = reader.episodes  # which brings what lies far away still
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
_far_folders: dict[str, FarFolder] = {}


def remember_far(folder: FarFolder) -> str:
    """Let sources of this URI be opened as this folder was; return the URI."""
    _far_folders[folder.uri] = folder
    return folder.uri


def far_folder(source: Source) -> FarFolder:
    """Return the folder of a source that lies far away.

    Raises:
        DatasetNotFoundError: It is not there.
        StoreError: The store does not answer.
    """
    if source.path not in _far_folders:
        remember_far(open_far(source.path, with_versions=source.version is not None))
    return _far_folders[source.path]


def far_dataset_in(dataset: object) -> Dataset | None:
    """Return the dataset that torch's reads from afar; its folder is a copy of the metadata."""
    inner = getattr(dataset, "reader", None)
    return inner if isinstance(inner, Dataset) and inner.uri is not None else None


@lru_cache(maxsize=_MOST_READERS)
def _opened(path: str, identity: str, version: int | None) -> Reader:
    if is_far(path):
        folder = far_folder(Source(path, identity, version=version))
        return open_reader(folder.local, version=version, far=folder)
    return open_reader(Path(path), version=version)


def open_source(source: Source) -> Reader:
    """Return the reader of a source; a second call in the same process costs nothing.

    Raises:
        DatasetNotFoundError: It is not there.
        MetadataError: Its metadata are broken.
    """
    return _opened(source.path, source.identity, source.version)


def open_unchanged(sources: Sequence[Source]) -> list[Reader]:
    """Open all sources, and refuse those that are not what they were when the list was made.

    Raises:
        ArgumentError: A source has changed since.
        DatasetNotFoundError: One is not there.
        MetadataError: Its metadata are broken.
    """
    _opened.cache_clear()
    readers = []
    for source in sources:
        reader = open_source(source)
        if source.identity and identity_of(reader) != source.identity:
            raise ArgumentError(
                "A source has changed since the cut list was made.",
                hint="make the cut list again",
                dataset=source.path,
            )
        readers.append(reader)
    return readers


def added_values(path: str) -> np.ndarray:
    """Return the values of an added feature without reading them yet.

    Raises:
        ArgumentError: There is no such file, or it holds no array.
    """
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
