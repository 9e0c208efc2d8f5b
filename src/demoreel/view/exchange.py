"""Labels that come from files, as changes of a draft, and annotations that leave as a file.

Read are ``lerobot_annotations.json`` (``edit/annotations.py``), and tables in CSV or parquet with a
column ``episode_index`` and one or more of ``success``, ``score``, ``flag`` and ``task``. A table
may have a row for each episode or for each frame, such as a score file: what a column says of an
episode is its largest value, of texts the first.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa
from pyarrow import csv

from demoreel.edit.annotations import annotations_of, read_annotations, times_of
from demoreel.edit.clips import Labels
from demoreel.edit.labels import EVENTS, PERSISTENT, SUCCESS, language_of
from demoreel.errors import ArgumentError, DemoreelError
from demoreel.read.dataset import Dataset
from demoreel.storage.arrow import UNREADABLE
from demoreel.storage.parquet import open_parquet
from demoreel.view.draft import checked

_EPISODE = "episode_index"
_COLUMNS = {"success": "success", SUCCESS: "success", "score": "score", "flag": "flag"}
_COLUMNS |= {"task": "task"}
_TRUTHS = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}
_FLAGS = {"good": "good", "1": "good", "bad": "bad", "0": "bad"}
_MOST_ROWS = 10_000_000


def changes_in(data: bytes, dataset: Dataset) -> dict[str, dict[str, Any]]:
    """Return what a file says of a dataset's episodes, as changes of a draft.

    Args:
        data: The file: annotations in JSON, or a table in parquet or CSV.
        dataset: The dataset.
    """
    is_json = data.lstrip()[:1] == b"{"
    found = _of_annotations(data, dataset) if is_json else _of_table(_table(data))
    if not found:
        raise ArgumentError("The file says nothing of any episode.")
    return checked(found, dataset.reader.episodes)


def _of_annotations(data: bytes, dataset: Dataset) -> dict[str, dict[str, Any]]:
    try:
        raw = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise ArgumentError(f"The file is not readable JSON ({error}).") from error
    said = read_annotations(raw, dataset.reader, where="the chosen file")
    return {str(episode): labels.to_json() for episode, labels in said.items()}


def _table(data: bytes) -> pa.Table:
    try:
        if data[:4] == b"PAR1":
            with open_parquet(data) as parquet:
                if parquet.metadata.num_rows > _MOST_ROWS:
                    raise ArgumentError("The table has too many rows.")
                names = [n for n in parquet.schema_arrow.names if n == _EPISODE or n in _COLUMNS]
                return parquet.read(names)
        return csv.read_csv(io.BytesIO(data))
    except ArgumentError:
        raise
    except (DemoreelError, *UNREADABLE) as error:
        raise ArgumentError(f"The file is no table that can be read ({error}).") from error


def _of_table(table: pa.Table) -> dict[str, dict[str, Any]]:
    known = [name for name in table.column_names if name in _COLUMNS]
    if _EPISODE not in table.column_names or not known:
        raise ArgumentError(
            "The table names no episodes, or says nothing of them.",
            hint=f"give it a column {_EPISODE} and one of {', '.join(sorted(_COLUMNS))}",
        )
    if not pa.types.is_integer(table.schema.field(_EPISODE).type):
        raise ArgumentError(f"The column {_EPISODE} holds no whole numbers.")
    found: dict[str, dict[str, Any]] = {}
    for name in known:
        if pa.types.is_nested(table.schema.field(name).type):
            raise ArgumentError(f"The column {name} holds lists.", hint="give it one value a row")
        part = table.select([_EPISODE, name]).drop_null()
        way = "max" if pa.types.is_primitive(part.schema.field(name).type) else "first"
        values = part.group_by(_EPISODE, use_threads=False).aggregate([(name, way)])
        for row in values.to_pylist():
            value, episode = row[f"{name}_{way}"], str(row[_EPISODE])
            if value == value and value != "":  # NaN is not said
                meaning = _COLUMNS[name]
                found.setdefault(episode, {})[meaning] = _value(meaning, value, episode)
    return found


def _value(name: str, value: object, episode: str) -> object:
    """Return a value of a table as a label."""
    text = str(value).strip().lower()
    if isinstance(value, float) and value.is_integer():
        text = str(int(value))
    if name == "success" and text in _TRUTHS:
        return _TRUTHS[text]
    if name == "flag" and text in _FLAGS:
        return _FLAGS[text]
    if name == "score" and text in "12345" and len(text) == 1:
        return int(text)
    if name == "task":
        return str(value)
    raise ArgumentError(f"The table says {name} {str(value)[:40]!r} of episode {episode}.")


def annotations_in(dataset: Dataset, draft: Mapping[str, Any]) -> dict[str, Any]:
    """Return the language of all episodes, with a draft's changes, as annotation tools have it.

    Cost: reads the columns of language where there are any; else the times of episodes in the
    draft.
    """
    changes = checked(draft["episodes"], dataset.reader.episodes)

    def said() -> Iterator[tuple[int, Labels, Any]]:
        in_columns = {PERSISTENT, EVENTS} & set(dataset.features)
        numbers = map(int, dataset.reader.episodes.episode_index)
        for episode in numbers if in_columns else map(int, changes):
            change = changes.get(str(episode), {})
            own = Labels.from_json({k: change[k] for k in ("persistent", "events") if k in change})
            labels = own.over(language_of(dataset, episode))
            if labels.persistent or labels.events:
                position = dataset.reader.episodes.position_of(episode)
                yield episode, labels, times_of(dataset.reader, position)

    return annotations_of(said())
