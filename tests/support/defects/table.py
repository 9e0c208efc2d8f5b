"""Defects of the tables of rows."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from support.defects.registry import defect
from support.defects.tools import (
    DATA,
    EPISODES,
    add,
    cut_off,
    edit_column,
    edit_info,
    edit_json,
    edit_lines,
    edit_table,
    put,
)

_FIRST_V2 = "data/chunk-000/episode_000000.parquet"
_STATS = ("stats-differ", "episode-stats-differ")


@defect("table-missing", on="v3-files")
def table_missing(root: Path) -> None:
    (root / DATA).unlink()


@defect("table-missing", on="v2")
def table_of_an_episode_missing(root: Path) -> None:
    (root / _FIRST_V2).unlink()


@defect("table-empty", on="v3-files")
def table_of_no_bytes(root: Path) -> None:
    (root / DATA).write_bytes(b"")


@defect("table-unfinished", on="v3-files")
def table_without_footer(root: Path) -> None:
    cut_off(root / DATA, keep=0.7)


@defect("table-unfinished", on="v2")
def table_of_an_episode_without_footer(root: Path) -> None:
    cut_off(root / _FIRST_V2, keep=0.7)


@defect("table-damaged", on="v3-files")
def table_with_a_damaged_page(root: Path) -> None:
    """The first page's bytes are noise; the footer is whole."""
    data = bytearray((root / DATA).read_bytes())
    data[4:400] = bytes(np.random.default_rng(0).integers(0, 256, 396, np.uint8))
    (root / DATA).write_bytes(bytes(data))


@defect("table-damaged", on="v3-files")
def table_with_a_damaged_footer(root: Path) -> None:
    data = bytearray((root / DATA).read_bytes())
    data[-200:-8] = b"\xff" * 192
    (root / DATA).write_bytes(bytes(data))


@defect("table-orphan", on="v3-files")
def table_not_in_metadata(root: Path) -> None:
    table = pq.read_table(root / DATA)
    place = table.schema.get_field_index("episode_index")
    numbers = pa.array([77] * len(table), pa.int64())
    other = table.set_column(place, table.schema.field("episode_index"), numbers)
    pq.write_table(other, root / "data" / "chunk-000" / "file-009.parquet")


@defect("rows-missing")
def rows_cut_away(root: Path) -> None:
    edit_table(root / DATA, lambda table: table.slice(0, len(table) - 3))


@defect("rows-extra", also=("frame-index-jump", "index-jump", "timestamp-order"))
def rows_twice(root: Path) -> None:
    edit_table(root / DATA, lambda table: pa.concat_tables([table, table.slice(len(table) - 2)]))


@defect("rows-extra", on="v3-files")
def rows_twice_in_another_table(root: Path) -> None:
    shutil.copy(root / DATA, root / "data" / "chunk-000" / "file-009.parquet")


@defect("rows-orphan")
def rows_of_an_unknown_episode(root: Path) -> None:
    def more(table: pa.Table) -> pa.Table:
        last = table.slice(len(table) - 4)
        place = table.schema.get_field_index("episode_index")
        numbers = pa.array([9] * len(last), pa.int64())
        strange = last.set_column(place, table.schema.field("episode_index"), numbers)
        return pa.concat_tables([table, strange])

    edit_table(root / DATA, more)


@defect("rows-elsewhere", on="v3-files")
def rows_in_another_table(root: Path) -> None:
    edit_column(root / EPISODES, "data/file_index", put(1, 0))


@defect("rows-order")
def rows_backwards(root: Path) -> None:
    edit_table(root / DATA, lambda table: table.take(np.arange(len(table))[::-1]))


@defect("rows-order")
def episodes_swapped_in_their_table(root: Path) -> None:
    edit_table(root / DATA, lambda table: pa.concat_tables([table.slice(12), table.slice(0, 12)]))


@defect("feature-absent")
def column_missing(root: Path) -> None:
    edit_table(root / DATA, lambda table: table.drop_columns(["action"]))


@defect("feature-undeclared")
def column_not_declared(root: Path) -> None:
    edit_table(root / DATA, lambda table: table.append_column("force", table.column("timestamp")))


@defect("feature-dtype")
def column_of_text(root: Path) -> None:
    def text(table: pa.Table) -> pa.Table:
        place = table.schema.get_field_index("next.reward")
        return table.set_column(place, "next.reward", pa.array(["much"] * len(table)))

    edit_table(root / DATA, text)


@defect("feature-dtype", on="v2")
def floats_where_whole_numbers_were_declared(root: Path) -> None:
    edit_info(root, lambda info: info["features"]["next.reward"].update(dtype="int64"))


@defect("feature-shape", also=("stats-shape", "feature-names-count"))
def shape_declared_wider(root: Path) -> None:
    edit_info(root, lambda info: info["features"]["action"].update(shape=[7]))


@defect("value-missing")
def value_missing(root: Path) -> None:
    edit_column(root / DATA, "next.reward", put(5, None))


@defect("value-missing")
def text_missing(root: Path) -> None:
    edit_column(root / DATA, "note", put(5, None))


@defect("picture-missing", on="v3-images")
def image_missing(root: Path) -> None:
    edit_column(root / DATA, "observation.images.front", put(3, None))


@defect("not-a-number")
def nan_in_an_action(root: Path) -> None:
    edit_column(root / DATA, "action", lambda rows: put(1, float("nan"))(rows[20]))


@defect("infinite")
def infinite_state(root: Path) -> None:
    edit_column(root / DATA, "observation.state", lambda rows: put(1, float("inf"))(rows[20]))


@defect("constant-dimension", also=_STATS)
def joint_that_never_moves(root: Path) -> None:
    def freeze(rows: list[Any]) -> None:
        for row in rows:
            row[4] = 0.5

    edit_column(root / DATA, "action", freeze)


@defect("index-jump")
def index_jumps(root: Path) -> None:
    edit_column(root / DATA, "index", add(100, slice(20, None)))


@defect("frame-index-jump")
def frame_index_jumps(root: Path) -> None:
    edit_column(root / DATA, "frame_index", add(1, slice(15, 21)))


@defect("timestamp-order")
def timestamps_stand_still(root: Path) -> None:
    edit_column(root / DATA, "timestamp", lambda values: put(6, values[5])(values))


@defect("timestamp-off-grid")
def timestamps_late(root: Path) -> None:
    edit_column(root / DATA, "timestamp", add(0.01, slice(5, 12)))


@defect("timestamp-off-grid", "video-fps")
def recorded_at_another_rate(root: Path) -> None:
    edit_info(root, lambda info: info.update(fps=25))


@defect("task-index-unknown")
def rows_of_an_unknown_task(root: Path) -> None:
    edit_column(root / DATA, "task_index", put(3, 8))


@defect("outside-range", also=("episode-stats-differ",))
def value_outside_the_range(root: Path) -> None:
    edit_column(root / DATA, "observation.state", lambda rows: put(4, 50.0)(rows[20]))


@defect("stats-differ")
def mean_recorded_wrong(root: Path) -> None:
    edit_json(root / "meta/stats.json", lambda s: put(4, 0.9)(s["action"]["mean"]))


@defect("stats-differ")
def spread_recorded_wrong(root: Path) -> None:
    edit_json(root / "meta/stats.json", lambda s: put(4, 1e-3)(s["action"]["std"]))


@defect("episode-stats-differ")
def episode_mean_recorded_wrong(root: Path) -> None:
    edit_column(root / EPISODES, "stats/action/mean", lambda rows: put(4, 0.99)(rows[1]))


def _stored_as(key: str, changed: Callable[[pa.Array], pa.Array], path: Path) -> None:
    def change(table: pa.Table) -> pa.Table:
        at = table.schema.get_field_index(key)
        return table.set_column(at, key, changed(table.column(key).combine_chunks()))

    edit_table(path, change)


def _listed(array: pa.Array) -> pa.Array:
    return pa.array([[value] for value in array.to_pylist()], pa.list_(array.type))


@defect("feature-list")
def reward_as_a_list_of_one(root: Path) -> None:
    _stored_as("next.reward", _listed, root / DATA)


@defect("feature-list")
def flag_and_text_as_lists_of_one(root: Path) -> None:
    for key in ("next.done", "note"):
        _stored_as(key, _listed, root / DATA)


@defect("feature-flat")
def matrix_as_a_flat_list(root: Path) -> None:
    edit_info(root, lambda info: info["features"]["action"].update(shape=[2, 3], names=None))


@defect("column-stored-type")
def indices_that_pandas_made_floats(root: Path) -> None:
    for key in ("index", "episode_index", "frame_index", "task_index"):
        _stored_as(key, lambda array: array.cast(pa.float64()), root / DATA)


@defect("column-stored-type", on="v2")
def floats_of_numpy(root: Path) -> None:
    for path in root.glob("data/*/*.parquet"):
        _stored_as("action", lambda array: array.cast(pa.list_(pa.float64(), 6)), path)


@defect("feature-unused", on="v2")
def column_of_another_tool(root: Path) -> None:
    for path in root.glob("data/*/*.parquet"):
        edit_table(path, lambda table: table.append_column("extra", table["index"]))


@defect("episode-task-differs")
def rows_that_all_do_the_first_task(root: Path) -> None:
    edit_column(root / DATA, "task_index", lambda values: values.__setitem__(slice(None), [0] * 36))


@defect("episode-task-differs", on="v2")
def episodes_listed_with_the_next_task(root: Path) -> None:
    def swap(lines: list[dict[str, Any]]) -> None:
        lines[0]["tasks"], lines[1]["tasks"] = lines[1]["tasks"], lines[0]["tasks"]

    edit_lines(root / "meta/episodes.jsonl", swap)


@defect("stats-quantiles", on="v3-moves")
def quantiles_of_half_the_range(root: Path) -> None:
    def halve(stats: dict[str, Any]) -> None:
        action = stats["action"]
        action["q01"][2] = (action["min"][2] + action["max"][2]) / 2

    edit_json(root / "meta/stats.json", halve)


@defect("episodes-unlisted", on="v2")
def table_of_an_episode_copied_in(root: Path) -> None:
    shutil.copy(root / _FIRST_V2, root / "data/chunk-000/episode_000077.parquet")
