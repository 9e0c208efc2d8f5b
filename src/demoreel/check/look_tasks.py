"""Reading the tasks as far as they go."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from demoreel.check.look_episodes import UNREADABLE, first_line
from demoreel.storage.local import refuse_special

Found = Callable[..., None]

LINES, TABLE = "meta/tasks.jsonl", "meta/tasks.parquet"
_MOST_TASKS = 1 << 24


@dataclass(frozen=True, slots=True)
class TaskList:
    """The tasks in the order of their file.

    Attributes:
        indices: Each one's ``task_index``.
        texts: Each one's text.
        file: The file.
    """

    indices: list[int]
    texts: list[str]
    file: str


def read(root: Path, files: Mapping[str, int], *, is_v2: bool, found: Found) -> TaskList | None:
    """Return the tasks; None where they cannot be read, which is a finding."""
    name = LINES if is_v2 else TABLE
    if name not in files:
        found("tasks-missing", f"There is no {name}.", file=name)
        return None
    pairs = _lines(root, found) if is_v2 else _table(root, found)
    if pairs is None:
        return None
    good = [(index, text) for index, text in pairs if isinstance(index, int) and text is not None]
    if len(good) < len(pairs):
        found(
            "tasks-unreadable",
            f"{len(pairs) - len(good)} tasks have no index or no text.",
            count=len(pairs) - len(good),
            file=name,
        )
    return TaskList([index for index, _ in good], [str(text) for _, text in good], name)


def _lines(root: Path, found: Found) -> list[tuple[object, object]]:
    pairs: list[tuple[object, object]] = []
    try:
        refuse_special(root / LINES)
        lines = (root / LINES).read_bytes().splitlines()
    except OSError as error:
        found("tasks-unreadable", f"It cannot be read: {error.strerror}.", file=LINES)
        return pairs
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            entry = json.loads(line)
            pairs.append((entry["task_index"], entry["task"]))
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            found("tasks-unreadable", f"Line {number} is no task: {error}.", file=LINES)
    return pairs


def _table(root: Path, found: Found) -> list[tuple[object, object]] | None:
    try:
        refuse_special(root / TABLE)
        with pq.ParquetFile(root / TABLE) as parquet:
            if parquet.metadata.num_rows > _MOST_TASKS:
                raise pa.ArrowInvalid(f"{parquet.metadata.num_rows} tasks")
            names = parquet.schema_arrow.names
            text = next((n for n in ("task", "__index_level_0__") if n in names), None)
            if text is None or "task_index" not in names:
                raise pa.ArrowInvalid(f"it has the columns {', '.join(names)[:80]}")
            table = parquet.read(columns=["task_index", text])
    except UNREADABLE as error:
        found("tasks-unreadable", f"It cannot be read: {first_line(error)}.", file=TABLE)
        return None
    indices, texts = table.column("task_index").to_pylist(), table.column(text).to_pylist()
    return list(zip(indices, texts, strict=True))
