"""Files of demoreel's own beside the episodes' metadata: what other programs have no place for.

They lie in a folder that no other program looks into, and are named like the file under
``meta/episodes`` that they came with::

    meta/demoreel/KIND/chunk-000/file-000.parquet

Rows say which episode they are of, in any order. Another program may renumber or replace episodes
without touching these files, so a row is never used for its number alone: each kind has something
in it that must agree with the episode.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import pyarrow as pa
import pyarrow.parquet as pq

from demoreel.errors import MetadataError, refuse_shortage
from demoreel.layouts.v3.files import FilePlace
from demoreel.storage.parquet import open_parquet

_IN_META = "demoreel"


@dataclass(frozen=True)
class Beside:
    """One kind of such files.

    Attributes:
        name: The name of its folder.
        schema: Its columns.
        at_once: Rows that are written and read together.
        dictionary: Columns whose values repeat.
        encodings: Parquet encodings of other columns.
    """

    name: str
    schema: pa.Schema
    at_once: int = 64
    dictionary: Sequence[str] = ()
    encodings: Mapping[str, str] = field(default_factory=dict)

    @property
    def folder(self) -> str:
        """Its folder, below the folder of metadata."""
        return f"{_IN_META}/{self.name}"

    def path(self, place: FilePlace) -> str:
        """Return the path of a file, relative to the dataset's folder."""
        return f"meta/{self.folder}/chunk-{place.chunk:03d}/file-{place.file:03d}.parquet"

    def files(self, meta: Path) -> list[Path]:
        """Return the files below a folder of metadata; none where there are none."""
        # Not what is no file: opening a pipe would wait for ever.
        return sorted(path for path in (meta / self.folder).glob("*/*.parquet") if path.is_file())

    def tables(self, meta: Path) -> Iterator[pa.Table]:
        """Yield all rows below a folder of metadata, some at a time.

        What cannot be read is passed over: a damaged file is as good as none.
        """
        for path in self.files(meta):
            try:
                with open_parquet(path, kind=MetadataError) as parquet:
                    for table in parquet.blocks(self.schema.names, rows=self.at_once):
                        yield table.cast(self.schema)
            except (pa.ArrowException, OSError, ValueError, KeyError, MetadataError) as error:
                refuse_shortage(error)


class BesideWriter:
    """Writes a file of one kind, some rows at a time; use it as a context manager.

    Where nothing is added, no file is made.

    Args:
        path: The file to make.
        kind: Its kind.
    """

    def __init__(self, path: Path, kind: Beside) -> None:
        self._path = path
        self._kind = kind
        self._waiting: list[Mapping[str, Any]] = []
        self._writer: pq.ParquetWriter | None = None

    def add_row(self, row: Mapping[str, Any]) -> None:
        """Take one row; it is written with others."""
        self._waiting.append(row)
        if len(self._waiting) == self._kind.at_once:
            self._flush()

    def copy(self, path: Path) -> None:
        """Take all rows of another file, as they are."""
        self._flush()
        with open_parquet(path, kind=MetadataError) as parquet:
            for table in parquet.blocks(self._kind.schema.names, rows=self._kind.at_once):
                self._write(table.cast(self._kind.schema))

    def _flush(self) -> None:
        if self._waiting:
            self._write(pa.Table.from_pylist(list(self._waiting), schema=self._kind.schema))
            self._waiting = []

    def _write(self, table: pa.Table) -> None:
        if self._writer is None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._writer = pq.ParquetWriter(
                self._path,
                self._kind.schema,
                compression="zstd",
                use_dictionary=list(self._kind.dictionary),
                column_encoding=dict(self._kind.encodings),
            )
        self._writer.write_table(table)

    def close(self) -> None:
        """Write what is left and finish the file."""
        self._flush()
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            self.close()
        elif self._writer is not None:
            self._writer.close()
