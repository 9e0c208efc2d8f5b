"""Defects of ``meta/``."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import demoreel
from demoreel.model.stats import stats_to_json
from support.defects.registry import defect
from support.defects.tools import (
    EPISODES,
    TASKS,
    add,
    cut_off,
    edit_column,
    edit_info,
    edit_json,
    edit_lines,
    edit_table,
    lfs_pointer,
    put,
)
from support.persisted import leave_persisted

INFO, STATS = "meta/info.json", "meta/stats.json"
_FRONT = "observation.images.front"


@defect("info-missing")
def no_info(root: Path) -> None:
    (root / INFO).unlink()


@defect("info-unreadable")
def info_cut_off(root: Path) -> None:
    cut_off(root / INFO, keep=0.5)


@defect("info-unreadable")
def info_is_a_list(root: Path) -> None:
    (root / INFO).write_text("[1, 2]")


@defect("info-field-wrong")
def fps_is_text(root: Path) -> None:
    edit_info(root, lambda info: info.update(fps="thirty"))


@defect("info-field-wrong")
def negative_total(root: Path) -> None:
    edit_info(root, lambda info: info.update(total_frames=-1))


@defect("info-field-wrong")
def no_features(root: Path) -> None:
    edit_info(root, lambda info: info.pop("features"))


@defect("info-field-wrong")
def no_version(root: Path) -> None:
    edit_info(root, lambda info: info.pop("codebase_version"))


@defect("info-key-twice")
def key_twice(root: Path) -> None:
    text = (root / INFO).read_text()
    (root / INFO).write_text('{"robot_type": "another",' + text.lstrip()[1:])


@defect("version-unknown")
def version_of_the_future(root: Path) -> None:
    edit_info(root, lambda info: info.update(codebase_version="v9.0"))


@defect("version-mismatch")
def v3_that_says_v2(root: Path) -> None:
    edit_info(root, lambda info: info.update(codebase_version="v2.1"))


@defect("version-mismatch", on="v2")
def v2_that_says_v3(root: Path) -> None:
    edit_info(root, lambda info: info.update(codebase_version="v3.0"))


@defect("storage-unknown")
def storage_of_the_future(root: Path) -> None:
    edit_info(root, lambda info: info.update(storage_format="tape"))


@defect("template-unsafe")
def template_climbs(root: Path) -> None:
    edit_info(root, lambda info: info.update(data_path="../{chunk_index}/{file_index}.parquet"))


@defect("template-unsafe")
def template_is_absolute(root: Path) -> None:
    edit_info(root, lambda info: info.update(video_path="/{video_key}/{file_index}.mp4"))


@defect("template-unsafe")
def template_reads_attributes(root: Path) -> None:
    trick = "data/{chunk_index.__class__}/{file_index}.parquet"
    edit_info(root, lambda info: info.update(data_path=trick))


@defect("template-wrong")
def template_with_a_field_of_another_version(root: Path) -> None:
    usual = "data/chunk-{episode_chunk:03d}/file-{file_index:03d}.parquet"
    edit_info(root, lambda info: info.update(data_path=usual))


@defect("template-wrong", on="v2")
def template_without_its_last_brace(root: Path) -> None:
    edit_info(root, lambda info: info.update(data_path="data/episode_{episode_index:06d.parquet"))


@defect("file-not-fetched")
def clone_without_lfs(root: Path) -> None:
    for path in (*root.rglob("*.parquet"), *root.rglob("*.mp4")):
        lfs_pointer(path)


@defect("file-not-fetched")
def clone_without_any_large_file(root: Path) -> None:
    for path in root.rglob("*"):
        if path.is_file():
            lfs_pointer(path)


@defect("file-not-fetched", on="v2")
def clone_without_metadata_lines(root: Path) -> None:
    for path in root.rglob("*.jsonl"):
        lfs_pointer(path)


@defect("file-not-fetched", on="v2")
def clone_without_videos(root: Path) -> None:
    for path in root.rglob("*.mp4"):
        lfs_pointer(path)


@defect("tasks-not-index")
def tasks_by_line(root: Path) -> None:
    edit_table(root / TASKS, lambda table: table.replace_schema_metadata(None))


@defect("column-stored-type")
def task_indices_of_pandas(root: Path) -> None:
    def to_double(table: pa.Table) -> pa.Table:
        at = table.schema.get_field_index("task_index")
        return table.set_column(at, "task_index", table["task_index"].cast(pa.float64()))

    edit_table(root / TASKS, to_double)


@defect("episodes-range-missing")
def episodes_without_ranges(root: Path) -> None:
    edit_table(root / EPISODES, lambda table: table.drop_columns(["dataset_from_index"]))


@defect("episodes-place-missing")
def episodes_that_do_not_say_where_they_are_listed(root: Path) -> None:
    names = ["meta/episodes/chunk_index", "meta/episodes/file_index"]
    edit_table(root / EPISODES, lambda table: table.drop_columns(names))


@defect("total-missing")
def no_total_of_frames(root: Path) -> None:
    edit_info(root, lambda info: info.pop("total_frames"))


@defect("total-missing", on="v2")
def totals_of_nothing(root: Path) -> None:
    edit_info(root, lambda info: info.update(total_episodes=None, total_tasks=None))


@defect("total-videos", on="v2")
def no_total_of_chunks(root: Path) -> None:
    edit_info(root, lambda info: info.pop("total_chunks"))


@defect("stats-camera-missing", on="v2")
def statistics_without_cameras(root: Path) -> None:
    def without(lines: list[dict[str, Any]]) -> None:
        for line in lines:
            del line["stats"][_FRONT]

    edit_lines(root / "meta" / "episodes_stats.jsonl", without)


@defect("metadata-stray")
def lines_of_the_version_before(root: Path) -> None:
    (root / "meta" / "episodes.jsonl").write_text('{"episode_index": 0, "length": 3}\n')
    (root / "meta" / "tasks.jsonl").write_text('{"task_index": 0, "task": "another"}\n')


@defect("metadata-stray", on="v2")
def tables_of_the_next_version(root: Path) -> None:
    folder = root / "meta" / "episodes" / "chunk-000"
    folder.mkdir(parents=True)
    pq.write_table(pa.table({"episode_index": [0]}), folder / "file-000.parquet")


@defect("episode-stats-absent", on="v2")
def statistics_of_the_whole_only(root: Path) -> None:
    stats = dict(demoreel.open(root).stats or {})
    (root / "meta" / "episodes_stats.jsonl").unlink()
    (root / "meta" / "stats.json").write_text(json.dumps(stats_to_json(stats)))


@defect("template-mismatch")
def videos_under_another_name(root: Path) -> None:
    (root / "videos").rename(root / "video")


@defect("template-mismatch", on="v2")
def tables_in_another_folder(root: Path) -> None:
    (root / "data" / "chunk-000").rename(root / "data" / "chunk_0")


@defect("feature-unreadable", also=("feature-undeclared",))
def feature_without_dtype(root: Path) -> None:
    edit_info(root, lambda info: info["features"]["next.reward"].pop("dtype"))


@defect("limit-exceeded", also=("feature-undeclared",))
def feature_larger_than_memory(root: Path) -> None:
    huge = [1 << 20, 1 << 20]
    edit_info(root, lambda info: info["features"]["action"].update(shape=huge))


@defect("feature-default-missing", also=("feature-undeclared",))
def timestamp_not_declared(root: Path) -> None:
    edit_info(root, lambda info: info["features"].pop("timestamp"))


@defect("feature-default-type")
def timestamp_declared_as_text(root: Path) -> None:
    edit_info(root, lambda info: info["features"]["timestamp"].update(dtype="string"))


@defect("feature-names-count")
def names_too_few(root: Path) -> None:
    edit_info(root, lambda info: info["features"]["action"]["names"].pop())


@defect("feature-names-twice")
def name_twice(root: Path) -> None:
    edit_info(root, lambda info: put(0, "joint_1")(info["features"]["action"]["names"]))


@defect("feature-clash", also=("feature-absent", "stats-feature-missing"))
def names_that_clash(root: Path) -> None:
    reward = {"dtype": "float32", "shape": [1], "names": None}
    edit_info(root, lambda info: info["features"].update(next_reward=reward))


@defect("camera-declared-twice")
def camera_declared_twice(root: Path) -> None:
    edit_info(root, lambda info: info["features"][_FRONT]["info"].update({"video.height": 480}))


@defect("tasks-missing")
def no_tasks(root: Path) -> None:
    (root / TASKS).unlink()


@defect("tasks-unreadable")
def tasks_cut_off(root: Path) -> None:
    cut_off(root / TASKS, keep=0.5)


@defect(
    "tasks-unreadable",
    on="v2",
    also=("total-tasks", "task-index-unknown", "episode-task-unknown"),
)
def task_line_broken(root: Path) -> None:
    path = root / "meta" / "tasks.jsonl"
    lines = path.read_text().splitlines()
    path.write_text(lines[0] + "\n{broken\n")


@defect("task-twice", also=("task-order", "task-index-unknown"))
def task_index_twice(root: Path) -> None:
    edit_column(root / TASKS, "task_index", put(1, 0))


@defect("task-order")
def tasks_swapped(root: Path) -> None:
    edit_table(root / TASKS, lambda table: table.take([1, 0]))


@defect("task-empty", also=("episode-task-unknown",))
def task_without_text(root: Path) -> None:
    edit_column(root / TASKS, "task", put(1, " "))


@defect("task-unused", also=("total-tasks",))
def task_without_rows(root: Path) -> None:
    def more(table: pa.Table) -> pa.Table:
        extra = pa.table({"task_index": [2], "task": ["dance"]}, schema=table.schema)
        return pa.concat_tables([table, extra])

    edit_table(root / TASKS, more)


@defect("episode-task-unknown")
def episode_names_another_task(root: Path) -> None:
    edit_column(root / EPISODES, "tasks", put(0, ["dance"]))


@defect("episodes-missing")
def no_episodes(root: Path) -> None:
    shutil.rmtree(root / "meta" / "episodes")


@defect("episodes-unreadable")
def episodes_cut_off(root: Path) -> None:
    cut_off(root / EPISODES, keep=0.6)


@defect("episodes-unreadable", on="v2")
def episode_line_broken(root: Path) -> None:
    path = root / "meta" / "episodes.jsonl"
    lines = path.read_text().splitlines()
    path.write_text("\n".join([*lines[:-1], lines[-1][:20]]))


@defect("episodes-column-missing")
def episodes_lack_a_column(root: Path) -> None:
    column = f"videos/{_FRONT}/from_timestamp"
    edit_table(root / EPISODES, lambda table: table.drop_columns([column]))


@defect("episodes-value-missing", also=("total-frames",))
def length_missing(root: Path) -> None:
    edit_column(root / EPISODES, "length", put(1, None))


@defect("episodes-empty")
def nothing_recorded(root: Path) -> None:
    shutil.rmtree(root / "meta" / "episodes")
    edit_info(root, lambda info: info.update(total_episodes=0, total_frames=0))


@defect("episode-twice")
def episode_index_twice(root: Path) -> None:
    edit_column(root / EPISODES, "episode_index", put(2, 1))


@defect("episode-gap", also=("rows-orphan", "rows-missing"))
def episode_index_skipped(root: Path) -> None:
    edit_column(root / EPISODES, "episode_index", put(2, 7))


@defect("episode-order")
def episodes_listed_backwards(root: Path) -> None:
    edit_table(root / EPISODES, lambda table: table.take([2, 1, 0]))


@defect("episode-length", also=("total-frames",))
def length_is_negative(root: Path) -> None:
    edit_column(root / EPISODES, "length", put(1, -9))


@defect("episodes-file-index")
def episodes_in_another_file(root: Path) -> None:
    edit_column(root / EPISODES, "meta/episodes/file_index", put(0, 3))


@defect("range-length", also=("range-gap",))
def range_too_long(root: Path) -> None:
    edit_column(root / EPISODES, "dataset_to_index", add(4, slice(1, 2)))


@defect("range-gap")
def ranges_shifted(root: Path) -> None:
    for name in ("dataset_from_index", "dataset_to_index"):
        edit_column(root / EPISODES, name, add(5, slice(1, None)))


@defect("total-episodes")
def too_many_episodes_counted(root: Path) -> None:
    edit_info(root, lambda info: info.update(total_episodes=9))


@defect("total-frames")
def too_many_frames_counted(root: Path) -> None:
    edit_info(root, lambda info: info.update(total_frames=99))


@defect("total-tasks")
def too_many_tasks_counted(root: Path) -> None:
    edit_info(root, lambda info: info.update(total_tasks=7))


@defect("total-videos", on="v2")
def too_many_videos_counted(root: Path) -> None:
    edit_info(root, lambda info: info.update(total_videos=99))


@defect("split-unreadable")
def split_is_a_share(root: Path) -> None:
    edit_info(root, lambda info: info.update(splits={"train": "80%"}))


@defect("split-overlap")
def splits_overlap(root: Path) -> None:
    edit_info(root, lambda info: info.update(splits={"train": "0:3", "val": "2:3"}))


@defect("split-past-end")
def split_past_the_end(root: Path) -> None:
    edit_info(root, lambda info: info.update(splits={"train": "0:12"}))


@defect("split-left-out")
def split_leaves_one_out(root: Path) -> None:
    edit_info(root, lambda info: info.update(splits={"train": "0:2"}))


@defect("stats-missing")
def no_stats(root: Path) -> None:
    (root / STATS).unlink()


@defect("stats-unreadable")
def stats_cut_off(root: Path) -> None:
    cut_off(root / STATS, keep=0.7)


@defect("stats-unreadable", also=("stats-feature-missing",))
def stats_hold_text(root: Path) -> None:
    edit_json(root / STATS, lambda stats: stats["action"].update(mean=["a lot"]))


@defect("stats-feature-missing")
def feature_without_stats(root: Path) -> None:
    edit_json(root / STATS, lambda stats: stats.pop("observation.state"))


@defect("stats-shape")
def stats_too_short(root: Path) -> None:
    edit_json(root / STATS, lambda stats: stats["action"]["std"].pop())


@defect("stats-pixels")
def images_counted_to_255(root: Path) -> None:
    def enlarge(stats: dict[str, Any]) -> None:
        for kind in ("min", "max", "mean", "std"):
            values = stats["observation.images.front"][kind]
            stats["observation.images.front"][kind] = (255 * np.array(values)).tolist()

    edit_json(root / "meta/stats.json", enlarge)


@defect("stats-impossible", also=("stats-differ",))
def stats_with_nan(root: Path) -> None:
    edit_json(root / STATS, lambda stats: put(0, float("nan"))(stats["action"]["mean"]))


@defect("stats-impossible", also=("outside-range",))
def stats_upside_down(root: Path) -> None:
    def swap(stats: dict[str, dict[str, object]]) -> None:
        action = stats["action"]
        action["min"], action["max"] = action["max"], action["min"]

    edit_json(root / STATS, swap)


@defect("stats-count")
def stats_of_other_frames(root: Path) -> None:
    edit_json(root / STATS, lambda stats: stats["action"].update(count=[7]))


@defect("episode-stats-missing", on="v2", also=("stats-count", "stats-differ", "outside-range"))
def episode_without_stats(root: Path) -> None:
    edit_lines(root / "meta" / "episodes_stats.jsonl", lambda lines: lines.pop())


@defect("commit-pending")
def commit_interrupted(root: Path) -> None:
    (root / ".demoreel").mkdir()
    (root / ".demoreel" / "journal.json").write_text("{}")


@defect("episodes-waiting")
def episodes_wait_for_their_encoders(root: Path) -> None:
    leave_persisted(root)


@defect("episode-waiting-damaged")
def waiting_episode_damaged(root: Path) -> None:
    folder = root / ".demoreel" / "encoding" / "episode-3"
    folder.mkdir(parents=True)
    (folder / "sealed.json").write_text("{}")


@defect("link-outside")
def file_is_a_link(root: Path) -> None:
    away = root.with_name(f"{root.name}-stats.json")
    (root / STATS).rename(away)
    (root / STATS).symlink_to(away)


@defect("files-left-over")
def images_left_over(root: Path) -> None:
    folder = root / "images" / _FRONT / "episode_000003"
    folder.mkdir(parents=True)
    (folder / "frame_000000.png").write_bytes(b"\x89PNG")


@defect("files-of-macos")
def copied_from_a_mac(root: Path) -> None:
    for path in [path for path in root.rglob("*") if path.is_file()]:
        (path.parent / f"._{path.name}").write_bytes(b"\0\5\26\7" + bytes(60))


@defect("range-gap", "range-length")
def ranges_scrambled(root: Path) -> None:
    """As an old converter wrote them: every range is that of another episode."""
    table = pq.read_table(root / EPISODES)
    for name in ("dataset_from_index", "dataset_to_index"):
        values = np.roll(np.array(table.column(name)), 1)
        place = table.schema.get_field_index(name)
        table = table.set_column(place, table.schema.field(name), pa.array(values))
    pq.write_table(table, root / EPISODES)


@defect("info-unreadable")
def info_nested_without_end(root: Path) -> None:
    (root / INFO).write_text("[" * 100_000)


@defect("info-field-wrong")
def count_is_a_float(root: Path) -> None:
    text = json.loads((root / INFO).read_text())
    text["total_episodes"] = 3.5
    (root / INFO).write_text(json.dumps(text))
