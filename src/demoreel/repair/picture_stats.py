"""What metadata say of pictures, as far as they can be read: to tell anew costs a decode."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from demoreel.storage.arrow import UNREADABLE
from demoreel.storage.local import refuse_special


def read_picture_stats(root: Path, cameras: Sequence[str], *, is_v2: bool) -> pa.Table | None:
    """Return a row for each episode that metadata can be read of: what they say of its pictures."""
    if is_v2:
        return _of_lines(root / "meta" / "episodes_stats.jsonl", cameras)
    wanted = tuple(f"stats/{key}/" for key in cameras)
    parts = []
    for path in sorted((root / "meta" / "episodes").glob("*/*.parquet")):
        try:
            refuse_special(path)
            with pq.ParquetFile(path) as parquet:
                if "episode_index" not in parquet.schema_arrow.names:
                    continue
                names = [n for n in parquet.schema_arrow.names if n.startswith(wanted)]
                parts.append(parquet.read(columns=["episode_index", *names]))
        except (KeyError, *UNREADABLE):
            continue
    try:
        return pa.concat_tables(parts) if parts and wanted else None
    except pa.ArrowException:
        return None


def _of_lines(path: Path, cameras: Sequence[str]) -> pa.Table | None:
    rows: list[dict[str, Any]] = []
    try:
        refuse_special(path)
        lines = path.read_text().splitlines()
    except (OSError, UnicodeDecodeError):
        return None
    for line in lines:
        try:
            entry = json.loads(line)
            row = {"episode_index": int(entry["episode_index"])}
            for key in cameras:
                kinds = entry["stats"].get(key) or {}
                row |= {f"stats/{key}/{kind}": value for kind, value in kinds.items()}
            rows.append(row)
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            continue
    try:
        return pa.Table.from_pylist(rows) if rows else None
    except (pa.ArrowException, TypeError, OverflowError):
        return None
