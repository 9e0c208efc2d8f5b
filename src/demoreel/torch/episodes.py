"""``meta.episodes``: a row for each episode, with what scripts use of a ``datasets.Dataset``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from demoreel.errors import MissingExtraError, OutOfRangeError, UnknownKeyError, nearest
from demoreel.layouts.base import Reader
from demoreel.layouts.meta import listing_files, read_episode_columns
from demoreel.layouts.v3.reader import V3Metadata
from demoreel.storage.arrow import as_numpy, from_numpy
from demoreel.storage.commit.consistent import consistent_read

if TYPE_CHECKING:
    import pandas as pd

_WITHOUT_EFFECT = {"keep_in_memory", "load_from_cache_file", "cache_file_name", "num_proc", "desc"}
_OF_FILES = "meta/episodes/"  # where a row lies; lerobot's rows have it, too


class EpisodesView:
    """Per-episode metadata by LeRobot's column names: every column of the files but statistics.

    ``episodes[3]`` is a dict, ``episodes["length"]`` a list, ``episodes[2:5]`` a dict of lists.
    What is not here of ``datasets.Dataset`` is that of ``to_dataset()``, which needs the package.
    v2.x gets the columns that v3.0 has.

    Args:
        source: The dataset, whose files are read when a row is asked for; or the rows.
    """

    def __init__(self, source: Reader | pa.Table) -> None:
        self._reader = None if isinstance(source, pa.Table) else source
        if isinstance(source, pa.Table):
            self.__dict__["_table"] = source

    @cached_property
    def _table(self) -> pa.Table:
        assert self._reader is not None
        more = _other_columns(self._reader)
        numbers = {name: from_numpy(column) for name, column in self._numbers.items()}
        first = {
            "episode_index": numbers.pop("episode_index"),
            "tasks": _tasks_of(self._reader),
            "length": numbers.pop("length"),
        }
        return pa.table({**more, **first, **numbers}).select(
            list(dict.fromkeys([*first, *numbers, *more]))
        )

    @cached_property
    def _numbers(self) -> dict[str, np.ndarray]:
        if self._reader is None:
            return {}
        start = self._reader.episodes.start
        own = {"dataset_from_index": start[:-1], "dataset_to_index": start[1:]}
        columns = {**self._reader.episode_columns(), **own}
        return {name: np.ascontiguousarray(column) for name, column in columns.items()}

    @property
    def column_names(self) -> list[str]:
        """Names of the columns."""
        return list(self._table.column_names)

    @property
    def num_rows(self) -> int:
        """How many episodes there are."""
        return len(self)

    @property
    def num_columns(self) -> int:
        """How many columns there are."""
        return len(self.column_names)

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""
        return len(self), self.num_columns

    def __len__(self) -> int:
        return len(self._reader.episodes) if self._reader is not None else int(self._table.num_rows)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return (self[place] for place in range(len(self)))

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, str):
            return self._column(key)
        if isinstance(key, (int, np.integer)):
            row: dict[str, Any] = self._table.slice(self._place(int(key)), 1).to_pylist()[0]
            return row
        return self.select(range(len(self))[key] if isinstance(key, slice) else key).to_dict()

    def _place(self, place: int) -> int:
        if not -len(self) <= place < len(self):
            raise OutOfRangeError(f"There is no episode {place}; there are {len(self)}.")
        return place % len(self)

    def _column(self, name: str) -> list[Any]:
        if name in self._numbers:
            return list(self._numbers[name].tolist())
        if name not in self.column_names:
            raise UnknownKeyError(
                f"Episodes have no column {name!r}.", hint=nearest(name, self.column_names)
            )
        return list(self._table.column(name).to_pylist())

    def select(self, indices: Iterable[int], **_: Any) -> EpisodesView:
        """Return these rows, in this order."""
        places = np.array([self._place(int(place)) for place in indices], np.int64)
        return EpisodesView(self._table.take(from_numpy(places)))

    def select_columns(self, column_names: str | Sequence[str], **_: Any) -> EpisodesView:
        """Return these columns."""
        names = [column_names] if isinstance(column_names, str) else list(column_names)
        for name in names:
            if name not in self.column_names:
                self._column(name)  # says so
        return EpisodesView(self._table.select(names))

    def filter(self, function: Callable[..., bool] | None = None, **options: Any) -> Any:
        """Return the rows that satisfy a function; other options are those of ``datasets``."""
        if function is None or options.keys() - _WITHOUT_EFFECT:
            return self.to_dataset().filter(function, **options)
        return self.select(place for place, row in enumerate(self) if function(row))

    def to_table(self) -> pa.Table:
        """Return the rows as an Arrow table."""
        return self._table

    def to_pandas(self, **_: Any) -> pd.DataFrame:
        """Return the rows as a pandas DataFrame."""
        try:
            import_module("pandas")
        except ImportError as error:
            raise MissingExtraError(
                "to_pandas() makes a pandas DataFrame, and pandas is not installed.",
                hint="pip install 'demoreel[torch]'",
            ) from error
        return self._table.to_pandas()

    def to_dict(self, **_: Any) -> dict[str, list[Any]]:
        """Return the columns as lists."""
        columns: dict[str, list[Any]] = self._table.to_pydict()
        return columns

    def to_list(self) -> list[dict[str, Any]]:
        """Return the rows as dicts."""
        return list(self)

    def to_dataset(self) -> Any:
        """Return the rows as a ``datasets.Dataset``, in memory.

        Raises:
            MissingExtraError: The package is not installed.
        """
        return hugging_face_datasets("This of meta.episodes").Dataset(self._table)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self.to_dataset(), name)

    def __reduce__(self) -> tuple[Any, ...]:
        return (EpisodesView, (self._table,))  # a reader stays in its process

    def __repr__(self) -> str:
        return f"EpisodesView(num_rows={len(self)}, columns={self.column_names})"


def hugging_face_datasets(what: str) -> Any:
    """Return the package ``datasets``.

    Args:
        what: What it is needed for, as a sentence begins with it.
    """
    try:
        return import_module("datasets")
    except ImportError as error:
        raise MissingExtraError(
            f"{what} is an object of the package `datasets`, which is not installed.",
            hint="pip install datasets, or read rows with demoreel.open(...)",
        ) from error


def _other_columns(reader: Reader) -> dict[str, pa.ChunkedArray]:
    """Return what files say of episodes besides numbers, tasks and statistics, by position.

    Episodes that wait for their encoders are in no file: they have none of it.
    """
    if reader.info.version.startswith("v2"):
        rows = [episode.extra for episode in reader.episodes]
        names = dict.fromkeys(name for row in rows for name in row)
        return {name: _column([row.get(name) for row in rows]) for name in names}

    from demoreel.stats.inherited import is_extra

    def is_wanted(name: str) -> bool:
        return name == "episode_index" or name.startswith(_OF_FILES) or is_extra(name)

    def read() -> list[pa.Table]:
        found = (
            read_episode_columns(path, is_wanted)
            for path in listing_files(reader.meta / "episodes")
        )
        return [part for part in found if part is not None]

    parts = consistent_read(reader.root, read)  # a commit may be merging these files just now
    if not parts:
        return {}
    table = pa.concat_tables(parts, promote_options="permissive")
    numbers = reader.episodes.episode_index
    listed = as_numpy(table.column("episode_index").combine_chunks())
    order = np.argsort(listed, kind="stable")
    place = np.searchsorted(listed[order], numbers)
    there = (place < len(listed)) & (listed[order[np.minimum(place, len(listed) - 1)]] == numbers)
    rows_of = pa.array(order[np.minimum(place, len(listed) - 1)], mask=~there)
    return {n: table.column(n).take(rows_of) for n in table.column_names if n != "episode_index"}


def _tasks_of(reader: Reader) -> Any:
    """Return the tasks of every episode as lists of texts."""
    if isinstance(reader, V3Metadata):
        tasks = reader.episode_tasks(np.arange(len(reader.episodes)))
        if not tasks.null_count:
            return tasks
    return pa.array([list(episode.tasks) for episode in reader.episodes], pa.list_(pa.string()))


def _column(values: Sequence[Any]) -> pa.ChunkedArray:
    """Return other programs' values as a column; as texts where they have no common type."""
    try:
        return pa.chunked_array([pa.array(values)])
    except (pa.ArrowInvalid, pa.ArrowTypeError):
        return pa.chunked_array([pa.array([None if v is None else str(v) for v in values])])
