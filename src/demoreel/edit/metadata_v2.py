"""``meta/`` of a result that is v2.1: JSON lines, statistics by episode."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from demoreel.edit.plan import Plan
from demoreel.edit.statistics.result import PictureStats
from demoreel.layouts.writing import write_json_lines
from demoreel.model import Info


def write_v2(
    plan: Plan,
    facts: pa.Table,
    pictures: Mapping[str, PictureStats],
    extra: Mapping[str, Any],
    tasks: Mapping[str, int],
    meta: Path,
) -> None:
    """Write ``episodes.jsonl``, ``episodes_stats.jsonl`` and ``tasks.jsonl``.

    Args:
        plan: The plan.
        facts: What rows tell of each episode: tasks and statistics.
        pictures: What is known of each camera's pictures.
        extra: Other programs' columns.
        tasks: The number of each text.
        meta: The folder to write to.
    """
    numbers = [{"task_index": number, "task": text} for text, number in tasks.items()]
    write_json_lines(meta / "tasks.jsonl", numbers)
    texts = facts.column("tasks").to_pylist()
    others = {name: column.to_pylist() for name, column in extra.items()}
    lengths = (plan.start[1:] - plan.start[:-1]).tolist()
    episodes = [
        {
            "episode_index": number,
            "tasks": texts[number],
            "length": length,
            **{name: values[number] for name, values in others.items()},
        }
        for number, length in enumerate(lengths)
    ]
    write_json_lines(meta / "episodes.jsonl", episodes)
    write_json_lines(meta / "episodes_stats.jsonl", _stats(plan, facts, pictures))


def _stats(
    plan: Plan, facts: pa.Table, pictures: Mapping[str, PictureStats]
) -> list[dict[str, Any]]:
    columns = {name: facts.column(name).to_pylist() for name in facts.column_names}
    for found in pictures.values():
        columns |= {name: column.to_pylist() for name, column in found.columns.items()}
    lines = []
    for number in range(len(plan.clips)):
        stats: dict[str, dict[str, Any]] = {}
        for name, values in columns.items():
            if name.startswith("stats/"):
                key, kind = name.removeprefix("stats/").rsplit("/", 1)
                stats.setdefault(key, {})[kind] = values[number]
        lines.append({"episode_index": number, "stats": stats})
    return lines


def with_v2_totals(info: Info) -> Info:
    """Return the info with the totals that only v2 has; v3.0's as it is."""
    if not info.version.startswith("v2"):
        return info
    totals = {
        "total_videos": info.total_episodes * len(info.video_keys),
        "total_chunks": -(-info.total_episodes // info.chunks_size),
    }
    return replace(info, extra={**info.extra, **totals})
