"""Lance tables: opened late, at one version, in whatever process it is safe."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa

from demoreel.errors import ArgumentError, TableError
from demoreel.storage.lance_calls import LanceFailure, MissingTable
from demoreel.storage.lance_places import Where
from demoreel.storage.lance_process import ask
from demoreel.storage.lance_values import LocalValues

_USER_FAULT = "Invalid user input: "  # how Lance begins to tell that an expression is wrong


class LanceTable:
    """One Lance table at one version.

    Nothing is opened or checked before it is needed. The version is fixed then, so that what other
    writers commit later does not show. This object holds no handle: pickling and forking move the
    place and the version.

    Args:
        place: The table's folder, or where it lies in an object store.
        version: A version's number; None is the newest.
        tag: A version's name.
        or_newest: Whether the newest will do where that version has been cleaned up.
    """

    def __init__(
        self,
        place: Where,
        *,
        version: int | None = None,
        tag: str | None = None,
        or_newest: bool = False,
    ) -> None:
        self.place = place
        self._wanted: int | str | None = version if tag is None else tag
        self._or_newest = or_newest

    @property
    def path(self) -> str:
        """The table's folder or URI."""
        return str(self.place)

    @property
    def name(self) -> str:
        """The table's name with its ending, e.g. ``frames.lance``."""
        return os.path.basename(self.path.rstrip("/"))

    def beside(self, name: str) -> str:
        """Return the path or URI of something in the folder that the table lies in."""
        return os.path.join(os.path.dirname(self.path.rstrip("/")), name)

    @cached_property
    def version(self) -> int:
        """The version that is read.

        Cost: a read of the manifest the first time.

        Raises:
            TableError: There is no such table, or its manifest is damaged.
            ArgumentError: There is no such version or tag.
        """
        try:
            return int(ask("find_version", self.place, self._wanted))
        except LanceFailure as error:
            if self._wanted is not None and self._or_newest:
                self._wanted = None
                return self.version
            if self._wanted is not None:
                self._explain_version()
            raise TableError(
                f"A Lance table does not open: {error}.",
                hint=self._hint("fetch or restore the folder"),
                table=self.path,
            ) from error

    def exists(self) -> bool:
        """Whether there is such a table.

        Cost: a read of the manifest the first time.

        Raises:
            TableError: There may be one, but it does not open.
            ArgumentError: There is no such version or tag.
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
        """Return the version of each tag that the table has now.

        Raises:
            TableError: There is no such table, or its manifest is damaged.
        """
        with self.errors():
            found: dict[str, int] = ask("versions", self.place)[1]
            return found

    @cached_property
    def columns(self) -> tuple[str, ...]:
        """The names of the columns."""
        return tuple(self._ask("columns"))

    @cached_property
    def metadata(self) -> dict[str, str]:
        """What the table's writers have noted in it."""
        return dict(self._ask("metadata"))

    @cached_property
    def identity(self) -> tuple[object, ...]:
        """What the rows come from; equal for two openings only if they hold the same rows."""
        where = os.path.realpath(self.place) if isinstance(self.place, str) else self.place
        return (where, self.version, self._ask("digest"))

    def count_rows(self) -> int:
        """Return the number of rows that are not deleted."""
        return int(self._ask("count_rows"))

    def take(self, places: np.ndarray, columns: Sequence[str]) -> pa.Table:
        """Return the rows at these places among the rows that are not deleted, in this order.

        Cost: random rows cost about as much as the whole pages that they lie in.

        Raises:
            TableError: A data file is missing or damaged, or there is no such column or row.
        """
        self.require(columns)
        return self._ask("take", places, list(columns))

    def scan(self, columns: Sequence[str]) -> pa.Table:
        """Return whole columns, in the order of the rows.

        Raises:
            TableError: A data file is missing or damaged, or there is no such column.
        """
        self.require(columns)
        return self._ask("scan", list(columns))

    def values(self, column: str) -> LocalValues | None:
        """Return a column's large values, to be read without Lance; None if they cannot be.

        Cost: a read of the data files' metadata.

        Raises:
            TableError: There is no such column.
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

        Raises:
            ArgumentError: The condition is no SQL, names an unknown column, or is not one.
            TableError: A data file is missing or damaged, or there is no such column.
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
        """Return whole columns and where the blobs of a column lie; see ``lance_calls.blob_rows``.

        Raises:
            TableError: A data file is missing or damaged, or there is no such column.
        """
        self.require([*columns, blobs])
        found: tuple[pa.Table, dict[int, list[str]]] = self._ask("blob_rows", list(columns), blobs)
        return found

    def require(self, columns: Sequence[str]) -> None:
        """Raise a ``TableError`` for a column that is not there; Lance would panic."""
        for name in columns:
            if name not in self.columns:
                raise TableError(
                    f"The table lacks the column {name!r} that the metadata declare.",
                    hint="the table and info.json were not written together",
                    table=self.path,
                )

    def _ask(self, call: str, *arguments: Any) -> Any:
        version = self.version
        with self.errors():
            return ask(call, self.place, version, *arguments)

    @contextmanager
    def errors(self) -> Iterator[None]:
        """Turn a failure of Lance into a ``TableError`` that names the table."""
        try:
            yield
        except LanceFailure as error:
            raise TableError(
                f"A Lance table is not readable: {error}.",
                hint=self._hint("fetch or restore the file"),
                table=self.path,
                version=self.__dict__.get("version"),
            ) from error


def _listed(table: pa.Table) -> list[bytes | None]:
    found: list[bytes | None] = table.column(0).to_pylist()
    return found
