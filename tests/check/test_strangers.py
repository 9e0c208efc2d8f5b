"""Datasets as other tools and scripts write them: what is harmless is not found, the rest is."""

from __future__ import annotations

import io
import json
import re
import shlex
import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

import demoreel
from demoreel.testing import make_dataset
from support.command import run_here
from support.defects.tools import (
    DATA,
    EPISODES,
    edit_column,
    edit_info,
    edit_json,
    edit_lines,
    edit_table,
    lfs_pointer,
)
from support.moving import make_moving

STATS, EACH = "meta/stats.json", "meta/episodes_stats.jsonl"
VECTOR = {"observation.arm": {"dtype": "float32", "shape": [2]}}


def alarms(report):
    return {group.code.name for group in report.groups() if group.code.severity != "hint"}


# Statistics


def with_constant(path, value, *, length=400, layout="v3.0", of_rows=None):
    """Make a dataset with a vector that is always the same, and let its statistics be of it."""
    root = make_dataset(
        path, episodes=[length] * 2, cameras=0, layout=layout, features=VECTOR, with_stats=False
    )
    rows = np.full((length, 2), value, np.float32)
    for table in sorted(root.glob("data/**/*.parquet")):
        edit_column(
            table,
            "observation.arm",
            lambda old: old.__setitem__(slice(None), [rows[0].tolist()] * len(old)),
        )
    stats = of_rows(rows) if of_rows else summed_in_single_precision(rows)
    (root / STATS).write_text(json.dumps({"observation.arm": stats}))
    return root


def summed_in_single_precision(rows):
    """As tools do it that add up row by row, without a thought of what is lost."""
    total = squares = np.zeros(2, np.float32)
    for row in rows:
        total, squares = total + row, squares + row**2
    mean = total / np.float32(len(rows))
    spread = np.sqrt(np.maximum(0, squares / np.float32(len(rows)) - mean**2))
    return {
        "min": rows.min(axis=0).tolist(),
        "max": rows.max(axis=0).tolist(),
        "mean": mean.tolist(),
        "std": spread.tolist(),
    }


@pytest.mark.parametrize("layout", ["v2.0", "v3.0"])
@pytest.mark.parametrize("value", [-0.1, 0.05, 1.7, 93.3])
def test_statistics_that_are_off_by_rounding(value, layout, tmp_path):
    root = with_constant(tmp_path / "ds", value, layout=layout)
    report = demoreel.check(root)
    assert not alarms(report) - {"stats-feature-missing"}, str(report)


@pytest.mark.parametrize(
    "changed",
    [
        {"min": [-0.1, -0.1], "max": [-0.0999998, -0.0999998]},
        {"mean": [-0.1 + 1e-7, -0.1 - 1e-7]},
        {"min": [-0.0999999] * 2, "max": [-0.1000001] * 2},
        {"std": [3e-5, 0.0]},
    ],
)
def test_the_last_digits_of_a_constant(changed, tmp_path):
    root = with_constant(tmp_path / "ds", -0.1)
    edit_json(root / STATS, lambda stats: stats["observation.arm"].update(changed))
    report = demoreel.check(root)
    assert not alarms(report) - {"stats-feature-missing"}, str(report)


@pytest.mark.parametrize("name", ["g1_v21", "g1_v30", "kitchen_v30"])
@pytest.mark.parametrize("digits", [4, 6])
def test_statistics_of_few_digits(name, digits, fixtures, tmp_path):
    root = Path(shutil.copytree(fixtures / name, tmp_path / name))
    number = re.compile(r"-?\d+\.\d+(e-?\d+)?")
    for path in (root / STATS, root / EACH):
        if path.exists():
            shorter = number.sub(lambda m: str(round(float(m[0]), digits)), path.read_text())
            path.write_text(shorter)
    report = demoreel.check(root)
    assert not alarms(report), str(report)


@pytest.mark.parametrize(
    ("changed", "code"),
    [
        ({"mean": [-0.1, -0.11]}, "stats-impossible"),
        ({"min": [-0.05, -0.1]}, "stats-impossible"),
        ({"min": [-0.11, -0.11]}, "stats-differ"),
        ({"std": [0.5, 0.0]}, "stats-differ"),
        ({"mean": [float("nan"), -0.1]}, "stats-impossible"),
    ],
)
def test_statistics_of_a_constant_that_are_wrong(changed, code, tmp_path):
    root = with_constant(tmp_path / "ds", -0.1)
    edit_json(root / STATS, lambda stats: stats["observation.arm"].update(changed))
    assert code in demoreel.check(root).counts


def test_spread_of_few_rows_by_one_less(tmp_path):
    root = make_dataset(tmp_path / "ds", episodes=[5, 6], cameras=0, layout="v2.0")

    def enlarge(stats):
        for kinds in stats.values():
            kinds["std"] = (np.array(kinds["std"]) * np.sqrt(11 / 10)).tolist()

    edit_json(root / STATS, enlarge)
    assert not alarms(demoreel.check(root))


def test_a_float16_feature_has_its_own_rounding(tmp_path):
    features = {"observation.half": {"dtype": "float16", "shape": [1]}}
    root = make_dataset(tmp_path / "ds", episodes=[20], cameras=0, features=features)
    kinds = json.loads((root / STATS).read_text())["observation.half"]
    low, high = kinds["min"][0], kinds["max"][0]
    kinds |= {"min": [low * (1 + 2**-8)], "max": [high * (1 + 2**-8)]}
    edit_json(root / STATS, lambda stats: stats.update({"observation.half": kinds}))
    report = demoreel.check(root)
    assert not alarms(report), str(report)


@pytest.mark.parametrize("count", [20 * 64 * 64, 20 * 150 * 112, 13])
def test_counts_of_images_may_be_of_pixels_or_of_samples(count, tmp_path):
    root = make_dataset(tmp_path / "ds", episodes=[20, 20], cameras=1)
    key = "observation.images.cam0"
    edit_json(root / STATS, lambda stats: stats[key].update(count=[count]))
    assert not alarms(demoreel.check(root))


def test_counts_of_images_that_are_of_other_data(tmp_path):
    root = make_dataset(tmp_path / "ds", episodes=[20, 20], cameras=1)
    key = "observation.images.cam0"
    edit_json(root / STATS, lambda stats: stats[key].update(count=[80]))
    assert "stats-count" in demoreel.check(root).counts


@pytest.mark.parametrize("layout", ["v2.0", "v2.1", "v3.0"])
def test_statistics_of_pixels_up_to_255(layout, tmp_path):
    root = make_dataset(tmp_path / "ds", episodes=[6, 5], cameras=1, layout=layout)

    def enlarge(stats):
        kinds = stats["observation.images.cam0"]
        for kind in ("min", "max", "mean", "std"):
            kinds[kind] = (255 * np.array(kinds[kind])).tolist()

    if layout == "v2.1":
        edit_lines(root / EACH, lambda lines: [enlarge(line["stats"]) for line in lines])
    else:
        edit_json(root / STATS, enlarge)
    [finding] = demoreel.check(root).of("stats-pixels")
    assert run_here(*shlex.split(finding.command)[1:]).returncode == 0
    assert not alarms(demoreel.check(root))


def test_statistics_of_v21_without_counts(tmp_path):
    root = make_dataset(tmp_path / "ds", episodes=[20, 10], layout="v2.1", cameras=1)
    whole = demoreel.open(root).stats

    def without(lines):
        for line in lines:
            for kinds in line["stats"].values():
                del kinds["count"]

    edit_lines(root / EACH, without)
    assert not alarms(demoreel.check(root))
    found = demoreel.open(root).stats
    for kind in ("min", "max", "mean", "std"):
        assert np.array_equal(found["action"][kind], whole["action"][kind])


def test_quantiles_that_few_rows_are_off_from_are_right(tmp_path):
    """A switch is at 0 or 1: between them, any median is one."""

    def switch(episode, columns):
        columns["action"][:, 3] = np.arange(len(columns["action"])) % 2
        return columns

    root = make_moving(tmp_path / "ds", change=switch)

    def between(stats):
        for name, value in (("q50", 0.37), ("q10", 0.02)):
            stats["action"][name][3] = value

    edit_json(root / STATS, between)
    assert set(demoreel.check(root).counts) <= {"constant-dimension"}


@pytest.mark.parametrize(("name", "share"), [("q01", 0.6), ("q99", 0.4), ("q99", 1.5)])
def test_quantiles_that_are_far_off(name, share, tmp_path):
    root = make_moving(tmp_path / "ds")

    def move(stats):
        low, high = stats["action"]["min"][1], stats["action"]["max"][1]
        stats["action"][name][1] = low + share * (high - low)

    edit_json(root / STATS, move)
    [finding] = demoreel.check(root).of("stats-quantiles")
    assert f"{name} of dimension 1 of action" in finding.what
    assert "1 of 6 dimensions" in finding.what
    assert finding.command == f"demoreel stats {root} --recompute --no-pictures"


# Declarations


@pytest.mark.parametrize("names", [["state"], {"motors": ["state"]}, None, [], ["state", "x"]])
def test_a_vector_may_be_called_by_one_name(names, tmp_path):
    root = make_dataset(tmp_path / "ds", episodes=[5], cameras=0)
    edit_info(root, lambda info: info["features"]["observation.state"].update(names=names))
    found = demoreel.check(root).counts
    assert ("feature-names-count" in found) == (names == ["state", "x"])


def test_modalities_and_remarks_beside_the_metadata(tmp_path):
    """As GR00T has them: tasks that are remarks, a file of modalities, statistics of the whole."""
    root = make_dataset(tmp_path / "ds", episodes=[9, 8], layout="v2.0", cameras=1)
    (root / "meta" / "modality.json").write_text('{"state": {"arm": {"start": 0, "end": 6}}}')
    with (root / "meta" / "tasks.jsonl").open("a") as file:
        file.write('{"task_index": 1, "task": "valid"}\n')
    edit_lines(
        root / "meta/episodes.jsonl", lambda lines: [x["tasks"].append("valid") for x in lines]
    )
    edit_info(root, lambda info: info.update(total_tasks=2))
    report = demoreel.check(root)
    assert not alarms(report), str(report)
    assert "task-unused" not in report.counts


def test_tasks_of_v2_in_any_order(tmp_path):
    root = make_dataset(tmp_path / "ds", episodes=[3, 3], layout="v2.1", tasks=("a", "b"))
    edit_lines(root / "meta/tasks.jsonl", lambda lines: lines.reverse())
    assert not alarms(demoreel.check(root))


def test_images_that_are_all_the_same(tmp_path):
    """A table keeps one of them, and is small."""
    cameras = {"observation.images.top": (16, 16)}
    root = make_dataset(tmp_path / "ds", episodes=[60], cameras=0, image_cameras=cameras)
    edit_column(
        root / DATA,
        "observation.images.top",
        lambda images: images.__setitem__(slice(None), [images[0]] * len(images)),
    )
    assert "picture-missing" not in demoreel.check(root).counts


# Tasks


def test_says_which_task_the_rows_name(tmp_path):
    root = make_dataset(tmp_path / "ds", episodes=[4] * 5, cameras=0, tasks=("pick", "place"))
    edit_column(root / DATA, "task_index", lambda v: v.__setitem__(slice(None), [0] * len(v)))
    report = demoreel.check(root)
    assert [f.where.episode for f in report.of("episode-task-differs")] == [1, 3]
    assert report.of("episode-task-differs")[0].what == (
        "Its rows are of 'pick'; the metadata say 'place'."
    )
    assert "task-unused" not in report.counts
    assert "(2 of 5 episodes: 1, 3)" in str(report)


def test_tasks_that_change_within_episodes_are_right(tmp_path):
    root = make_dataset(
        tmp_path / "ds", episodes=[6, 6], cameras=0, tasks=("a", "b", "c"), task_changes=True
    )
    assert not alarms(demoreel.check(root))
    lists = pq.read_table(root / EPISODES).column("tasks").to_pylist()
    edit_column(root / EPISODES, "tasks", lambda rows: rows.__setitem__(0, lists[0][:1]))
    assert set(demoreel.check(root).counts) >= {"episode-task-differs"}


# Findings are counted by episode or file, not by frame


def test_frames_without_a_task_are_one_finding_an_episode(tmp_path):
    root = make_dataset(tmp_path / "ds", episodes=[200, 148, 10], cameras=0)

    def unknown(values):
        values[:348] = [7] * 348

    edit_column(root / DATA, "task_index", unknown)
    report = demoreel.check(root)
    assert report.counts["task-index-unknown"] == 2
    assert "200 of its rows" in report.of("task-index-unknown")[0].what
    assert "348" not in str(report)
    assert "(2 of 3 episodes: 0-1)" in str(report)


def test_columns_of_many_tables_are_one_finding(tmp_path):
    root = make_dataset(tmp_path / "ds", episodes=[3] * 9, cameras=0, layout="v2.1")
    for path in root.glob("data/*/*.parquet"):
        edit_table(path, lambda table: table.drop_columns(["action"]))
    [finding] = demoreel.check(root).of("feature-absent")
    assert "The same in 9 tables." in finding.what


def test_images_larger_than_a_limit_are_told_as_such(tmp_path, monkeypatch):
    cameras = {"observation.images.top": (16, 16)}
    root = make_dataset(tmp_path / "ds", episodes=[6], cameras=0, image_cameras=cameras)
    file = io.BytesIO()
    Image.new("RGB", (200, 200)).save(file, "png")
    larger = {"bytes": file.getvalue(), "path": "x.png"}
    edit_column(
        root / DATA, "observation.images.top", lambda v: v.__setitem__(slice(None), [larger] * 6)
    )
    monkeypatch.setenv("DEMOREEL_LIMIT_IMAGE_PIXELS", "10000")
    report = demoreel.check(root, deep=True)
    [finding] = report.of("limit-exceeded")
    assert "6 frames are lost" in finding.what
    assert "picture-undecodable" not in report.counts


# What is not here


def test_what_git_lfs_did_not_fetch_is_one_finding(tmp_path):
    root = make_dataset(tmp_path / "ds", episodes=[4] * 7, cameras=2, layout="v2.1")
    for path in (*root.rglob("*.mp4"), *root.rglob("*.parquet")):
        lfs_pointer(path)
    report = demoreel.check(root)
    assert set(report.counts) == {"file-not-fetched"}
    [finding] = report.findings
    assert "7 of 7 tables, 14 of 14 videos" in finding.what
    assert shlex.split(finding.command) == ["git", "-C", str(root), "lfs", "pull"]
    assert report.exit_code() == 2


@pytest.mark.parametrize("layout", ["v2.1", "v3.0"])
def test_what_was_not_downloaded_is_one_finding_a_kind(layout, tmp_path):
    root = make_dataset(
        tmp_path / "datasets--me--arm" / "snapshots" / "0f",
        episodes=[4] * 5, cameras=1, layout=layout,
        data_files_size_in_mb=0.001, video_files_size_in_mb=0.001,
    )  # fmt: skip
    for path in (*sorted(root.rglob("*.mp4"))[1:], *sorted(root.rglob("data/*/*.parquet"))[3:]):
        path.unlink()
    report = demoreel.check(root)
    assert alarms(report) == {"table-missing", "video-missing"}
    assert [f.what.split(", like")[0] for f in report.findings[:2]] == [
        "2 of 5 tables, with 2 episodes",
        "4 of 5 videos, with 4 episodes",
    ]
    assert {f.command for f in report.findings[:2]} == {f"demoreel pull me/arm {root}-fetched"}


def test_links_that_lead_nowhere_are_files_that_are_not_there(tmp_path):
    root = make_dataset(tmp_path / "ds", episodes=[4], cameras=1)
    for path in (root / DATA, next(root.rglob("*.mp4"))):
        path.unlink()
        path.symlink_to(tmp_path / "blobs" / path.name)
    assert alarms(demoreel.check(root)) == {"table-missing", "video-missing", "link-outside"}


def test_where_nothing_says_whence_the_command_has_a_gap(tmp_path):
    root = make_dataset(tmp_path / "ds", episodes=[4], cameras=1)
    next(root.rglob("*.mp4")).unlink()
    [finding] = demoreel.check(root).of("video-missing")
    assert finding.command == f"demoreel pull OWNER/NAME {root}-fetched"


# Advice


def creep(episode, columns):
    for key in ("action", "observation.state"):
        values = columns[key]
        reach = values.max(axis=0) - values.min(axis=0)
        values[:45] = values[45] + np.linspace(-0.022, 0, 45)[:, None] * reach
    return columns


def tremble(episode, columns):
    random = np.random.default_rng(episode)
    for key in ("action", "observation.state"):
        values = columns[key]
        reach = values.max(axis=0) - values.min(axis=0)
        values[:40] = values[40] + random.normal(0, 0.004, (40, 6)) * reach
        values[-35:] = values[-35]
    return columns


@pytest.mark.parametrize("rest", [creep, tremble])
def test_trimming_what_is_idle_removes_the_finding(rest, tmp_path):
    root = make_moving(tmp_path / "arm", lengths=[120] * 3, change=rest)
    report = demoreel.check(root)
    [command] = {finding.command for finding in report.of("idle-head")}
    assert run_here(*shlex.split(command)[1:]).returncode == 0
    trimmed = demoreel.check(f"{root}-trimmed")
    assert trimmed.counts == {}
    assert trimmed.looked_at[f"{root}-trimmed"]["episodes"] == 3


def test_a_robot_that_waits_for_its_operator_is_not_idle(tmp_path):
    """The state stands still, and the action moves: something does."""

    def off(episode, columns):
        columns["observation.state"][:40] = columns["observation.state"][40]
        return columns

    root = make_moving(tmp_path / "arm", lengths=[120] * 3, change=off)
    assert "idle-head" not in demoreel.check(root).counts


def test_keyframes_that_are_far_apart(tmp_path):
    root = make_dataset(tmp_path / "ds", episodes=[250, 20], cameras=1, gop=200, layout="v2.1")
    [finding] = demoreel.check(root).of("keyframes-far")
    assert "up to 200 frames apart in 1 of 2 videos" in finding.what
    assert "samples a second" in finding.what
    assert run_here(*shlex.split(finding.command)[1:]).returncode == 0
    faster = demoreel.check(f"{root}-fast")
    assert "keyframes-far" not in faster.counts
    assert faster.looked_at[f"{root}-fast"]["layout"] == "v2.1"
    thresholds = {"keyframe_frames": 300}
    assert "keyframes-far" not in demoreel.check(root, thresholds=thresholds).counts


# Sizes


@pytest.mark.parametrize("to", ["lance-video", "lance-native", "lance-frames"])
def test_bytes_of_lance_tables_count(to, tmp_path):
    make_dataset(tmp_path / "ds", episodes=[12, 9], cameras=1)
    demoreel.convert(tmp_path / "ds", tmp_path / "lance", to=to)
    facts = demoreel.check(tmp_path / "lance").looked_at[str(tmp_path / "lance")]
    files = [path for path in (tmp_path / "lance").rglob("*") if path.is_file()]
    own = [path for path in files if ".demoreel" not in path.relative_to(tmp_path).parts[:2]]
    assert facts["bytes"] == sum(path.stat().st_size for path in own)


# Metadata


def test_tasks_by_a_number_of_lerobot_are_read_as_texts(tmp_path):
    root = make_dataset(tmp_path / "ds", episodes=[4, 4], cameras=0, tasks=("pick", "place"))
    table = pa.table({"task_index": [0, 1], "task": ["pick", "place"]})
    pq.write_table(table, root / "meta/tasks.parquet")
    [finding] = demoreel.check(root).findings[:1]
    assert (finding.code, finding.severity) == ("tasks-not-index", "error")
    assert demoreel.open(root)[7]["task"] == "place"


def test_tasks_by_two_columns_are_tuples_for_lerobot(tmp_path):
    root = make_dataset(tmp_path / "ds", episodes=[4, 4], cameras=0, tasks=("pick", "place"))
    table = pa.table({"task_index": [0, 1], "task": ["pick", "place"], "split": ["a", "b"]})
    said = {"index_columns": ["task", "split"], "columns": [], "column_indexes": []}
    table = table.replace_schema_metadata({"pandas": json.dumps(said)})
    pq.write_table(table, root / "meta/tasks.parquet")
    [finding] = demoreel.check(root).of("tasks-not-index")
    assert "tuple" in finding.what
    assert run_here(*shlex.split(finding.command)[1:]).returncode == 0
    assert not alarms(demoreel.check(f"{root}-repaired"))
    assert demoreel.open(root)[7]["task"] == "place"


def test_episodes_copied_in_by_hand_are_one_finding(tmp_path):
    root = make_dataset(tmp_path / "ds", layout="v2.1", episodes=(6, 4), cameras=1)
    for path in [*root.rglob("episode_000000.*")]:
        shutil.copy(path, path.with_stem("episode_000002"))
        shutil.copy(path, path.with_stem("episode_000003"))
    report = demoreel.check(root)
    assert set(report.counts) - {"constant-dimension"} == {"episodes-unlisted"}
    assert "episodes 2-3" in report.of("episodes-unlisted")[0].what


def test_what_macos_leaves_beside_files_is_nothing(tmp_path):
    root = make_dataset(tmp_path / "ds", layout="v2.1", episodes=(6, 4), cameras=0)
    (root / "data/chunk-000/._episode_000000.parquet").write_bytes(b"x" * 4096)
    assert set(demoreel.check(root).counts) <= {"constant-dimension"}


def test_statistics_of_numbers_that_are_nan_are_no_other_finding(tmp_path):
    root = make_dataset(tmp_path / "ds", layout="v3.0", episodes=(6, 4), cameras=0)
    path = next((root / "data").rglob("*.parquet"))
    table = pq.read_table(path)
    values = np.stack(table.column("action").to_numpy(zero_copy_only=False)).copy()
    values[2, 0] = np.nan
    place = table.schema.get_field_index("action")
    column = pa.array(values.tolist(), table.schema.field("action").type)
    pq.write_table(table.set_column(place, "action", column), path)
    stats = json.loads((root / "meta/stats.json").read_text())
    for kind in ("min", "max", "mean", "std"):
        stats["action"][kind][0] = float("nan")
    (root / "meta/stats.json").write_text(json.dumps(stats))
    assert set(demoreel.check(root).counts) - {"constant-dimension"} == {"not-a-number"}


def test_a_dataset_without_episodes_lacks_nothing_else(tmp_path):
    root = make_dataset(tmp_path / "ds", layout="v3.0", episodes=(6,), cameras=0)
    info = json.loads((root / "meta/info.json").read_text())
    info |= {"total_episodes": 0, "total_frames": 0, "total_tasks": 0, "splits": {}}
    shutil.rmtree(root)
    (root / "meta").mkdir(parents=True)
    (root / "meta/info.json").write_text(json.dumps(info))
    assert set(demoreel.check(root).counts) == {"episodes-empty"}


def test_times_of_another_clock_are_told_as_such(tmp_path):
    root = make_dataset(tmp_path / "ds", layout="v2.1", episodes=(6,), cameras=0)
    path = next((root / "data").rglob("*.parquet"))
    table = pq.read_table(path)
    place = table.schema.get_field_index("timestamp")
    column = pa.array(np.arange(6) / 30 + 1.7e9)
    pq.write_table(table.set_column(place, "timestamp", column), path)
    (finding,) = demoreel.check(root).of("timestamp-off-grid")
    assert "by another clock" in finding.what


def test_the_smallest_integer_has_statistics_like_any_other(tmp_path):
    """Its absolute value has no place in its own type."""
    least = np.iinfo(np.int32).min
    root = make_dataset(
        tmp_path / "ds",
        cameras=0,
        features={"observation.ticks": {"dtype": "int32", "shape": [1]}},
    )
    edit_column(
        root / DATA,
        "observation.ticks",
        lambda old: old.__setitem__(slice(None), [least] * len(old)),
    )
    demoreel.recompute_stats(root)
    assert not alarms(demoreel.check(root))


@pytest.mark.parametrize("name", ["tasks.jsonl.bak", "episodes.jsonl~", "episodes/notes.txt"])
def test_copies_of_metadata_are_no_metadata(tmp_path, name):
    for layout in ("v2.1", "v3.0"):
        root = make_dataset(tmp_path / layout, layout=layout, cameras=0)
        (root / "meta" / name).parent.mkdir(exist_ok=True)
        (root / "meta" / name).write_text("x")
        assert not alarms(demoreel.check(root))


@pytest.mark.parametrize("layout", ["v2.1", "v3.0"])
def test_files_that_macos_adds_are_not_the_datasets(tmp_path, layout):
    """A copy over a USB stick has ``._NAME`` beside every file."""
    root = make_dataset(tmp_path / "ds", layout=layout)
    for path in [path for path in root.rglob("*") if path.is_file()]:
        (path.parent / f"._{path.name}").write_bytes(b"\0\5\26\7" + bytes(60))
    assert len(demoreel.open(root)) == 60
    assert alarms(demoreel.check(root)) == ({"files-of-macos"} if layout == "v3.0" else set())
    assert demoreel.repair(root, tmp_path / "out").is_whole
    assert not list((tmp_path / "out").rglob("._*"))
