"""Blobs of a Lance table, read by position: a video that lies in a row."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from demoreel.errors import VideoError
from demoreel.storage.lance_tables import LanceFailure, LanceTable, failures, leave_alone

if TYPE_CHECKING:
    from lance import BlobFile


class LanceBlob:
    """The bytes of one row's blob.

    Lance answers the same calls for blobs of any kind: inside the data file, beside it, or
    somewhere else, by URI. A range costs about 0.1 ms on a local disk, many at once far less each.

    Safe for threads; a forked process opens the blob anew.

    Args:
        table: The table.
        column: The blob column.
        row: The row's id.
        name: What to call it in errors.

    Raises:
        VideoError: There is no blob in the row, or it cannot be opened.
    """

    def __init__(self, table: LanceTable, column: str, row: int, *, name: str) -> None:
        self._table = table
        self._column = column
        self._row = row
        self._name = name
        self._opened: tuple[int, BlobFile] | None = None
        self.size = self._blob().size()
        self.identity = (*table.identity, column, row, self.size)

    def _blob(self) -> BlobFile:
        opened = self._opened
        if opened is not None:
            if opened[0] == os.getpid():
                return opened[1]
            leave_alone(opened)
        self._table.require([self._column])
        with self._errors():
            blob = self._table.dataset.take_blobs(self._column, ids=[self._row])[0]
        if blob is None:
            raise VideoError(
                "The video's row holds no bytes.", hint="restore the table", file=self._name
            )
        self._opened = (os.getpid(), blob)
        return blob

    def read(self, offset: int, length: int) -> bytes:
        """Return the bytes there; fewer than ``length`` only where the blob ends.

        Raises:
            VideoError: The file that holds the blob is missing or cut off.
        """
        length = min(length, self.size - offset)
        if offset < 0 or length <= 0:
            return b""
        with self._errors():
            return self._blob().read_range(offset, length)

    def read_ranges(self, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        """Return the bytes of many (offset, length) ranges, in one call; all inside the blob.

        Raises:
            VideoError: A range is not inside, or the file that holds the blob is missing or cut
                off.
        """
        with self._errors():
            return self._blob().read_ranges(list(ranges))

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            with failures():
                yield
        except LanceFailure as error:
            raise VideoError(
                f"The video's bytes cannot be read from their table: {error}.",
                hint="fetch or restore the file",
                file=self._name,
            ) from error
