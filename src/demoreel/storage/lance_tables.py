"""Lance tables: opened late, at one version, and anew in every process.

This module and its neighbour ``lance_blobs`` are the only ones that import Lance, and only when a
table is first looked at: that takes a quarter of a second.
"""

from __future__ import annotations

import hashlib
import os
import re
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from demoreel.errors import ArgumentError, DemoreelError, TableError

if TYPE_CHECKING:
    from lance import LanceDataset

_LONG_RUN = 1000  # rows side by side from which a scan of them is faster than a take
_RUST_SOURCE = re.compile(r",? /\S+\.rs:\d+:\d+")
_inherited: list[object] = []


class LanceTable:
    """One Lance table at one version.

    Nothing is opened or checked before it is needed. The version is fixed then, so that what other
    writers commit later does not show; pickling and forking move the path and the version.

    Lance's own threads do not survive a fork. It starts new ones in the child, but says nothing of
    what happens to open tables, so a child opens its own.

    Args:
        path: The table's folder or URI.
        version: A version's number.
        tag: A version's name.
    """

    def __init__(self, path: str, *, version: int | None = None, tag: str | None = None) -> None:
        self.path = path
        self._wanted: int | str | None = version if tag is None else tag
        self._opened: tuple[int, LanceDataset] | None = None
        self._identity: tuple[object, ...] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_opened": None}

    @property
    def name(self) -> str:
        """The table's name with its ending, e.g. ``frames.lance``."""
        return os.path.basename(self.path.rstrip("/"))

    @property
    def dataset(self) -> LanceDataset:
        """Lance's own object, this process's.

        Cost: a read of the manifest the first time, nothing afterwards.

        Raises:
            TableError: There is no such table, or its manifest is damaged.
            ArgumentError: There is no such version or tag.
        """
        opened = self._opened  # one read: another thread may be opening the table too
        if opened is not None:
            if opened[0] == os.getpid():
                return opened[1]
            leave_alone(opened)
        dataset = self._open()
        self._opened = (os.getpid(), dataset)
        self._wanted = int(dataset.version)
        return dataset

    def _open(self) -> LanceDataset:
        lance = import_lance()
        try:
            with failures():
                dataset: LanceDataset = lance.dataset(self.path, version=self._wanted)
            return dataset
        except LanceFailure as error:
            if self._wanted is not None:
                self._explain_version()
            raise TableError(
                f"A Lance table does not open: {error}.",
                hint="fetch or restore the folder",
                table=self.path,
            ) from error

    def _explain_version(self) -> None:
        """Raise an ``ArgumentError`` if the table opens at its newest version."""
        try:
            with failures():
                newest: LanceDataset = import_lance().dataset(self.path)
                tags, last = sorted(newest.tags.list()), newest.version
        except LanceFailure:
            return
        if isinstance(self._wanted, str):
            known = f"there are: {', '.join(tags)}" if tags else "it has none"
            raise ArgumentError(
                f"The table has no tag {self._wanted!r}.", hint=known, table=self.path
            )
        raise ArgumentError(
            f"The table has no version {self._wanted}.",
            hint=f"the newest is {last}; older ones may have been cleaned up",
            table=self.path,
        )

    @property
    def version(self) -> int:
        """The version that is read."""
        return int(self.dataset.version)

    @property
    def schema(self) -> pa.Schema:
        """The table's columns; a blob column shows its descriptor."""
        return self.dataset.schema

    @property
    def identity(self) -> tuple[object, ...]:
        """What the rows come from; equal for two openings only if they hold the same rows."""
        if self._identity is None:
            with self.errors():
                parts = [fragment.metadata for fragment in self.dataset.get_fragments()]
            # Data files are never written to, and their names are random.
            names = [(str(p.deletion_file), *(file.path for file in p.files)) for p in parts]
            digest = hashlib.sha256(repr(names).encode()).hexdigest()[:16]
            self._identity = (os.path.realpath(self.path), self.version, digest)
        return self._identity

    def count_rows(self) -> int:
        """Return the number of rows that are not deleted."""
        with self.errors():
            return int(self.dataset.count_rows())

    def take(self, places: np.ndarray, columns: Sequence[str]) -> pa.Table:
        """Return the rows at these places among the rows that are not deleted, in this order.

        Cost: random rows cost about as much as the whole pages that they lie in.

        Raises:
            TableError: A data file is missing or damaged, or there is no such column or row.
        """
        self.require(columns)
        with self.errors():
            first, count = int(places[0]), len(places)
            if count >= _LONG_RUN and np.array_equal(places, np.arange(first, first + count)):
                return self.dataset.slice(first, first + count, columns=list(columns))
            return self.dataset.take(places.tolist(), columns=list(columns))

    def scan(self, columns: Sequence[str], *, with_row_id: bool = False) -> pa.Table:
        """Return whole columns, in the order of the rows.

        Raises:
            TableError: A data file is missing or damaged, or there is no such column.
        """
        self.require(columns)
        with self.errors():
            return self.dataset.to_table(columns=list(columns), with_row_id=with_row_id)

    def require(self, columns: Sequence[str]) -> None:
        """Raise a ``TableError`` for a column that is not there; Lance would panic."""
        present = set(self.schema.names)
        for name in columns:
            if name not in present:
                raise TableError(
                    f"The table lacks the column {name!r} that the metadata declare.",
                    hint="the table and info.json were not written together",
                    table=self.path,
                )

    @contextmanager
    def errors(self) -> Iterator[None]:
        """Turn what Lance raises into a ``TableError`` that names the table."""
        try:
            with failures():
                yield
        except LanceFailure as error:
            raise TableError(
                f"A Lance table is not readable: {error}.",
                hint="fetch or restore the file",
                table=self.path,
                version=self._wanted,
            ) from error


class LanceFailure(Exception):
    """Something that Lance raised, in one line."""


@contextmanager
def failures() -> Iterator[None]:
    """Turn what Lance raises into a ``LanceFailure``."""
    try:
        yield
    except DemoreelError:
        raise
    except (OSError, ValueError, RuntimeError) as error:  # Arrow's errors are ValueErrors
        raise LanceFailure(_reason(error)) from error
    except BaseException as error:
        # A panic in Lance's Rust is a BaseException, and its class cannot be imported.
        if type(error).__name__ != "PanicException":
            raise
        raise LanceFailure(_reason(error)) from error


def import_lance() -> Any:
    """Import Lance.

    It warns at every fork of a process that has imported it. Tables are opened anew in every
    process here, so that warning is kept from users who did not import Lance themselves.
    """
    if "lance" not in sys.modules:
        import lance

        warnings.filterwarnings("ignore", message="lance is not fork-safe", category=UserWarning)
        return lance
    return sys.modules["lance"]


def leave_alone(opened: object) -> None:
    """Keep what a forked process has inherited from being closed: its threads are not here."""
    _inherited.append(opened)


def _reason(error: BaseException) -> str:
    """Return what an error of Lance says, in one line, without its Rust source positions."""
    lines = str(error).splitlines() or [type(error).__name__]
    text = _RUST_SOURCE.sub("", lines[0]).strip().rstrip(".")
    for word in ("External error: ", "LanceError(IO): ", "Generic LocalFileSystem error: "):
        text = text.replace(word, "")
    return text
