"""All calls of Lance, as functions of plain values.

They run in a process where that is safe: this one, or a helper. Lance runs on threads of its own,
and a fork copies none of them. Children of a process that has used Lance may crash or hang when
they use it too, even on tables that they open again: 1 to 8 of a hundred did (pylance 14; lancedb
issue 3350 is about the same). Processes that only carry Lance's memory along, and those that run
another program, never did. So what goes in and comes out can be pickled. Open tables and blobs are
kept here, by path and version.

Lance is imported only when a table is first looked at: that takes a quarter of a second.
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
from dataclasses import dataclass
from functools import wraps
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import pyarrow as pa

from demoreel.errors import DemoreelError
from demoreel.model.limits import limit
from demoreel.packages import load_late
from demoreel.storage.arrow import as_numpy
from demoreel.storage.external import External
from demoreel.storage.helper_process import SafeProcess
from demoreel.storage.place import RemotePlace, Where, said_of_store
from demoreel.storage.store import open_store

pc = load_late("pyarrow.compute")

if TYPE_CHECKING:
    from lance import BlobFile, LanceDataset

INLINE, PACKED, DEDICATED, EXTERNAL = range(4)
"""The kinds of blobs: in the data file, in a file that several share, in one of its own, by URI."""

_LONG_RUN = 1000  # rows side by side from which a scan of them is faster than a take
_ROWS_AT_ONCE = 1 << 16
_FEW_ROWS = 64  # of values of any length that are decoded at a time
_READ_WHOLE = (".manifest", ".json", ".txn")
_MOST_TABLES = 64
_MOST_BLOBS = 128  # each keeps a file open
_REMOTE_BLOCK = 1 << 14
# Ranges with a smaller gap between them are one request to an object store. With Lance's own 64 KB,
# a batch of 32 frames read 1.44 times the bytes that it needed in 23 requests; so 1.04 times in 29.
_RUST_SOURCE = re.compile(r",? /\S+\.rs:\d+:\d+")
_PAGE_ROWS = re.compile(r"num_(?:visible_)?items: (\d+)")
_MISSING = re.compile(r"Dataset at path .* was not found")
_INTERRUPTED = "External error: KeyboardInterrupt"
_NOISE = ("External error: ", "LanceError(IO): ", "Generic LocalFileSystem error: ")

Wanted = int | str | None
"""A version's number or tag; None is the newest."""

_Call = TypeVar("_Call", bound=Callable[..., Any])

CALLS: dict[str, Callable[..., Any]] = {}
"""What a helper process answers to."""

_tables: OrderedDict[tuple[Where, int], LanceDataset] = OrderedDict()
_blobs: OrderedDict[tuple[Where, int, str, int], BlobFile | None] = OrderedDict()


@dataclass(frozen=True, slots=True)
class ValuePage:
    """One page of a column.

    Attributes:
        path: The data file.
        rows: Rows in the page.
        data: Where its values begin in the file, and their bytes.
        index: Likewise, the list of where each value begins.
        kind: Lance's description of its layout.
    """

    path: str
    rows: int
    data: tuple[int, int]
    index: tuple[int, int]
    kind: str


class LanceFailure(Exception):
    """What Lance raised, in one line."""


class MissingTable(LanceFailure):
    """There is no table."""


class TooMuch(LanceFailure):
    """A limit is exceeded; ``args`` are what exceeds it, and the limit's name."""

    def __str__(self) -> str:
        return str(self.args[0])


@contextmanager
def lance_failures(place: Where | None = None) -> Iterator[None]:
    """Turn what Lance raises into a ``LanceFailure``."""
    try:
        yield
    except DemoreelError:
        raise
    except (OSError, ValueError, RuntimeError) as error:  # Arrow's errors are ValueErrors
        if _INTERRUPTED in str(error):  # a scan passes Ctrl-C on as text
            raise KeyboardInterrupt from None
        raise _failure(error, place) from error
    except BaseException as error:
        # A panic in Lance's Rust is a BaseException, and its class cannot be imported.
        if type(error).__name__ != "PanicException":
            raise
        raise _failure(error, place) from error


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


def _call(function: _Call) -> _Call:
    """Let a process be asked for a function whose first argument is a table's place."""

    @wraps(function)
    def call(place: Where, *arguments: Any) -> Any:
        with lance_failures(place):
            return function(place, *arguments)

    CALLS[function.__name__] = call
    return call  # type: ignore[return-value]


@dataclass(frozen=True, slots=True)
class Opened:
    """What a table is at a version.

    Attributes:
        version: The version's number.
        bases: The base paths of files that are not in the table's own folder.
        types: The type of each column; extension types as what they are stored as.
        metadata: What the table's writers have noted in it.
        digest: Equal for two versions only if they hold the same rows.
    """

    version: int
    bases: list[str]
    types: dict[str, pa.DataType]
    metadata: dict[str, str]
    digest: str


@_call
def open_table(place: Where, wanted: Wanted) -> Opened:
    """Open a table at a version, and keep it open."""
    table = _open(place, wanted)
    parts = [fragment.metadata for fragment in table.get_fragments()]
    # Data files are never written to again, and their names are random.
    names = [(str(part.deletion_file), *(file.path for file in part.files)) for part in parts]
    return Opened(
        version=int(table.version),
        bases=bases_of(table),
        # Another process may not know an extension type by its name.
        types={
            field.name: getattr(field.type, "storage_type", field.type) for field in table.schema
        },
        metadata=dict(table.metadata),
        digest=hashlib.sha256(repr(names).encode()).hexdigest()[:16],
    )


def open_to_write(table: str | os.PathLike[str], version: Wanted = None) -> Any:
    """Return Lance's own object for a local table that is to be changed or published."""
    path = os.fspath(table)
    opened = import_lance().dataset(path, version=version)
    External(path).require(bases_of(opened))
    return opened


def bases_of(table: LanceDataset) -> list[str]:
    """Return the base paths that a manifest names: Lance would read data files below them."""
    for fragment in table.get_fragments():
        for file in fragment.metadata.files:
            if file.path != os.path.basename(file.path) or file.path in ("", ".", ".."):
                raise ValueError(f"a data file is called {file.path[:80]!r}")
    return [str(base.path) for base in table.base_paths().values()]


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
        _refuse_remote_files(place)
        return import_lance().dataset(
            place.uri,
            version=wanted,
            storage_options=place.storage_options(),
            block_size=_REMOTE_BLOCK,
        )
    _refuse_files(place)
    return import_lance().dataset(place, version=wanted)


def _refuse_files(folder: str) -> None:
    """Refuse files of a table that Lance would wait for, or read into memory, without end.

    Costs a listing of the table's folders.
    """
    waiting, versions = [folder], 0
    while waiting and os.path.isdir(waiting[-1]):
        with os.scandir(waiting.pop()) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    waiting.append(entry.path)
                elif not entry.is_file():
                    if os.path.exists(entry.path) and not entry.is_dir():
                        raise OSError(errno.EINVAL, "It is no regular file", entry.path)
                elif entry.name.endswith(_READ_WHOLE):
                    versions += entry.name.endswith(".manifest")
                    refuse_manifest(entry.path, entry.stat().st_size, versions)


def _refuse_remote_files(place: RemotePlace) -> None:
    """Refuse manifests in a store that Lance would read into memory without end; one request.

    A thousand of the newest are looked at, where names are in their order.
    """
    try:
        found, _ = open_store(place.uri, dict(place.options)).list("_versions/", most_pages=1)
    except DemoreelError:
        return  # one may be allowed to read and not to list; Lance says what is wrong
    for file in found:
        refuse_manifest(file.name, file.size, 0)


def refuse_manifest(name: str, size: int, versions: int) -> None:
    """Refuse a file that Lance reads as a whole, or more versions than there can be."""
    if size > limit("MANIFEST_BYTES"):
        raise TooMuch(f"{os.path.basename(name)!r} has {size:,} bytes", "MANIFEST_BYTES")
    if versions > limit("TABLE_VERSIONS"):
        raise TooMuch(f"A Lance table has {versions:,} versions or more", "TABLE_VERSIONS")


@_call
def versions(place: Where) -> tuple[int, dict[str, int]]:
    """Return the newest version, and the version of each tag."""
    table: LanceDataset = _lance_table(place)
    return int(table.version), {n: int(tag["version"]) for n, tag in table.tags.list().items()}


def dataset(place: Where, version: int) -> LanceDataset:
    """Return Lance's own object; for this process only."""
    return _tables.get((place, version)) or _open(place, version)


@_call
def count_rows(place: Where, version: int) -> int:
    """Return the number of rows that are not deleted."""
    return int(dataset(place, version).count_rows())


@_call
def take(place: Where, version: int, places: np.ndarray, names: Sequence[str]) -> pa.Table:
    """Return the rows at these places among those that are not deleted, in this order."""
    table = dataset(place, version)
    step = _step(table, names, len(places))
    parts, total = [], 0
    for at in range(0, len(places), step):
        parts.append(_rows_at(table, places[at : at + step], names))
        total += _unfolded(parts[-1])
        _refuse_bytes(total, names)
    return parts[0] if len(parts) == 1 else pa.concat_tables(parts)


def _rows_at(table: LanceDataset, places: np.ndarray, names: Sequence[str]) -> pa.Table:
    first, count = int(places[0]), len(places)
    if count >= _LONG_RUN and np.array_equal(places, np.arange(first, first + count)):
        return table.slice(first, first + count, columns=list(names))
    return table.take(places.tolist(), columns=list(names))


def _step(table: LanceDataset, names: Sequence[str], count: int) -> int:
    """Return how many rows are read at a time: few where values may be of any length.

    Lance unfolds one value that all rows share; nothing says how long values are before.
    """
    widths = [_width(table.schema.field(name).type) for name in names]
    _refuse_bytes(count * sum(width or 0 for width in widths), names)
    return _FEW_ROWS if None in widths else max(1, count)


def _width(kind: pa.DataType) -> int | None:
    """Return the bytes of a value of this type; None where they differ."""
    if pa.types.is_fixed_size_list(kind):
        inner = _width(kind.value_type)
        return None if inner is None else max(1, inner * int(kind.list_size))
    try:
        return max(1, int(kind.bit_width) // 8)
    except ValueError:
        return None


def _refuse_bytes(total: int, names: Sequence[str]) -> None:
    if total > limit("TABLE_BYTES"):
        shown = ", ".join(map(repr, names[:3]))
        raise TooMuch(
            f"Columns {shown} of a table unfold to {total:,} bytes or more", "TABLE_BYTES"
        )


def _unfolded(table: pa.Table | pa.RecordBatch) -> int:
    """Return what rows take once each has its own copy of a value that they share."""
    total = 0
    for column in table.columns:
        chunks = column.chunks if isinstance(column, pa.ChunkedArray) else [column]
        for chunk in chunks:
            total += chunk.nbytes
            if pa.types.is_dictionary(chunk.type):
                entries = chunk.dictionary
                if pa.types.is_binary(entries.type) or pa.types.is_string(entries.type):
                    total += pc.sum(pc.binary_length(entries).take(chunk.indices)).as_py() or 0
    return total


@_call
def scan(place: Where, version: int, names: Sequence[str]) -> pa.Table:
    """Return whole columns."""
    return _scanned(dataset(place, version), names)


def _scanned(table: LanceDataset, names: Sequence[str], **options: Any) -> pa.Table:
    """Return whole columns, read until they are more than ``TABLE_BYTES``."""
    step = _step(table, names, table.count_rows())
    if step != _FEW_ROWS:
        return table.to_table(columns=list(names), **options)
    scanner = table.scanner(
        columns=list(names), batch_size=step, batch_readahead=1, fragment_readahead=1, **options
    )
    batches, total = [], 0
    for batch in scanner.to_batches():
        batches.append(batch)
        total += _unfolded(batch)
        _refuse_bytes(total, names)
    return pa.Table.from_batches(batches, scanner.projected_schema)


@_call
def value_pages(place: Where, version: int, name: str) -> list[ValuePage] | None:
    """Return where a column's values are in local data files; None if that is not so simple."""
    if isinstance(place, RemotePlace):
        return None
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


@_call
def matching(place: Where, version: int, condition: str, column: str) -> np.ndarray:
    """Return the different values of a number column among the rows that meet an SQL condition."""
    rows = dataset(place, version).scanner(
        columns=[column], filter=condition, batch_size=_ROWS_AT_ONCE
    )
    found = [np.unique(as_numpy(batch.column(0))) for batch in rows.to_batches()]
    return np.unique(np.concatenate([np.zeros(0, np.int64), *found]))


@_call
def blob_rows(
    place: Where, version: int, names: Sequence[str], column: str
) -> tuple[pa.Table, dict[int, list[str]]]:
    """Return whole columns with row ids and where each row's blob is, and what files there are.

    Returns:
        The columns, ``_rowid`` and ``_rowaddr``, and ``kind``, ``position``, ``size``, ``blob_id``
        and ``blob_uri`` of each blob (none of these for blobs of the older encoding); and by
        fragment, the upper half of a row's address, the data files that are in the table's own
        folder.
    """
    table = dataset(place, version)
    found = _scanned(table, [*names, column], with_row_id=True, with_row_address=True)
    blobs = found.column(column).combine_chunks()
    found = found.drop_columns([column])
    bases = {number: str(base.path) for number, base in table.base_paths().items()}
    if pa.types.is_struct(blobs.type) and blobs.type.get_field_index("kind") >= 0:
        for field in blobs.type:
            values = blobs.field(field.name)
            if field.name == "blob_uri" and bases:
                values = _with_bases(values, blobs.field("blob_id"), bases)
            found = found.append_column(field.name, values)
    files = {
        int(fragment.fragment_id): [
            file.path for file in fragment.metadata.files if file.base_id is None
        ]
        for fragment in table.get_fragments()
    }
    return found, files


@_call
def external_uris(place: Where, version: int) -> list[str]:
    """Return the different URIs that blobs of any column name; nothing there is read."""
    table = dataset(place, version)
    names = [field.name for field in table.schema if "lance.blob" in str(field.type)]
    bases = {number: str(base.path) for number, base in table.base_paths().items()}
    found: dict[str, None] = {}
    for batch in table.scanner(columns=names).to_batches() if names else ():
        for name in names:
            blobs = batch.column(name)
            if not pa.types.is_struct(blobs.type) or blobs.type.get_field_index("kind") < 0:
                continue  # an older encoding, without URIs
            outside = blobs.filter(pc.equal(blobs.field("kind"), EXTERNAL))
            uris = _with_bases(outside.field("blob_uri"), outside.field("blob_id"), bases)
            found |= dict.fromkeys(uri or "" for uri in uris.to_pylist())
    return list(found)


def _with_bases(uris: pa.Array, numbers: pa.Array, bases: dict[int, str]) -> pa.Array:
    """Return the URIs of blobs, those that are relative to a base path with that before them."""
    whole = [
        f"{bases[number].rstrip('/')}/{uri}"
        if uri and "://" not in uri and number in bases
        else uri
        for uri, number in zip(uris.to_pylist(), numbers.to_pylist(), strict=True)
    ]
    return pa.array(whole, uris.type)


@_call
def blob_size(place: Where, version: int, column: str, row: int) -> int | None:
    """Return the size of a row's blob; None if the row has none."""
    blob = _blob(place, version, column, row)
    return blob.size() if blob is not None else None


@_call
def blob_ranges(
    place: Where, version: int, column: str, row: int, ranges: Sequence[tuple[int, int]]
) -> list[bytes]:
    """Return the bytes of (offset, length) ranges of a row's blob."""
    blob = _blob(place, version, column, row)
    assert blob is not None
    if len(ranges) == 1:
        return [blob.read_range(*ranges[0])]
    return blob.read_ranges(list(ranges))


def _blob(place: Where, version: int, column: str, row: int) -> BlobFile | None:
    key = (place, version, column, row)
    blob = _blobs.get(key)
    if blob is None:
        blob = dataset(place, version).take_blobs(column, ids=[row])[0]
        _keep(_blobs, key, blob, _MOST_BLOBS)
    return blob


def close_tables(folder: str) -> None:
    """Let go of the tables in a folder, and of their blobs, whose files stay open otherwise."""
    caches: tuple[OrderedDict[Any, Any], ...] = (_blobs, _tables)
    for cache in caches:
        for key in list(cache):
            if isinstance(key[0], str) and os.path.dirname(key[0]) == folder:
                cache.pop(key, None)


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


_PROGRAM = "from demoreel.layouts.lance.calls import serve; serve()"
_process = SafeProcess("lance", CALLS, program=_PROGRAM, failure=LanceFailure, aborts=True)

ask = _process.ask
"""Call one of ``CALLS``, here or in the helper; raises ``LanceFailure``."""

serve = _process.serve


def may_use_lance() -> bool:
    """Whether this process may use Lance itself."""
    return _process.is_here
