"""What demoreel asks of Lance, as functions of plain values.

They may run in this process or in a helper (see ``lance_process``), so what goes in and comes out
can be pickled. Open tables and blobs are kept here, by path and version.

This is the only module that imports Lance, and only when a table is first looked at: that takes a
quarter of a second.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import sys
import warnings
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from demoreel.storage.arrow import as_numpy
from demoreel.storage.lance_places import RemotePlace, Where, said_of_store
from demoreel.storage.lance_values import ValuePage

if TYPE_CHECKING:
    from lance import BlobFile, LanceDataset

_LONG_RUN = 1000  # rows side by side from which a scan of them is faster than a take
_ROWS_AT_ONCE = 1 << 16
_MOST_TABLES = 64
_MOST_BLOBS = 128  # each keeps a file open
_REMOTE_BLOCK = 1 << 14
# Ranges with a smaller gap between them are one request to an object store. With Lance's own 64 KB,
# a batch of 32 frames read 1.44 times the bytes that it needed in 23 requests; so 1.04 times in 29.
_RUST_SOURCE = re.compile(r",? /\S+\.rs:\d+:\d+")
_PAGE_ROWS = re.compile(r"num_(?:visible_)?items: (\d+)")
_MISSING = re.compile(r"Dataset at path .* was not found")
_NOISE = ("External error: ", "LanceError(IO): ", "Generic LocalFileSystem error: ")

Wanted = int | str | None
"""A version's number or tag; None is the newest."""

_tables: OrderedDict[tuple[Where, int], LanceDataset] = OrderedDict()
_blobs: OrderedDict[tuple[Where, int, str, int], BlobFile | None] = OrderedDict()


class LanceFailure(Exception):
    """What Lance raised, in one line."""


class MissingTable(LanceFailure):
    """There is no table."""


def find_version(place: Where, wanted: Wanted) -> int:
    """Return the number of a version, and keep the table open at it."""
    with _failures(place):
        return int(_open(place, wanted).version)


def _open(place: Where, wanted: Wanted) -> LanceDataset:
    table: LanceDataset = _lance_table(place, wanted)
    key = (place, int(table.version))
    if key in _tables:  # another table may have been made there meanwhile, of the same version
        for blob in [blob for blob in _blobs if blob[:2] == key]:
            del _blobs[blob]
    _keep(_tables, key, table, _MOST_TABLES)
    return table


def _lance_table(place: Where, wanted: Wanted = None) -> Any:
    if isinstance(place, RemotePlace):
        return import_lance().dataset(
            place.uri,
            version=wanted,
            storage_options=place.storage_options(),
            block_size=_REMOTE_BLOCK,
        )
    _refuse_special_files(place)
    return import_lance().dataset(place, version=wanted)


def _refuse_special_files(folder: str) -> None:
    """Refuse a table with pipes or devices among its files: Lance would wait for them for ever.

    Costs a listing of the table's folders.
    """
    waiting = [folder]
    while waiting and os.path.isdir(waiting[-1]):
        with os.scandir(waiting.pop()) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    waiting.append(entry.path)
                elif not entry.is_file() and os.path.exists(entry.path) and not entry.is_dir():
                    raise OSError(errno.EINVAL, "It is no regular file", entry.path)


def versions(place: Where) -> tuple[int, dict[str, int]]:
    """Return the newest version, and the version of each tag."""
    with _failures(place):
        table: LanceDataset = _lance_table(place)
        return int(table.version), {n: int(tag["version"]) for n, tag in table.tags.list().items()}


def dataset(place: Where, version: int) -> LanceDataset:
    """Return Lance's own object; for this process only."""
    return _tables.get((place, version)) or _open(place, version)


def metadata(place: Where, version: int) -> dict[str, str]:
    """Return what the table's writers have noted in it."""
    with _failures(place):
        return dict(dataset(place, version).metadata)


def columns(place: Where, version: int) -> list[str]:
    """Return the names of the columns."""
    with _failures(place):
        return list(dataset(place, version).schema.names)


def digest(place: Where, version: int) -> str:
    """Return a text that is equal for two versions only if they hold the same rows."""
    with _failures(place):
        parts = [fragment.metadata for fragment in dataset(place, version).get_fragments()]
    # Data files are never written to again, and their names are random.
    names = [(str(part.deletion_file), *(file.path for file in part.files)) for part in parts]
    return hashlib.sha256(repr(names).encode()).hexdigest()[:16]


def count_rows(place: Where, version: int) -> int:
    """Return the number of rows that are not deleted."""
    with _failures(place):
        return int(dataset(place, version).count_rows())


def take(place: Where, version: int, places: np.ndarray, names: Sequence[str]) -> pa.Table:
    """Return the rows at these places among those that are not deleted, in this order."""
    with _failures(place):
        first, count = int(places[0]), len(places)
        table = dataset(place, version)
        if count >= _LONG_RUN and np.array_equal(places, np.arange(first, first + count)):
            return table.slice(first, first + count, columns=list(names))
        return table.take(places.tolist(), columns=list(names))


def scan(place: Where, version: int, names: Sequence[str]) -> pa.Table:
    """Return whole columns."""
    with _failures(place):
        return dataset(place, version).to_table(columns=list(names))


def value_pages(place: Where, version: int, name: str) -> list[ValuePage] | None:
    """Return where a column's values lie in local data files; None if that is not so simple."""
    if isinstance(place, RemotePlace):
        return None
    with _failures(place):
        from lance.file import LanceFileReader

        table = dataset(place, version)
        field = next(field.id() for field in table.lance_schema.fields() if field.name() == name)
        pages: list[ValuePage] = []
        for fragment in table.get_fragments():
            meta = fragment.metadata
            files = [file for file in meta.files if field in file.fields]
            file = os.path.join(place, "data", files[0].path) if len(files) == 1 else ""
            if meta.num_deletions or meta.overlays or not os.path.isfile(file):
                return None
            column = files[0].column_indices[list(files[0].fields).index(field)]
            if column < 0 or files[0].base_id is not None:
                return None
            for page in LanceFileReader(file).metadata().columns[column].pages:
                rows = _PAGE_ROWS.search(page.encoding)
                if "FullZip" not in page.encoding or rows is None or len(page.buffers) != 2:
                    return None
                data, index = ((buffer.position, buffer.size) for buffer in page.buffers)
                kind = sys.intern(_PAGE_ROWS.sub("", page.encoding))  # thousands share a few
                pages.append(ValuePage(file, int(rows[1]), data, index, kind))
            if sum(page.rows for page in pages if page.path == file) != meta.physical_rows:
                return None
        return pages


def matching(place: Where, version: int, condition: str, column: str) -> np.ndarray:
    """Return the different values of a number column among the rows that meet an SQL condition."""
    with _failures(place):
        rows = dataset(place, version).scanner(
            columns=[column], filter=condition, batch_size=_ROWS_AT_ONCE
        )
        found = [np.unique(as_numpy(batch.column(0))) for batch in rows.to_batches()]
    return np.unique(np.concatenate([np.zeros(0, np.int64), *found]))


def blob_rows(
    place: Where, version: int, names: Sequence[str], column: str
) -> tuple[pa.Table, dict[int, list[str]]]:
    """Return whole columns with row ids and where each row's blob lies, and what files there are.

    Returns:
        The columns, ``_rowid`` and ``_rowaddr``, and ``kind``, ``position``, ``size``, ``blob_id``
        and ``blob_uri`` of each blob (none of these for blobs of the older encoding); and by
        fragment, the upper half of a row's address, the data files that lie in the table's own
        folder.
    """
    with _failures(place):
        table = dataset(place, version)
        found = table.to_table(columns=[*names, column], with_row_id=True, with_row_address=True)
        blobs = found.column(column).combine_chunks()
        found = found.drop_columns([column])
        if pa.types.is_struct(blobs.type) and blobs.type.get_field_index("kind") >= 0:
            for field in blobs.type:
                found = found.append_column(field.name, blobs.field(field.name))
        files = {
            int(fragment.fragment_id): [
                file.path for file in fragment.metadata.files if file.base_id is None
            ]
            for fragment in table.get_fragments()
        }
    return found, files


def blob_size(place: Where, version: int, column: str, row: int) -> int | None:
    """Return the size of a row's blob; None if the row has none."""
    with _failures(place):
        blob = _blob(place, version, column, row)
        return blob.size() if blob is not None else None


def blob_ranges(
    place: Where, version: int, column: str, row: int, ranges: Sequence[tuple[int, int]]
) -> list[bytes]:
    """Return the bytes of (offset, length) ranges of a row's blob."""
    with _failures(place):
        blob = _blob(place, version, column, row)
        assert blob is not None
        if len(ranges) == 1:
            return [blob.read_range(*ranges[0])]
        return blob.read_ranges(list(ranges))


def ranges_of_blobs(
    place: Where, version: int, column: str, wanted: Sequence[tuple[int, int, int]]
) -> list[bytes]:
    """Return the bytes of (row, offset, length) ranges of many rows' blobs, read side by side."""
    with _failures(place):
        found = dataset(place, version).read_blob_ranges(
            column, wanted, selector="ids", preserve_order=True
        )
    parts = [data for _, _, data in found if data is not None]
    if len(parts) != len(wanted):
        raise LanceFailure("a row holds no bytes")
    return parts


def _blob(place: Where, version: int, column: str, row: int) -> BlobFile | None:
    key = (place, version, column, row)
    blob = _blobs.get(key)
    if blob is None:
        blob = dataset(place, version).take_blobs(column, ids=[row])[0]
        _keep(_blobs, key, blob, _MOST_BLOBS)
    return blob


def _keep(cache: OrderedDict[Any, Any], key: object, value: object, most: int) -> None:
    cache[key] = value
    while len(cache) > most:
        cache.popitem(last=False)


def import_lance() -> Any:
    """Import Lance.

    It warns at every fork of a process that has imported it. A forked process leaves Lance alone
    here, so that warning is kept from users who did not import Lance themselves.
    """
    is_first = "lance" not in sys.modules
    import lance  # in any case: this waits for another thread that is just importing it

    if is_first:
        warnings.filterwarnings("ignore", message="lance is not fork-safe", category=UserWarning)
    return lance


@contextmanager
def _failures(place: Where | None = None) -> Iterator[None]:
    """Turn what Lance raises into a ``LanceFailure``."""
    try:
        yield
    except (OSError, ValueError, RuntimeError) as error:  # Arrow's errors are ValueErrors
        raise _failure(error, place) from error
    except BaseException as error:
        # A panic in Lance's Rust is a BaseException, and its class cannot be imported.
        if type(error).__name__ != "PanicException":
            raise
        raise _failure(error, place) from error


lance_failures = _failures  # for those who write tables, too


def _failure(error: BaseException, place: Where | None) -> LanceFailure:
    text = str(error)
    if isinstance(place, RemotePlace):
        text = said_of_store(text, place)
        error.args = (text,)  # tracebacks show the cause, too
    missing = isinstance(error, ValueError) and _MISSING.match(text) is not None
    return (MissingTable if missing else LanceFailure)(_reason(text or type(error).__name__))


def _reason(text: str) -> str:
    """Return what an error of Lance says, in one line, without its Rust source positions."""
    text = _RUST_SOURCE.sub("", text.splitlines()[0]).strip().rstrip(".")
    for word in _NOISE:
        text = text.replace(word, "")
    return text


CALLS: dict[str, Callable[..., Any]] = {
    call.__name__: call
    for call in (
        find_version,
        versions,
        metadata,
        columns,
        digest,
        count_rows,
        take,
        scan,
        value_pages,
        matching,
        blob_rows,
        blob_size,
        blob_ranges,
        ranges_of_blobs,
    )
}
"""What a helper process answers to."""
