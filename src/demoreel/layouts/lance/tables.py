"""Lance tables: opened when they are used, at one version, in a process where Lance is safe."""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from demoreel.errors import ArgumentError, DemoreelError, TableError
from demoreel.layouts.lance.calls import (
    LanceFailure,
    MissingTable,
    Opened,
    TooMuch,
    ValuePage,
    ask,
    dataset,
    lance_failures,
    may_use_lance,
)
from demoreel.model.limits import exceeded
from demoreel.storage.external import External
from demoreel.storage.local import LocalFile, count_opening, open_file
from demoreel.storage.place import Where

VERSIONS = "_versions"
"""The folder of a table's manifests."""

LATEST, DIGITS = 2**64 - 1, 20
"""Names of so many digits count backwards from there: a listing begins with the newest."""

_LENGTH = struct.Struct("<I")  # before each value of a page
_USER_FAULT = "Invalid user input: "  # how Lance begins to tell that an expression is wrong

Take = Callable[[np.ndarray], list[bytes | None]]
"""Returns the values of rows as Lance gives them."""


def versions_of(table: Path) -> dict[int, Path]:
    """Return the manifest of every version of a local table, without a look into them."""
    found = {}
    for path in (table / VERSIONS).glob("*.manifest"):
        if path.stem.isdigit():
            number = int(path.stem)
            found[LATEST - number if len(path.stem) == DIGITS else number] = path
    return found


def newest_version(table: Path) -> int | None:
    """Return the newest version of a local table; None if there is none to be seen."""
    return max(versions_of(table), default=None)


class LanceTable:
    """One Lance table at one version.

    Nothing is opened or checked before it is needed. The version is fixed then, so that what other
    writers commit later does not show. This object holds no handle: pickling and forking move the
    place and the version.

    Args:
        place: The table's folder, or where it is in an object store.
        version: A version's number; None is the newest.
        tag: A version's name.
        or_newest: Whether the newest will do where that version has been cleaned up.

    Attributes:
        external: Which files outside the table it may name.
        fell_back: Whether the newest version had to do.
    """

    def __init__(
        self,
        place: Where | Path,
        *,
        version: int | None = None,
        tag: str | None = None,
        or_newest: bool = False,
    ) -> None:
        self.place: Where = str(place) if isinstance(place, Path) else place
        self.external = External(self.place)
        self._wanted: int | str | None = version if tag is None else tag
        self._or_newest = or_newest
        self.fell_back = False

    @property
    def path(self) -> str:
        """The table's folder or URI."""
        return str(self.place)

    @property
    def name(self) -> str:
        """The table's name with its ending, e.g. ``frames.lance``."""
        return os.path.basename(self.path.rstrip("/"))

    def beside(self, name: str) -> str:
        """Return the path or URI of something in the folder that the table is in."""
        return os.path.join(os.path.dirname(self.path.rstrip("/")), name)

    @cached_property
    def _opened(self) -> Opened:
        """What the table is at the version that is read.

        Cost: a read of the manifest.
        """
        try:
            found: Opened = ask("open_table", self.place, self._wanted)
            self.external.require(found.bases)
            return found
        except TooMuch as error:
            raise self._too_much(error) from error
        except LanceFailure as error:
            if self._wanted is not None and self._or_newest:
                self._wanted = None
                self.fell_back = True
                count_opening()
                return self._opened
            if self._wanted is not None:
                self._explain_version()
            raise TableError(
                f"A Lance table does not open: {error}.",
                hint=self._hint("fetch or restore the folder"),
                table=self.path,
            ) from error

    @property
    def version(self) -> int:
        """The number of the version that is read."""
        return self._opened.version

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of the columns."""
        return tuple(self._opened.types)

    @property
    def types(self) -> dict[str, pa.DataType]:
        """The type of each column; extension types as what they are stored as."""
        return self._opened.types

    @property
    def metadata(self) -> dict[str, str]:
        """What the table's writers have noted in it."""
        return self._opened.metadata

    @cached_property
    def identity(self) -> tuple[object, ...]:
        """What the rows come from; equal for two openings only if they hold the same rows."""
        where = os.path.realpath(self.place) if isinstance(self.place, str) else self.place
        return (where, self.version, self._opened.digest)

    def named_outside(self) -> dict[str, bool]:
        """Return what the table names outside itself, and whether each is refused.

        Cost: a scan of the columns with blobs, where there are any. Nothing that they name is read.
        """
        with self.errors():
            named: list[str] = ask("open_table", self.place, self._wanted).bases
        if not any(map(self.external.refuses, named)):
            named = [*named, *self._ask("external_uris")]
        return {uri: self.external.refuses(uri) for uri in named}

    def exists(self) -> bool:
        """Whether there is such a table.

        Cost: a read of the manifest the first time.
        """
        try:
            return self.version > 0
        except TableError as error:
            if isinstance(error.__cause__, MissingTable):
                return False
            raise

    def _hint(self, of_a_folder: str) -> str:
        if isinstance(self.place, str):
            return of_a_folder
        return "check the URI, and the credentials in the environment or in storage_options="

    def _explain_version(self) -> None:
        """Raise an ``ArgumentError`` if the table opens at its newest version."""
        try:
            newest, tags = ask("versions", self.place)
        except LanceFailure:
            return
        if isinstance(self._wanted, str):
            known = f"there are: {', '.join(sorted(tags))}" if tags else "it has none"
            raise ArgumentError(
                f"The table has no tag {self._wanted!r}.", hint=known, table=self.path
            )
        raise ArgumentError(
            f"The table has no version {self._wanted}.",
            hint=f"the newest is {newest}; older ones may have been cleaned up",
            table=self.path,
        )

    def tags(self) -> dict[str, int]:
        """Return the version of each tag that the table has now."""
        with self.errors():
            found: dict[str, int] = ask("versions", self.place)[1]
            return found

    def count_rows(self) -> int:
        """Return the number of rows that are not deleted."""
        return int(self._ask("count_rows"))

    def take(self, places: np.ndarray, columns: Sequence[str]) -> pa.Table:
        """Return the rows at these places among the rows that are not deleted, in this order.

        Cost: random rows cost about as much as the whole pages that they are in.
        """
        self.require(columns)
        return self._ask("take", places, list(columns))

    def scan(self, columns: Sequence[str]) -> pa.Table:
        """Return whole columns, in the order of the rows."""
        self.require(columns)
        return self._ask("scan", list(columns))

    def batches(self, columns: Sequence[str], rows: int) -> Iterator[pa.RecordBatch]:
        """Yield whole columns, so many rows at a time; all at once where Lance is in a helper."""
        own = self.own()
        if own is None:
            yield from self.scan(columns).to_batches(max_chunksize=rows)
            return
        with self.errors(), lance_failures(self.place):
            yield from own.scanner(columns=list(columns), batch_size=rows).to_batches()

    def own(self) -> Any:
        """Return Lance's own object; None in a process that may not use Lance itself."""
        if not may_use_lance():
            return None
        version = self.version
        with self.errors(), lance_failures(self.place):
            return dataset(self.place, version)

    def values(self, column: str) -> LocalValues | None:
        """Return a column's large values, to be read without Lance; None if they cannot be.

        Cost: a read of the data files' metadata.
        """
        self.require([column])
        try:
            pages = ask("value_pages", self.place, self.version, column)
        except LanceFailure:  # a take will say what is wrong
            return None
        if pages is None:
            return None
        return LocalValues(pages, lambda places: _listed(self.take(places, [column])))

    def matching(self, condition: str, column: str) -> np.ndarray:
        """Return the different values of a number column among the rows that meet a condition.

        Cost: reads the columns that the condition names; with a scalar index on them, less.

        Args:
            condition: An SQL expression over the columns; names with odd characters stand in
                backticks.
            column: The column.
        """
        self.require([column])
        version = self.version
        with self.errors():
            try:
                found: np.ndarray = ask("matching", self.place, version, condition, column)
                return found
            except LanceFailure as error:
                if not str(error).startswith(_USER_FAULT):
                    raise
                reason = str(error).removeprefix(_USER_FAULT)
        raise ArgumentError(
            f"The condition {condition!r} is not understood: {reason}.",
            hint=f"the columns are: {', '.join(self.columns)}",
            table=self.path,
        )

    def blob_rows(
        self, columns: Sequence[str], blobs: str
    ) -> tuple[pa.Table, dict[int, list[str]]]:
        """Return whole columns and where the blobs of a column are; see ``calls.blob_rows``."""
        self.require([*columns, blobs])
        found: tuple[pa.Table, dict[int, list[str]]] = self._ask("blob_rows", list(columns), blobs)
        return found

    def require(self, columns: Sequence[str]) -> None:
        """Raise a ``TableError`` for a column that is not there; Lance would panic."""
        for name in columns:
            if name not in self._opened.types:
                raise TableError(
                    f"The table lacks the column {name!r} that the metadata declare.",
                    hint="the table and info.json were not written together",
                    table=self.path,
                )

    def _ask(self, call: str, *arguments: Any) -> Any:
        version = self.version
        with self.errors():
            return ask(call, self.place, version, *arguments)

    def _too_much(self, error: TooMuch) -> DemoreelError:
        return exceeded(error.args[1], str(error), TableError, table=self.path)

    @contextmanager
    def errors(self) -> Iterator[None]:
        """Turn a failure of Lance into a ``TableError`` that names the table."""
        try:
            yield
        except TooMuch as error:
            raise self._too_much(error) from error
        except LanceFailure as error:
            raise TableError(
                f"A Lance table is not readable: {error}.",
                hint=self._hint("fetch or restore the file"),
                table=self.path,
                version=self.version if "_opened" in self.__dict__ else None,
            ) from error


def _listed(table: pa.Table) -> list[bytes | None]:
    found: list[bytes | None] = table.column(0).to_pylist()
    return found


class LocalValues:
    """The large values of one column, read from the table's files by the place of their rows.

    A take of random rows costs Lance some 75 µs of processor time a row, whatever is asked of them,
    and a process that was forked has to ask a helper. A value of kilobytes is in one piece,
    though: Lance writes "full-zip" pages, in which each value follows its length, and beside them
    where each begins. A read of such a piece takes 6 µs. A kind of page counts only if its values
    are those that Lance gives, tried on a few of them, and each value only if its length is the one
    that was noted. All else is left to Lance: other kinds of pages (compressed, with missing or
    small values), tables with deleted rows, other file systems.

    Args:
        pages: Its pages, in the order of rows.
        take: Asked for a few values of each kind of page.
    """

    def __init__(self, pages: list[ValuePage], take: Take) -> None:
        self._pages = pages
        self._take = take
        self._first = np.concatenate([[0], np.cumsum([page.rows for page in pages])])
        self._edges: dict[int, np.ndarray | None] = {}
        self._verified: dict[str, bool] = {}

    def read(self, places: np.ndarray) -> list[bytes] | None:
        """Return the values of these rows; None if Lance has to be asked."""
        numbers = np.searchsorted(self._first, places, side="right") - 1
        if not all(self._is_verified(number) for number in np.unique(numbers).tolist()):
            return None
        return self._values(places, numbers)

    def _values(self, places: np.ndarray, numbers: np.ndarray) -> list[bytes] | None:
        files: dict[str, LocalFile] = {}
        found = []
        within = (places - self._first[numbers]).tolist()
        for number, at in zip(numbers.tolist(), within, strict=True):
            page = self._pages[number]
            edges = self._edges_of(number)
            if edges is None:
                return None
            file = files.get(page.path)
            if file is None:
                opened = _opened(page.path)
                if opened is None:
                    return None
                file = files[page.path] = opened
            begin, end = int(edges[at]), int(edges[at + 1])
            piece = file.read(page.data[0] + begin, end - begin)
            size = end - begin - _LENGTH.size
            if len(piece) != end - begin or _LENGTH.unpack_from(piece)[0] != size:
                return None
            found.append(piece[_LENGTH.size :])
        return found

    def _edges_of(self, number: int) -> np.ndarray | None:
        """Return where the values of a page begin, and its end; None if that makes no sense."""
        if number not in self._edges:
            self._edges[number] = _edges(self._pages[number])
        return self._edges[number]

    def _is_verified(self, number: int) -> bool:
        """Whether pages of this kind are read rightly here, tried on the first one that is met."""
        page = self._pages[number]
        if page.kind not in self._verified:
            first = int(self._first[number])
            places = np.unique(first + np.array([0, page.rows // 2, page.rows - 1]))
            mine = self._values(places, np.full(len(places), number))
            self._verified[page.kind] = mine is not None and mine == self._take(places)
        return self._verified[page.kind]


def _opened(path: str) -> LocalFile | None:
    try:
        return open_file(path)
    except OSError:
        return None


def _edges(page: ValuePage) -> np.ndarray | None:
    file = _opened(page.path)
    begin, size = page.index
    width = size // (page.rows + 1)
    if file is None or width not in (1, 2, 4, 8) or size != width * (page.rows + 1):
        return None
    data = file.read(begin, size)
    if len(data) != size:
        return None
    edges = np.frombuffer(data, f"<u{width}").astype(np.int64)
    in_order = edges[0] == 0 and edges[-1] == page.data[1]
    return edges if in_order and (np.diff(edges) >= _LENGTH.size).all() else None
