"""What demoreel asks of Lance, as functions of plain values.

They may run in this process or in a helper (see ``lance_process``), so what goes in and comes out
can be pickled. Open tables and blobs are kept here, by path and version.

This is the only module that imports Lance, and only when a table is first looked at: that takes a
quarter of a second.
"""

from __future__ import annotations

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
from demoreel.storage.lance_values import ValuePage

if TYPE_CHECKING:
    from lance import BlobFile, LanceDataset

_LONG_RUN = 1000  # rows side by side from which a scan of them is faster than a take
_ROWS_AT_ONCE = 1 << 16
_MOST_TABLES = 64
_MOST_BLOBS = 128  # each keeps a file open
_RUST_SOURCE = re.compile(r",? /\S+\.rs:\d+:\d+")
_PAGE_ROWS = re.compile(r"num_(?:visible_)?items: (\d+)")
_NOISE = ("External error: ", "LanceError(IO): ", "Generic LocalFileSystem error: ")

Wanted = int | str | None
"""A version's number or tag; None is the newest."""

_tables: OrderedDict[tuple[str, int], LanceDataset] = OrderedDict()
_blobs: OrderedDict[tuple[str, int, str, int], BlobFile | None] = OrderedDict()


class LanceFailure(Exception):
    """What Lance raised, in one line."""


def find_version(path: str, wanted: Wanted) -> int:
    """Return the number of a version, and keep the table open at it."""
    with _failures():
        return int(_open(path, wanted).version)


def _open(path: str, wanted: Wanted) -> LanceDataset:
    table: LanceDataset = import_lance().dataset(path, version=wanted)
    _keep(_tables, (path, int(table.version)), table, _MOST_TABLES)
    return table


def versions(path: str) -> tuple[int, dict[str, int]]:
    """Return the newest version, and the version of each tag."""
    with _failures():
        table: LanceDataset = import_lance().dataset(path)
        return int(table.version), {n: int(tag["version"]) for n, tag in table.tags.list().items()}


def dataset(path: str, version: int) -> LanceDataset:
    """Return Lance's own object; for this process only."""
    return _tables.get((path, version)) or _open(path, version)


def metadata(path: str, version: int) -> dict[str, str]:
    """Return what the table's writers have noted in it."""
    with _failures():
        return dict(dataset(path, version).metadata)


def columns(path: str, version: int) -> list[str]:
    """Return the names of the columns."""
    with _failures():
        return list(dataset(path, version).schema.names)


def digest(path: str, version: int) -> str:
    """Return a text that is equal for two versions only if they hold the same rows."""
    with _failures():
        parts = [fragment.metadata for fragment in dataset(path, version).get_fragments()]
    # Data files are never written to again, and their names are random.
    names = [(str(part.deletion_file), *(file.path for file in part.files)) for part in parts]
    return hashlib.sha256(repr(names).encode()).hexdigest()[:16]


def count_rows(path: str, version: int) -> int:
    """Return the number of rows that are not deleted."""
    with _failures():
        return int(dataset(path, version).count_rows())


def take(path: str, version: int, places: np.ndarray, names: Sequence[str]) -> pa.Table:
    """Return the rows at these places among those that are not deleted, in this order."""
    with _failures():
        first, count = int(places[0]), len(places)
        table = dataset(path, version)
        if count >= _LONG_RUN and np.array_equal(places, np.arange(first, first + count)):
            return table.slice(first, first + count, columns=list(names))
        return table.take(places.tolist(), columns=list(names))


def scan(path: str, version: int, names: Sequence[str]) -> pa.Table:
    """Return whole columns."""
    with _failures():
        return dataset(path, version).to_table(columns=list(names))


def value_pages(path: str, version: int, name: str) -> list[ValuePage] | None:
    """Return where a column's values lie in local data files; None if that is not so simple."""
    with _failures():
        from lance.file import LanceFileReader

        table = dataset(path, version)
        field = next(field.id() for field in table.lance_schema.fields() if field.name() == name)
        pages: list[ValuePage] = []
        for fragment in table.get_fragments():
            meta = fragment.metadata
            files = [file for file in meta.files if field in file.fields]
            file = os.path.join(path, "data", files[0].path) if len(files) == 1 else ""
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


def matching(path: str, version: int, condition: str, column: str) -> np.ndarray:
    """Return the different values of a number column among the rows that meet an SQL condition."""
    with _failures():
        rows = dataset(path, version).scanner(
            columns=[column], filter=condition, batch_size=_ROWS_AT_ONCE
        )
        found = [np.unique(as_numpy(batch.column(0))) for batch in rows.to_batches()]
    return np.unique(np.concatenate([np.zeros(0, np.int64), *found]))


def blob_rows(
    path: str, version: int, names: Sequence[str], column: str
) -> tuple[pa.Table, dict[int, list[str]]]:
    """Return whole columns with row ids and where each row's blob lies, and what files there are.

    Returns:
        The columns, ``_rowid`` and ``_rowaddr``, and ``kind``, ``position``, ``size``, ``blob_id``
        and ``blob_uri`` of each blob (none of these for blobs of the older encoding); and by
        fragment, the upper half of a row's address, the data files that lie in the table's own
        folder.
    """
    with _failures():
        table = dataset(path, version)
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


def blob_size(path: str, version: int, column: str, row: int) -> int | None:
    """Return the size of a row's blob; None if the row has none."""
    with _failures():
        blob = _blob(path, version, column, row)
        return blob.size() if blob is not None else None


def blob_ranges(
    path: str, version: int, column: str, row: int, ranges: Sequence[tuple[int, int]]
) -> list[bytes]:
    """Return the bytes of (offset, length) ranges of a row's blob."""
    with _failures():
        blob = _blob(path, version, column, row)
        assert blob is not None
        if len(ranges) == 1:
            return [blob.read_range(*ranges[0])]
        return blob.read_ranges(list(ranges))


def _blob(path: str, version: int, column: str, row: int) -> BlobFile | None:
    key = (path, version, column, row)
    blob = _blobs.get(key)
    if blob is None:
        blob = dataset(path, version).take_blobs(column, ids=[row])[0]
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
    if "lance" not in sys.modules:
        import lance

        warnings.filterwarnings("ignore", message="lance is not fork-safe", category=UserWarning)
        return lance
    return sys.modules["lance"]


@contextmanager
def _failures() -> Iterator[None]:
    """Turn what Lance raises into a ``LanceFailure``."""
    try:
        yield
    except (OSError, ValueError, RuntimeError) as error:  # Arrow's errors are ValueErrors
        raise LanceFailure(_reason(error)) from error
    except BaseException as error:
        # A panic in Lance's Rust is a BaseException, and its class cannot be imported.
        if type(error).__name__ != "PanicException":
            raise
        raise LanceFailure(_reason(error)) from error


lance_failures = _failures  # for those who write tables, too


def _reason(error: BaseException) -> str:
    """Return what an error of Lance says, in one line, without its Rust source positions."""
    lines = str(error).splitlines() or [type(error).__name__]
    text = _RUST_SOURCE.sub("", lines[0]).strip().rstrip(".")
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
    )
}
"""What a helper process answers to."""
