"""Writes Lance tables in parts, in any order, with one commit.

A part is one or more fragments: data files that no reader sees before the commit names them. What
a part has written is a list of texts (Lance's own description of its fragments), so that it can be
noted down, and a conversion that was killed continues where it was.

Videos are blobs. Lance's own blob writers reach a sixth of a disk's speed, so blob files are
written here, under the names that Lance gives them, and Lance is told where they are, as it offers
to programs that write tables in parts. Small videos share a file, as Lance would have it.
"""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import uuid
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pyarrow as pa

from demoreel.errors import DemoreelError, TableError
from demoreel.layouts.lance.calls import (
    LanceFailure,
    import_lance,
    lance_failures,
    may_use_lance,
    open_to_write,
)
from demoreel.layouts.lance.schemas import (
    COPY,
    ROW_INDICES,
    VIDEO_INDICES,
    LanceSchema,
    meta_rows,
)
from demoreel.media.images import ImageCodec
from demoreel.model import Info
from demoreel.storage.commit.files import FAILING, sync_path, sync_tree
from demoreel.storage.helper_process import daemon_calls
from demoreel.storage.local import LocalFile, copy_bytes
from demoreel.storage.store import Bytes

FILE_VERSION = "2.2"
"""Lance's file format: the first one with blobs that are beside their table."""

_OWN_FILE = 4 << 20  # Lance's own limit: larger blobs have a file each, smaller ones share one
_FULL = ("No space left on device", "os error 28", "Disk quota exceeded", "File too large")


Check = Callable[[Bytes, int, int], None]
"""Given what was copied, the handle of the file that it was copied to, and where it begins there;
may raise to stop the writing."""


def write_rows(
    table: Path, schema: pa.Schema, batches: Iterable[pa.RecordBatch], *, replace: bool = False
) -> list[str]:
    """Write rows as fragments that no reader sees yet, and force them to disk.

    Memory: a batch, and what Lance holds back to fill a page (8 MiB a column).

    Args:
        table: The table's folder; it need not exist.
        schema: The columns.
        batches: The rows. What they raise is raised here.
        replace: Whether they are to be put in the place of the rows of a table that exists.

    Returns:
        What ``commit_table`` needs to know of them.
    """
    raised: list[BaseException] = []

    def watched() -> Generator[pa.RecordBatch, None, None]:
        try:
            yield from batches
        except GeneratorExit:
            raise
        except BaseException as error:
            raised.append(error)
            raise

    source = watched()
    reader = pa.RecordBatchReader.from_batches(schema, source)
    try:
        with writing(table):
            found = _fragments(reader, table, schema, mode="overwrite" if replace else "create")
    except (TableError, OSError):
        if raised:  # Lance would tell of it as a text
            raise raised[0] from None
        raise
    finally:
        source.close()  # now: threads may work for it, and an error would keep it alive
    _sync_fragments(table, found)
    return found


def append_rows(table: Path, rows: pa.Table) -> list[str]:
    """Write rows as a fragment that could follow those of a table; nothing is synced to disk."""
    with writing(table):
        import_lance()
        return _fragments(
            rows, table, rows.schema, append=True, max_rows_per_file=max(1, len(rows))
        )


def _fragments(
    data: Any, table: Path, schema: pa.Schema, *, append: bool = False, **options: Any
) -> list[str]:
    import_lance()  # whole, before a part of it: another thread may be importing it
    from lance.fragment import write_fragments

    if append:  # as the table has its columns and files, by whatever program
        written = write_fragments(data, os.fspath(table), mode="append", **options)
    else:
        options = {"mode": "create", "data_storage_version": FILE_VERSION, **options}
        written = write_fragments(data, os.fspath(table), schema, **options)
    assert isinstance(written, list)
    return [json.dumps(fragment.to_json()) for fragment in written]


class BlobPart:
    """The blobs of one part, in the order of its rows.

    Args:
        table: The table's folder; it need not exist.
        column: The blob column. It must be the table's last.
        append: Whether the rows are to follow others in a table that exists. Then nothing is
            synced to disk here; the caller does that.
        check: Shown every blob when it is written, while the disk still works on it.
    """

    def __init__(
        self,
        table: Path,
        column: str,
        *,
        append: bool = False,
        check: Check | None = None,
    ) -> None:
        _refuse_forked(table)
        import_lance()
        from lance.blob import BlobDescriptorArrayBuilder

        self._table = table
        self._column = column
        self._append = append
        self._check = check
        self._folder = table / "data" / f".part-{uuid.uuid4().hex[:12]}"
        self._folder.mkdir(parents=True)
        self._builder = BlobDescriptorArrayBuilder(column)
        self._ids = 0
        self._shared: tuple[int, int] | None = None  # the shared file's number and handle
        self._used = 0

    def add(self, source: Bytes) -> None:
        """Copy a blob."""
        if source.size > _OWN_FILE:
            number, handle = self._new_file()
            try:
                self._copy(source, handle, 0)
                self._force(handle)
            finally:
                os.close(handle)
            self._builder.append_dedicated(number, source.size)
            return
        if self._shared is None:
            self._shared = self._new_file()
        number, handle = self._shared
        self._copy(source, handle, self._used)
        self._builder.extend_packed(number, [self._used], [source.size])
        self._used += source.size

    def _copy(self, source: Bytes, handle: int, begin: int) -> None:
        copy_bytes(source, handle)
        if self._check is not None:
            self._check(source, handle, begin)

    def take(self, source: LocalFile) -> None:
        """Add a file's bytes; those of a large one are not copied where the disk has hard links."""
        if source.size > _OWN_FILE:
            try:
                os.link(source.path, self._folder / self._name_of(self._ids + 1))
            except OSError:
                pass  # another disk, or one without links
            else:
                self._ids += 1
                self._builder.append_dedicated(self._ids, source.size)
                return
        self.add(source)

    def _new_file(self) -> tuple[int, int]:
        self._ids += 1
        path = self._folder / self._name_of(self._ids)
        return self._ids, os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o644)

    def _name_of(self, number: int) -> str:
        """Ask Lance what it calls this blob file; the folder that it makes for that goes again."""
        from lance.file import LanceFileSession

        with writing(self._table):
            session = LanceFileSession(os.fspath(self._folder))
            name = os.path.basename(session.open_dedicated_blob_writer("x.lance", number).path)
        with suppress(OSError):
            os.rmdir(self._folder / "x")
        return name

    def finish(self, rows: pa.Table) -> list[str]:
        """Write the rows that the blobs belong to, and force everything to disk."""
        self.close()
        blobs, field = self._builder.finish(), self._builder.field
        with writing(self._table):
            table = rows.append_column(field, blobs)
            found = _fragments(table, self._table, table.schema, append=self._append)
        (file,) = _data_files(found)
        beside = self._table / "data" / file.removesuffix(".lance")
        os.rename(self._folder, beside)
        if self._append:
            return found
        sync_path(beside)
        _sync_fragments(self._table, found)
        return found

    def close(self) -> None:
        """Close the shared file, synced to disk. Safe to call at any time."""
        if self._shared is not None:
            _, handle = self._shared
            self._shared = None
            try:
                self._force(handle)
            finally:
                os.close(handle)

    def _force(self, handle: int) -> None:
        if not self._append:
            os.fsync(handle)

    def abandon(self) -> None:
        """Remove what was written."""
        self.close()
        shutil.rmtree(self._folder, ignore_errors=True)


def write_links(table: Path, column: str, rows: pa.Table, uris: Sequence[str]) -> list[str]:
    """Write rows whose blobs are files elsewhere, by URI; no byte of them is read.

    Args:
        table: The table's folder; it need not exist.
        column: The blob column.
        rows: The other columns.
        uris: For each row, the URI of a file.
    """
    with writing(table):
        lance = import_lance()
        blobs = lance.blob_array([lance.Blob.from_uri(uri) for uri in uris])
        linked = rows.append_column(lance.blob_field(column), blobs)
        found = _fragments(linked, table, linked.schema, allow_external_blob_outside_bases=True)
    _sync_fragments(table, found)
    return found


def commit_table(table: Path, schema: pa.Schema, fragments: Sequence[str]) -> None:
    """Make a table of fragments, in this order, as its only version."""
    table.mkdir(parents=True, exist_ok=True)
    with writing(table):
        lance = import_lance()
        from lance.fragment import FragmentMetadata

        parts = [FragmentMetadata.from_json(text) for text in fragments]
        if not parts:
            empty = schema.empty_table()
            lance.write_dataset(empty, os.fspath(table), data_storage_version=FILE_VERSION)
            return
        operation = lance.LanceOperation.Overwrite(schema, parts)
        lance.LanceDataset.commit(os.fspath(table), operation)


def add_index(table: Path, column: str, kind: str) -> None:
    """Make a scalar index (``BTREE`` or ``BITMAP``), so that queries by this column are fast."""
    with writing(table):
        open_to_write(table).create_scalar_index(column, kind)


def clear_unnamed(table: Path, fragments: Iterable[str]) -> None:
    """Remove what parts that did not come to their end have left in a table's folder."""
    named = set(_data_files(fragments))
    named |= {name.removesuffix(".lance") for name in named}
    for path in (table / "data").glob("*"):
        if path.name not in named:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    for name in ("_versions", "_transactions", "_indices"):
        shutil.rmtree(table / name, ignore_errors=True)


def make_rows_table(
    tables: LanceSchema,
    folder: Path,
    info: Info,
    fragments: Sequence[str],
    *,
    codec: ImageCodec | None = None,
) -> Path:
    """Make the table of rows, without indices, and return its folder.

    May be repeated. Nothing is synced to disk but the fragments.
    """
    if tables.videos is not None:
        (folder / tables.videos).mkdir(parents=True, exist_ok=True)  # it tells the layout
    return _make_table(folder / tables.frames, tables.rows(info, codec), fragments)


def make_videos_table(tables: LanceSchema, folder: Path, fragments: Sequence[str]) -> None:
    """Make the table of videos, without index, if the layout has one. May be repeated."""
    if tables.videos is not None:
        _make_table(folder / tables.videos, tables.videos_table, fragments)


def finish_tables(tables: LanceSchema, folder: Path) -> None:
    """Make the indices of tables that hold something, and force to disk what is in no fragment.

    Readers that are open stay with the version that they have opened.
    """
    indices = [(tables.frames, ROW_INDICES)]
    if tables.videos is not None:
        indices.append((tables.videos, VIDEO_INDICES))
    for name, columns in indices:
        if any((folder / name / "data").glob("*")):
            for column, kind in columns.items():
                add_index(folder / name, column, kind)
    for table in folder.glob("*.lance"):
        for part in ("_versions", "_transactions", "_indices"):
            if (table / part).is_dir():
                sync_tree(table / part)


def make_copy(tables: LanceSchema, folder: Path) -> None:
    """Make the table with a copy of ``meta/``, if the layout has one. May be repeated."""
    if tables.is_native:
        table, files = folder / COPY, meta_rows(folder / "meta")
        clear_unnamed(table, ())
        commit_table(table, files.schema, write_rows(table, files.schema, files.to_batches()))


def _make_table(table: Path, schema: pa.Schema, fragments: Sequence[str]) -> Path:
    clear_unnamed(table, fragments)
    commit_table(table, schema, fragments)
    return table


def _data_files(fragments: Iterable[str]) -> list[str]:
    return [file["path"] for text in fragments for file in json.loads(text)["files"]]


def _sync_fragments(table: Path, fragments: Iterable[str]) -> None:
    for name in _data_files(fragments):
        sync_path(table / "data" / name)
    sync_path(table / "data")


@contextmanager
def writing(table: Path) -> Iterator[None]:
    """Turn a failure of Lance into an error of the disk or of the table."""
    _refuse_forked(table)
    try:
        with daemon_calls.one(LanceFailure), lance_failures():
            yield
    except LanceFailure as error:
        cause = str(error.__cause__)
        number = _errno_in(cause)
        if number is not None:
            raise OSError(number, os.strerror(number), os.fspath(table)) from error
        raise TableError(f"Lance does not write a table: {error}.", table=table) from error


def _errno_in(cause: str) -> int | None:
    """Return the number of a disk's failure in what Lance says of it."""
    if any(words in cause for words in _FULL):
        return errno.EFBIG if _FULL[-1] in cause else errno.ENOSPC
    said = re.search(r"\bos error (\d+)\b", cause)
    number = int(said[1]) if said else 0
    return number if number in FAILING else None


def _refuse_forked(table: Path) -> None:
    if not may_use_lance():
        raise DemoreelError(
            "This process was forked from one that uses Lance, and Lance does not survive a fork.",
            hint="write in the parent, or start the process with the method 'spawn'",
            table=table,
        )
