"""Tables of a remote dataset: ranges that are fetched ahead, and files that Arrow scans."""

from __future__ import annotations

import errno
import struct
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs

from demoreel.errors import TableError
from demoreel.model.limits import refuse_above
from demoreel.storage.parquet import Parquet, first_page
from demoreel.storage.remote.files import RemoteFile
from demoreel.storage.store import Range, ReadsNow, Seekable, StoredFile

_TAIL = 1 << 16  # enough for most footers
_NEAR = 1 << 18  # unwanted columns of a row group are between the wanted ones
_MAGIC = b"PAR1"


def read_footer(file: StoredFile, name: str) -> tuple[pq.FileMetaData, int]:
    """Return a parquet file's footer, and the memory that it takes, about.

    Cost: one ranged read of the file's end, or two where the footer is long.
    """
    length = min(_TAIL, file.size)
    tail = file.read(file.size - length, length)
    if len(tail) < 8 or tail[-4:] != _MAGIC:
        raise pa.ArrowInvalid("it does not end as a parquet file does")
    wanted = struct.unpack("<I", tail[-8:-4])[0] + 8
    if wanted > file.size:
        raise pa.ArrowInvalid("its footer is longer than the file")
    refuse_above("FOOTER_BYTES", wanted, "A footer has bytes:", TableError, file=name)
    if wanted > length:
        tail = file.read(file.size - wanted, wanted)
    return pq.read_metadata(pa.BufferReader(_MAGIC + tail[-wanted:])), 8 * wanted


class FetchedParquet(Parquet):
    """A parquet file whose reads wait."""

    use_threads = False  # bytes come through Python, where threads take turns

    def __init__(self, file: StoredFile, name: str, footer: pq.FileMetaData) -> None:
        super().__init__(lambda: Seekable(file), file, name, TableError, footer)
        self._stored = file

    def begin(self, groups: Sequence[int], columns: Sequence[str]) -> Callable[[], Parquet]:
        """Begin to fetch columns of some row groups; return what gives the file to read them from.

        Cost: a request for columns that are together, all in parallel. What is returned raises a
        ``StoreError`` where they cannot be had.
        """
        parts = [part for group in groups for part in self._ranges(group, columns)]
        refuse_above(
            "TABLE_BYTES",
            sum(length for _, length in parts),
            "Columns of a table that are fetched together have bytes:",
            TableError,
            file=self._name,
        )
        ranges = _together(parts)
        arriving = self._stored.read_ranges(ranges)

        def arrived() -> Parquet:
            data = [future.result() for future in arriving]
            held = [(begin, found) for (begin, _), found in zip(ranges, data, strict=True)]
            return FetchedParquet(_Sparse(held, self._stored), self._name, self.metadata)

        return arrived

    def _ranges(self, group: int, columns: Sequence[str]) -> list[Range]:
        described = self.metadata.row_group(group)
        found = []
        for number, name in enumerate(self._column_of):
            if name in columns:
                chunk = described.column(number)
                begin, length = first_page(chunk), chunk.total_compressed_size
                if begin < 0 or not 0 <= length <= self._stored.size - begin:
                    raise pa.ArrowInvalid("a column is outside the file")
                found.append((begin, length))
        return found


def _together(ranges: Sequence[Range]) -> list[Range]:
    merged: list[Range] = []
    for begin, length in sorted(ranges):
        if merged and begin - sum(merged[-1]) <= _NEAR:
            first, _ = merged.pop()
            length = begin + length - first
            begin = first
        merged.append((begin, length))
    return merged


class _Sparse(ReadsNow):
    """A file of which some ranges are here; what else is wanted after all is fetched."""

    def __init__(self, held: Sequence[tuple[int, bytes]], behind: StoredFile) -> None:
        self._held = held
        self._behind = behind
        self.size = behind.size
        self.identity = behind.identity

    def read(self, offset: int, length: int) -> bytes:
        for begin, data in self._held:
            start = offset - begin
            if start >= 0 and start + length <= len(data):
                return data[start : start + length]
        return self._behind.read(offset, length)


def arrow_files(file: Callable[[str], RemoteFile]) -> fs.FileSystem:
    """Return a file system for reading; nothing is asked for before a file is read."""
    return fs.PyFileSystem(_Files(file))


class _Files(fs.FileSystemHandler):  # type: ignore[misc]  # pyarrow has no types
    """What Arrow asks of a file system, as far as reading needs it."""

    def __init__(self, file: Callable[[str], RemoteFile]) -> None:
        self._file = file

    def get_type_name(self) -> str:
        return "demoreel"

    def get_file_info(self, paths: list[str]) -> list[fs.FileInfo]:
        return [fs.FileInfo(path, fs.FileType.File) for path in paths]

    def normalize_path(self, path: str) -> str:
        return path

    def open_input_file(self, path: str) -> pa.PythonFile:
        return pa.PythonFile(Seekable(self._file(path)), mode="r")

    open_input_stream = open_input_file

    def _refuse(self, *_: Any) -> NoReturn:
        raise OSError(errno.EROFS, "Remote tables are only read")

    get_file_info_selector = create_dir = delete_dir = delete_dir_contents = _refuse
    delete_root_dir_contents = delete_file = move = copy_file = _refuse
    open_output_stream = open_append_stream = _refuse
