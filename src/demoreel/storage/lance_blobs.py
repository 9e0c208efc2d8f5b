"""Blobs of a Lance table, read by position: a video that lies in a row."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from demoreel.errors import VideoError
from demoreel.storage.lance_calls import LanceFailure
from demoreel.storage.lance_process import ask
from demoreel.storage.lance_tables import LanceTable


class LanceBlob:
    """The bytes of one row's blob.

    Lance answers the same calls for blobs of any kind: inside the data file, beside it, or
    somewhere else, by URI. A range costs about 0.1 ms on a local disk, many at once far less each.

    Holds no handle: safe for threads, forks and pickling.

    Args:
        table: The table.
        column: The blob column.
        row: The row's id.
        name: What to call it in errors.

    Raises:
        VideoError: There is no blob in the row, or it cannot be opened.
        TableError: The table cannot be read, or has no such column.
    """

    def __init__(self, table: LanceTable, column: str, row: int, *, name: str) -> None:
        table.require([column])
        self._place = (table.path, table.version, column, row)
        self._name = name
        size = self._ask("blob_size")
        if size is None:
            raise VideoError(
                "The video's row holds no bytes.", hint="restore the table", file=self._name
            )
        self.size = int(size)
        self.identity = (*table.identity, column, row, self.size)

    def read(self, offset: int, length: int) -> bytes:
        """Return the bytes there; fewer than ``length`` only where the blob ends.

        Raises:
            VideoError: The file that holds the blob is missing or cut off.
        """
        length = min(length, self.size - offset)
        if offset < 0 or length <= 0:
            return b""
        return self.read_ranges([(offset, length)])[0]

    def read_ranges(self, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        """Return the bytes of many (offset, length) ranges, in one call; all inside the blob.

        Raises:
            VideoError: A range is not inside, or the file that holds the blob is missing or cut
                off.
        """
        found: list[bytes] = self._ask("blob_ranges", ranges)
        return found

    def _ask(self, call: str, *arguments: Any) -> Any:
        with self._errors():
            return ask(call, *self._place, *arguments)

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except LanceFailure as error:
            raise VideoError(
                f"The video's bytes cannot be read from their table: {error}.",
                hint="fetch or restore the file",
                file=self._name,
            ) from error
