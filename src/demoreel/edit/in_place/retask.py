"""Changes the tasks of a v3.0 dataset in place: rewrites rows and metadata, but no video.

One commit puts everything in place: killed at any instant, the dataset has its old tasks or its new
ones.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pyarrow as pa

from demoreel.edit.foreign import details_in
from demoreel.errors import ArgumentError, MetadataError
from demoreel.layouts.appending import no_room_is_an_error, only_writer
from demoreel.layouts.base import Reader
from demoreel.layouts.beside import NOTE, approximate_stats, write_note
from demoreel.layouts.detect import open_reader
from demoreel.layouts.meta import listing_files
from demoreel.layouts.v3.writer import write_tasks
from demoreel.layouts.writing import TableWriter, write_json
from demoreel.model import Stats
from demoreel.stats.columns import stats_of_rows
from demoreel.stats.files import quiet_stats, write_episode_columns, write_stats
from demoreel.storage.arrow import as_numpy, from_numpy
from demoreel.storage.commit.journal import Transaction, carry_out, transaction
from demoreel.storage.json_files import read_json
from demoreel.storage.parquet import open_parquet

_WHO = ("episode_index", "task_index")

TextOf = Callable[[int, str], str]
"""The new task of an episode's frames that had an old one."""


def retask_in_place(root: Path, text_of: TextOf) -> None:
    """Give the frames of a v3.0 dataset other tasks; tasks that none has any more are gone.

    Cost: reads the tables twice and writes them once, with the images that are in them.

    Args:
        root: The dataset's folder.
        text_of: The new text, by episode and old text.
    """
    with only_writer(root, "edited"):
        reader = open_reader(root)
        if reader.layout != "v3.0":
            raise ArgumentError(
                f"Tasks are changed in place in v3.0; this dataset is {reader.layout}.",
                hint="write a new dataset",
                dataset=root,
            )
        with no_room_is_an_error(root), transaction(root) as changes:
            _Retasking(reader, text_of, changes).write()
            changes.record()
            carry_out(root)


class _Retasking:
    def __init__(self, reader: Reader, text_of: TextOf, changes: Transaction) -> None:
        self._reader = reader
        self._text_of = text_of
        self._changes = changes
        places = range(len(reader.episodes))
        self._tables = list(dict.fromkeys(reader.data_file(place) for place in places))
        self._texts = self._new_texts()
        used = sorted(set(self._texts.values()))  # as lerobot numbers them
        self._numbers = {text: number for number, text in enumerate(used)}
        self._rows: dict[int, list[np.ndarray]] = {}

    def _new_texts(self) -> dict[tuple[int, int], str]:
        """Return the new text of every pair of an episode and a task that a row has."""
        found: dict[tuple[int, int], str] = {}
        for name in self._tables:
            path = self._reader.root / name
            with open_parquet(path) as parquet:
                table = parquet.read(list(_WHO))
            for pair in np.unique(_pairs(table), axis=0):
                episode, task = (int(number) for number in pair)
                if task not in self._reader.tasks:
                    raise MetadataError(
                        f"Rows have the task_index {task}, which is no task's.",
                        hint="repair the dataset first: demoreel repair",
                        file=path,
                        episode=episode,
                    )
                found[episode, task] = self._text_of(episode, self._reader.tasks[task])
        return found

    def write(self) -> None:
        """Write every file that changes; ``info.json``, by which readers notice, is the last."""
        for name in self._tables:
            self._write_table(name)
        reader, new = self._reader, self._changes.new
        stats = self._write_stats(new)
        if stats is not None and (reader.meta / NOTE).is_file():
            before = quiet_stats(reader) or {}
            known = approximate_stats(reader.meta, reader.info.features, before)
            kept = {key: kinds for key, kinds in known.items() if key != "task_index"}
            write_note(new(f"meta/{NOTE}"), kept, stats=stats)
        details = {self._renamed(text): more for text, more in details_in(reader.meta).items()}
        write_tasks(new("meta/tasks.parquet"), self._numbers, details)
        info = read_json(reader.meta / "info.json")
        write_json(new("meta/info.json"), {**info, "total_tasks": len(self._numbers)})

    def _renamed(self, text: str) -> str:
        """Return the text that a task has now, where it is one for all episodes."""
        old = next((number for number, known in self._reader.tasks.items() if known == text), None)
        now = {new for (_, task), new in self._texts.items() if task == old}
        return now.pop() if len(now) == 1 else text

    def _write_table(self, name: str) -> None:
        with open_parquet(self._reader.root / name) as parquet:
            schema = parquet.schema_arrow
            at = schema.get_field_index("task_index")
            with TableWriter(self._changes.new(name), schema) as writer:
                for group in range(parquet.num_row_groups):
                    table = parquet.read(groups=[group])
                    fresh = self._fresh(table)
                    column = from_numpy(fresh).cast(schema.field(at).type)
                    writer.write(table.set_column(at, schema.field(at), column))

    def _fresh(self, table: pa.Table) -> np.ndarray:
        """Return the new ``task_index`` of rows, and remember it by episode."""
        pairs = _pairs(table)
        kinds, which = np.unique(pairs, axis=0, return_inverse=True)
        numbers = [self._numbers[self._texts[int(e), int(t)]] for e, t in kinds]
        fresh = np.array(numbers, np.int64)[which.reshape(-1)]
        for episode in np.unique(pairs[:, 0]):
            self._rows.setdefault(int(episode), []).append(fresh[pairs[:, 0] == episode])
        return fresh

    def _write_stats(self, new: Callable[[str], Path]) -> Path | None:
        """Write the episodes' tables, and the statistics, which are of numbers of tasks, too."""
        reader = self._reader
        episodes = list(reader.episodes)
        texts = [
            list(dict.fromkeys(self._new_text(episode.index, text) for text in episode.tasks))
            or self._in_rows(episode.index)
            for episode in episodes
        ]
        columns: dict[str, pa.Array] = {"tasks": pa.array(texts, pa.list_(pa.string()))}
        before = quiet_stats(reader)
        path = listing_files(reader.meta / "episodes")[0]
        with open_parquet(path, kind=MetadataError) as parquet:
            names = [n for n in parquet.schema_arrow.names if n.startswith("stats/task_index/")]
        own = [_stats(np.concatenate(self._rows[episode.index])) for episode in episodes]
        for name in names:
            kind = name.rpartition("/")[2]
            if all(kind in stats for stats in own):
                columns[name] = pa.array([stats[kind].tolist() for stats in own])
        whole: Stats = {}
        if before is not None and "task_index" in before:
            parts = [part for parts in self._rows.values() for part in parts]
            every = _stats(np.concatenate(parts))
            kinds = before["task_index"]
            whole["task_index"] = {kind: every[kind] for kind in kinds if kind in every}
        if before is None:
            write_episode_columns(reader, new, columns)
            return None
        return write_stats(reader, new, whole=whole, columns=columns)

    def _new_text(self, episode: int, text: str) -> str:
        return self._text_of(episode, text)

    def _in_rows(self, episode: int) -> list[str]:
        return [text for (number, _), text in self._texts.items() if number == episode]


def _pairs(table: pa.Table) -> np.ndarray:
    return np.stack([as_numpy(table.column(name)).astype(np.int64) for name in _WHO], axis=1)


def _stats(values: np.ndarray) -> Mapping[str, np.ndarray]:
    found = stats_of_rows(values.astype(np.float64)[None])
    return {**found, "count": np.array([len(values)])}
