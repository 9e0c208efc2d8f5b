"""Copies small files into larger ones, in this process or in a process of its own.

The functions write whole new files and change none. Copying keeps a processor busy, and the
interpreter's lock with it; beside a control loop it is therefore done by a helper process at the
lowest priority. The helper has no state of the dataset: it is told what to read and where to
write, ends when its caller has ended, and what it leaves is in a folder that never counts
before it is committed.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from demoreel.errors import DemoreelError, MetadataError
from demoreel.layouts.beside import HISTOGRAMS, Beside, BesideWriter
from demoreel.layouts.capture_times import CAPTURE_TIMES
from demoreel.layouts.writing import TableWriter
from demoreel.media.remux import join
from demoreel.storage.commit.files import says_no_room
from demoreel.storage.helper_process import HelperProcess, answer_calls
from demoreel.storage.parquet import open_parquet

_PROGRAM = "from demoreel.layouts.v3.copying import serve; serve()"
_NICENESS = 19
_ROWS_AT_ONCE = 512


@dataclass(frozen=True, slots=True)
class Moved:
    """Other values for some neighbouring rows of a table.

    Attributes:
        first: The first row.
        columns: Number columns and their values; columns that the table lacks are passed over.
    """

    first: int
    columns: Mapping[str, np.ndarray]


def join_videos(sources: Sequence[Path], target: Path, fps: float) -> int:
    """Copy the packets of several videos into one; return its frames."""
    return join(sources, target, fps=fps)


def join_tables(sources: Sequence[Path], target: Path) -> None:
    """Copy tables into one, a row group after the other: an episode keeps a group of its own."""
    with _Tables(target) as tables:
        for source in sources:
            with open_parquet(source) as parquet:
                for group in range(parquet.num_row_groups):
                    tables.write(parquet.read(groups=[group]))


def rewrite_table(source: Path, target: Path, moved: Iterable[Moved]) -> None:
    """Copy a table of metadata with other values in some rows."""
    table = _read(source)
    for change in moved:
        table = _with_values(table, change)
    pq.write_table(table, target, compression="snappy")


def join_metadata(sources: Sequence[Path], target: Path, own: Mapping[str, int]) -> None:
    """Copy tables of metadata into one.

    Args:
        sources: The tables.
        target: The file to make.
        own: Columns that say where a row is, and what they say in the new file.
    """
    with _Tables(target) as tables:
        for batch in _batches(sources):
            table = pa.concat_tables(batch)
            values = {name: np.full(len(table), value) for name, value in own.items()}
            tables.write(_with_values(table, Moved(0, values)).combine_chunks())


def join_beside(kind: str, sources: Sequence[Path], target: Path) -> None:
    """Copy files of one kind that are beside metadata into one."""
    with BesideWriter(target, BESIDE[kind]) as writer:
        for source in sources:
            writer.copy(source)


BESIDE: Mapping[str, Beside] = {kind.name: kind for kind in (HISTOGRAMS, CAPTURE_TIMES)}
"""The files beside an episode's metadata, which are merged with them."""

Function = Callable[..., Any]

CALLS: Mapping[str, Function] = {
    each.__name__: each
    for each in (join_videos, join_tables, rewrite_table, join_metadata, join_beside)
}


class Copying(Protocol):
    """What does the copying."""

    def __call__(self, function: Function, *arguments: Any) -> Any:
        """Return what a function of this module returns, or raise what it raises."""
        ...


def copy_here(function: Function, *arguments: Any) -> Any:
    """Do the copying in this thread."""
    return function(*arguments)


class CopyingProcess:
    """Does the copying in a process of its own, at the lowest priority.

    For one thread at a time. The process starts with the first call, which takes half a second of
    what the machine has to spare.
    """

    def __init__(self) -> None:
        self._process: HelperProcess | None = None

    def __call__(self, function: Function, *arguments: Any) -> Any:
        """Have a function of this module called there."""
        if self._process is None:  # Ctrl-C in a terminal is for the recording process
            self._process = HelperProcess(_PROGRAM, detached=True)
        try:
            return self._process.ask(function.__name__, arguments)
        except (BrokenPipeError, EOFError) as error:
            self.close()
            raise OSError(f"the process that merges files has ended ({error})") from error

    def close(self) -> None:
        """End the process, whatever it is doing."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()


def serve() -> None:
    """Answer calls until the caller has ended; the helper's main function."""
    with contextlib.suppress(OSError):
        os.nice(_NICENESS)
    pa.set_cpu_count(1)
    answer_calls(_answer)


def _answer(name: str, arguments: tuple[Any, ...]) -> Any:
    try:
        return CALLS[name](*arguments)
    except Exception as error:
        if says_no_room(error):  # which its causes say, and they do not travel
            return OSError(errno.ENOSPC, str(error))
        return error if isinstance(error, DemoreelError) else OSError(repr(error))


class _Tables:
    """One file of the rows of several tables."""

    def __init__(self, target: Path) -> None:
        self._target = target
        self._writer: TableWriter | None = None

    def write(self, table: pa.Table) -> None:
        self._writer = self._writer or TableWriter(self._target, table.schema)
        self._writer.write(table)

    def __enter__(self) -> _Tables:
        return self

    def __exit__(self, *_: object) -> None:
        if self._writer is not None:
            self._writer.close()


def _batches(sources: Sequence[Path]) -> Iterable[list[pa.Table]]:
    """Yield tables, some hundred rows of them at a time."""
    batch: list[pa.Table] = []
    for source in sources:
        batch.append(_read(source))
        if sum(map(len, batch)) >= _ROWS_AT_ONCE:
            yield batch
            batch = []
    if batch:
        yield batch


def _read(path: Path) -> pa.Table:
    with open_parquet(path, kind=MetadataError) as parquet:
        return parquet.read()


def _with_values(table: pa.Table, moved: Moved) -> pa.Table:
    for name, values in moved.columns.items():
        at = table.schema.get_field_index(name)
        if at < 0:
            continue
        whole = table.column(at).to_numpy().copy()
        whole[moved.first : moved.first + len(values)] = values
        table = table.set_column(at, table.field(at), pa.array(whole, table.field(at).type))
    return table
