"""Blobs of a Lance table, read by position: a video that lies in a row."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from demoreel.errors import VideoError
from demoreel.storage.lance_calls import LanceFailure
from demoreel.storage.lance_places import Where
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
        size: Its size, if that is known; else it is asked for.

    Attributes:
        table: The table, its version, and the column.
        row: The row's id.
        is_remote: Whether it lies in an object store.

    Raises:
        VideoError: There is no blob in the row, or it cannot be opened.
        TableError: The table cannot be read, or has no such column.
    """

    def __init__(
        self, table: LanceTable, column: str, row: int, *, name: str, size: int | None = None
    ) -> None:
        table.require([column])
        self.table = (table.place, table.version, column)
        self.row = row
        self._name = name
        self.is_remote = not isinstance(table.place, str)
        size = size or self._ask("blob_size")
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
            return ask(call, *self.table, self.row, *arguments)

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


def read_side_by_side(
    wanted: Sequence[tuple[LanceBlob, Sequence[tuple[int, int]]]],
) -> list[list[bytes]]:
    """Return the bytes of (offset, length) ranges of many blobs.

    Cost: of the blobs of one table, about as long as one of them alone takes: an object store
    answers many requests at a time.

    Raises:
        VideoError: A range is not inside its blob, or a file is missing or cut off.
    """
    by_table: dict[Any, list[int]] = {}
    for number, (blob, _) in enumerate(wanted):
        by_table.setdefault(blob.table, []).append(number)
    found: dict[int, list[bytes]] = {}
    for table, numbers in by_table.items():
        parts = _read_of_one_table(table, [wanted[number] for number in numbers])
        found.update(zip(numbers, parts, strict=True))
    return [found[number] for number in range(len(wanted))]


def _read_of_one_table(
    table: tuple[Where, int, str], wanted: Sequence[tuple[LanceBlob, Sequence[tuple[int, int]]]]
) -> list[list[bytes]]:
    asked = [(blob.row, *part) for blob, ranges in wanted for part in ranges]
    try:
        read = iter(ask("ranges_of_blobs", *table, asked))
    except LanceFailure:  # one by one, to tell which it is
        return [blob.read_ranges(ranges) for blob, ranges in wanted]
    return [[next(read) for _ in ranges] for _, ranges in wanted]
