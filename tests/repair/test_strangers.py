"""Datasets that other tools have written, or people have put together: nothing of them is lost."""

from __future__ import annotations

import itertools
import json
import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import demoreel
from demoreel.cli.app import run
from demoreel.errors import ArgumentError, PictureError, RepairError
from demoreel.media.video import open_video
from demoreel.repair.run import repair
from demoreel.testing import make_dataset
from demoreel.testing.stamp import read_stamp
from support.defects.tools import (
    EPISODES,
    edit_column,
    edit_info,
    edit_table,
    film,
    put,
    remux,
)

SINGLE = {
    "next.reward": {"dtype": "float32", "shape": [1]},
    "next.done": {"dtype": "bool", "shape": [1]},
    "count": {"dtype": "int64", "shape": [1]},
    "note": {"dtype": "string", "shape": [1]},
}
NUMBERING = ("timestamp", "frame_index", "episode_index", "index", "task_index")
LENGTHS = (6, 4, 5)
FRONT = "observation.images.front"
POINTER = f"version https://git-lfs.github.com/spec/v1\noid sha256:{'a' * 64}\nsize 12345\n"


@pytest.fixture(scope="module")
def bases(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bases")
    for layout in ("v2.0", "v2.1", "v3.0"):
        common = {
            "layout": layout,
            "episodes": LENGTHS,
            "features": SINGLE,
            "tasks": ("pick", "place"),
        }
        make_dataset(folder / layout, cameras={FRONT: (64, 64)}, gop=2, **common)
        images = {FRONT: (64, 64)}
        make_dataset(folder / f"{layout}-images", cameras=0, image_cameras=images, **common)
    return folder


@pytest.fixture(params=["v2.1", "v3.0"])
def dataset(request, bases, tmp_path):
    return Path(shutil.copytree(bases / request.param, tmp_path / "ds"))


@pytest.fixture(params=["v2.1", "v3.0"])
def pictured(request, bases, tmp_path):
    return Path(shutil.copytree(bases / f"{request.param}-images", tmp_path / "ds"))


@pytest.fixture
def v21(bases, tmp_path):
    return Path(shutil.copytree(bases / "v2.1", tmp_path / "ds"))


@pytest.fixture
def v30(bases, tmp_path):
    return Path(shutil.copytree(bases / "v3.0", tmp_path / "ds"))


def tables(root: Path) -> list[Path]:
    return sorted((root / "data").rglob("*.parquet"))


def change(root: Path, *names: str, to) -> None:
    """Store columns of all tables in another way, as a tool that writes no metadata of its own."""

    def changed(table: pa.Table) -> pa.Table:
        for name in names:
            place = table.schema.get_field_index(name)
            table = table.set_column(place, name, to(table.column(name).combine_chunks()))
        return table.replace_schema_metadata(None)

    for path in tables(root):
        edit_table(path, changed)


def lists_of_one(array: pa.Array) -> pa.Array:
    return pa.ListArray.from_arrays(pa.array(range(len(array) + 1), pa.int32()), array)


def fixed_lists_of_one(array: pa.Array) -> pa.Array:
    return pa.FixedSizeListArray.from_arrays(array, 1)


def items_of(root: Path) -> list[dict[str, object]]:
    dataset = demoreel.open(root)
    return [dataset[row] for row in range(len(dataset))]


def require_same(root: Path, other: Path, *, but: tuple[str, ...] = ()) -> None:
    """Require that a dataset has the items of another, in all features."""
    found, wanted = items_of(root), items_of(other)
    assert len(found) == len(wanted)
    for one, two in zip(found, wanted, strict=True):
        assert set(one) == set(two)
        for key in set(two) - set(but):
            assert np.array_equal(np.asarray(one[key]), np.asarray(two[key])), key


def require_settled(done, folder: Path) -> None:
    """Require that what was repaired passes the check, and that a second repair does nothing."""
    assert done.is_clean, [(f.code, f.what) for f in done.after.findings if f.severity != "hint"]
    again = repair(done.target, folder / "again")
    assert again.changes == ()
    assert again.is_whole


def stamps(root: Path) -> list[tuple[int, int]]:
    """Return (episode, frame) that each row's image says, where its numbers say the same."""
    found = []
    for item in items_of(root):
        episode, frame = read_stamp(item[FRONT])[:2]
        assert [episode, frame] == np.asarray(item["observation.state"])[:2].astype(int).tolist()
        found.append((episode, frame))
    return found


def frames_of(*episodes: tuple[int, int]) -> list[tuple[int, int]]:
    return [(number, frame) for number, length in episodes for frame in range(length)]


# Types


@pytest.mark.parametrize("stored", [lists_of_one, fixed_lists_of_one])
@pytest.mark.parametrize("has_info", [True, False])
def test_single_values_stored_as_lists_are_kept(dataset, bases, tmp_path, stored, has_info):
    layout = demoreel.open(dataset).layout
    change(dataset, *SINGLE, to=stored)
    if not has_info:
        (dataset / "meta" / "info.json").unlink()
    done = repair(dataset, tmp_path / "out")
    require_same(tmp_path / "out", bases / layout)
    features = demoreel.open(tmp_path / "out").info.features
    assert {key: (features[key].dtype, features[key].shape) for key in SINGLE} == {
        key: (each["dtype"], (1,)) for key, each in SINGLE.items()
    }
    require_settled(done, tmp_path)


def test_numbering_stored_as_lists_is_kept(dataset, bases, tmp_path):
    layout = demoreel.open(dataset).layout
    change(dataset, *NUMBERING, to=lists_of_one)
    done = repair(dataset, tmp_path / "out")
    require_same(tmp_path / "out", bases / layout)
    require_settled(done, tmp_path)


WIDER = {
    "frame_index": pa.float64(),
    "episode_index": pa.float64(),
    "index": pa.float64(),
    "task_index": pa.float64(),
    "count": pa.float64(),
    "timestamp": pa.float64(),
    "next.reward": pa.float64(),
    "next.done": pa.int64(),
    "note": pa.large_string(),
    "observation.state": pa.list_(pa.float64()),
    "action": pa.large_list(pa.float32()),
}


def test_values_in_other_types_get_their_declared_ones(dataset, bases, tmp_path):
    layout = demoreel.open(dataset).layout
    for name, kind in WIDER.items():
        change(dataset, name, to=lambda array, kind=kind: array.cast(kind))
    before = demoreel.open(bases / layout).info
    done = repair(dataset, tmp_path / "out")
    require_same(tmp_path / "out", bases / layout)
    after = demoreel.open(tmp_path / "out").info
    assert {k: f.dtype for k, f in after.features.items()} == {
        k: f.dtype for k, f in before.features.items()
    }
    said = [sentence for sentence in done.changes if "stored as" in sentence]
    assert len(said) < len(WIDER)  # one for each kind, and not for each column and table
    assert all(
        sum(name in each.replace(",", ":").split(": ") for each in said) == 1 for name in WIDER
    )
    assert any("task_index" in each and "stored as float64, and as int64" in each for each in said)
    require_settled(done, tmp_path)


def test_fractions_where_whole_numbers_are_declared_are_kept(v30, tmp_path):
    half = pa.array(np.arange(sum(LENGTHS)) + 0.5)
    change(v30, "count", to=lambda _: half)
    done = repair(v30, tmp_path / "out")
    assert [item["count"] for item in items_of(tmp_path / "out")] == half.to_pylist()
    assert any("count: it is float64 [1], not int64 [1]" in each for each in done.changes)
    require_settled(done, tmp_path)


@pytest.mark.parametrize("has_info", [True, False])
def test_images_stored_as_plain_binary_are_kept(pictured, bases, tmp_path, has_info):
    layout = demoreel.open(pictured).layout
    change(pictured, FRONT, to=lambda array: array.field("bytes"))
    if not has_info:
        (pictured / "meta" / "info.json").unlink()
    done = repair(pictured, tmp_path / "out")
    require_same(tmp_path / "out", bases / f"{layout}-images")
    require_settled(done, tmp_path)


def test_missing_totals_are_counted(dataset, tmp_path):
    names = ("total_chunks", "total_videos", "total_frames", "total_episodes", "total_tasks")
    edit_info(dataset, lambda info: [info.pop(name, None) for name in names])
    done = repair(dataset, tmp_path / "out")
    raw = json.loads((tmp_path / "out/meta/info.json").read_text())
    assert (raw["total_frames"], raw["total_episodes"], raw["total_tasks"]) == (15, 3, 2)
    if raw["codebase_version"] == "v2.1":
        assert (raw["total_chunks"], raw["total_videos"]) == (1, 3)
        (said,) = (each for each in done.changes if "what was missing was added" in each)
        assert "total_chunks is 1" in said
    require_settled(done, tmp_path)


def test_what_pandas_adds_to_tables_is_removed(dataset, bases, tmp_path):
    layout = demoreel.open(dataset).layout
    for path in tables(dataset):
        table = pq.read_table(path)
        index = pa.array(range(5, 5 + len(table)))
        edit_table(path, lambda rows, index=index: rows.append_column("__index_level_0__", index))
    done = repair(dataset, tmp_path / "out")
    require_same(tmp_path / "out", bases / layout)
    assert any("pandas" in sentence for sentence in done.changes)
    require_settled(done, tmp_path)


@pytest.mark.parametrize("values", [[[1.0], [1.0, 2.0]], [None, 1.0]])
def test_a_column_that_no_feature_can_hold_is_listed(v30, tmp_path, values, capsys):
    rows = list(itertools.islice(itertools.cycle(values), sum(LENGTHS)))
    edit_table(tables(v30)[0], lambda table: table.append_column("odd", pa.array(rows)))
    assert run(["repair", str(v30), str(tmp_path / "out")]) == 1
    assert "the column odd" in capsys.readouterr().out
    assert len(demoreel.open(tmp_path / "out")) == 15


# Tasks


def text_index(name: str | None, numbers: list[float]) -> bytes:
    """Return tasks as pandas writes them with texts as its index."""
    column = name or "__index_level_0__"
    table = pa.table({"task_index": numbers, column: ["pick", "place"]})
    said = {"index_columns": [column], "columns": [], "column_indexes": []}
    return written(table.replace_schema_metadata({"pandas": json.dumps(said)}))


def written(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink)
    return sink.getvalue().to_pybytes()


TASK_TABLES = {
    "doubles": text_index("task", [0.0, 1.0]),
    "no name": text_index(None, [0, 1]),
    "no name, doubles": text_index(None, [0.0, 1.0]),
    "another name": text_index("language", [0, 1]),
    "no index": written(pa.table({"task_index": [0, 1], "task": ["pick", "place"]})),
    "no index, another name": written(pa.table({"index": ["pick", "place"], "task_index": [0, 1]})),
    "texts only": written(pa.table({"task": ["pick", "place"]})),
    "numbers as texts": written(pa.table({"task_index": ["0", "1"], "task": ["pick", "place"]})),
    "reordered": written(pa.table({"task_index": [1.0, 0.0], "task": ["place", "pick"]})),
}


@pytest.mark.parametrize("form", TASK_TABLES)
def test_texts_of_tasks_survive(v30, bases, tmp_path, form):
    (v30 / "meta/tasks.parquet").write_bytes(TASK_TABLES[form])
    done = repair(v30, tmp_path / "out")
    require_same(tmp_path / "out", bases / "v3.0")
    is_said = any("tasks.parquet" in sentence for sentence in done.changes)
    assert is_said == (form != "no name")  # lerobot reads an index by any name
    require_settled(done, tmp_path)


@pytest.mark.parametrize(
    "lines",
    [
        [{"task_index": 0.0, "task": "pick"}, {"task_index": 1.0, "task": "place"}],
        [{"task_index": "0", "task": "pick"}, {"task_index": "1", "task": "place"}],
        [{"task": "pick"}, {"task": "place"}],
        [{"index": 0, "instruction": "pick"}, {"index": 1, "instruction": "place"}],
    ],
)
def test_texts_of_tasks_in_lines_survive(v21, bases, tmp_path, lines):
    (v21 / "meta/tasks.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    done = repair(v21, tmp_path / "out")
    require_same(tmp_path / "out", bases / "v2.1")
    require_settled(done, tmp_path)


def test_texts_of_tasks_survive_without_info(dataset, bases, tmp_path):
    layout = demoreel.open(dataset).layout
    (dataset / "meta/info.json").unlink()
    repair(dataset, tmp_path / "out")
    require_same(tmp_path / "out", bases / layout)


def test_a_task_that_nothing_tells_is_not_made_up(dataset, tmp_path):
    for path in tables(dataset):
        edit_table(path, lambda table: table.drop_columns(["task_index"]))
    for path in [*(dataset / "meta").glob("episodes.jsonl"), *dataset.glob("meta/episodes/*/*")]:
        path.unlink()
    done = repair(dataset, tmp_path / "out", drop_episodes=True)
    found = {task for e in demoreel.open(tmp_path / "out").episodes for task in e.tasks}
    assert found == {"unknown task"}
    assert any("nothing says which of the tasks it is" in sentence for sentence in done.changes)
    assert not any("of its task_index" in sentence for sentence in done.changes)
    require_settled(done, tmp_path)


def test_rows_without_a_task_index_have_their_episodes_task(dataset, bases, tmp_path):
    layout = demoreel.open(dataset).layout
    for path in tables(dataset):
        edit_table(path, lambda table: table.drop_columns(["task_index"]))
    done = repair(dataset, tmp_path / "out")
    require_same(tmp_path / "out", bases / layout)
    require_settled(done, tmp_path)


def test_metadata_that_name_other_tasks_than_rows_are_reported(v21, tmp_path):
    change(v21, "task_index", to=lambda array: pa.array([0] * len(array)))
    done = repair(v21, tmp_path / "out")
    assert any("named other tasks than the rows" in each for each in done.changes)
    assert demoreel.open(tmp_path / "out").tasks[1] == "place"  # no row has it; columns may
    assert done.dropped == ()


# Time


@pytest.mark.parametrize("share", [1.09, 0.985])
def test_the_declared_rate_stays_where_videos_have_it(dataset, tmp_path, share):
    """Rows hold measured times: they vary, and are slow."""
    noise = np.random.default_rng(0)

    def measured(array: pa.Array) -> pa.Array:
        times = np.asarray(array) * share + noise.uniform(0, 2e-3, len(array))
        return pa.array(times, pa.float32())

    change(dataset, "timestamp", to=measured)
    before = {p.relative_to(dataset): p for p in dataset.rglob("*.mp4")}
    done = repair(dataset, tmp_path / "out")
    after = demoreel.open(tmp_path / "out").info
    assert (after.fps, type(after.fps)) == (30, int)
    for name, path in before.items():
        old, new = open_video(path).index, open_video(tmp_path / "out" / name).index
        assert np.allclose(old.seconds, new.seconds, atol=1e-6)
        assert np.array_equal(old.size, new.size)
    assert not any("fps" in sentence.replace("/ fps", "") for sentence in done.changes)
    require_settled(done, tmp_path)


def test_the_declared_rate_stays_where_rows_of_images_vary(pictured, tmp_path):
    noise = np.random.default_rng(0)
    change(
        pictured,
        "timestamp",
        to=lambda a: pa.array(np.asarray(a) * 1.1 + noise.uniform(0, 5e-3, len(a)), pa.float32()),
    )
    repair(pictured, tmp_path / "out")
    assert demoreel.open(tmp_path / "out").info.fps == 30


def test_a_rate_that_rows_and_videos_contradict_is_set_right(dataset, tmp_path):
    edit_info(dataset, lambda info: info.update(fps=25))
    done = repair(dataset, tmp_path / "out")
    assert demoreel.open(tmp_path / "out").info.fps == 30
    assert any("fps is 30" in sentence for sentence in done.changes)
    require_settled(done, tmp_path)


@pytest.mark.parametrize("fps", [24, 15])
def test_videos_of_another_rate_are_retimed_and_that_is_said(v21, tmp_path, fps):
    video = sorted(v21.rglob("*.mp4"))[1]
    film(video, LENGTHS[1], fps=fps)
    done = repair(v21, tmp_path / "out")
    assert done.copied == 0
    said = f"{video.relative_to(v21)}: retimed: one frame every 1/30 s, packets copied"
    assert said in done.changes
    require_settled(done, tmp_path)


def test_an_uneven_clock_is_set_right_and_that_is_said(v30, tmp_path):
    video = next(v30.rglob("*.mp4"))
    remux(video, retime=lambda _, frame: frame + 3 * (frame > 8))
    done = repair(v30, tmp_path / "out")
    assert stamps(tmp_path / "out") == frames_of(*enumerate(LENGTHS))
    assert any("retimed: one frame every 1/30 s" in each for each in done.changes)
    assert done.copied == 0
    require_settled(done, tmp_path)


def test_what_is_wrong_behind_a_wrong_folder_is_set_right_too(dataset, tmp_path):
    wrong = {"video.codec": "av1", "video.fps": 10.0, "video.height": 480}
    edit_info(dataset, lambda info: info["features"][FRONT]["info"].update(wrong))
    (dataset / "videos").rename(dataset / "video")
    done = repair(dataset, tmp_path / "out")
    said = demoreel.open(tmp_path / "out").info.features[FRONT].info
    assert (said["video.codec"], said["video.fps"], said["video.height"]) == ("h264", 30, 64)
    assert not done.dropped  # the folder's files were all taken in
    require_settled(done, tmp_path)


def test_a_video_in_a_folder_of_the_same_name_is_said_to_be_moved(v30, tmp_path):
    name = "chunk-000/file-000.mp4"
    old = v30 / "videos/chunk-000" / FRONT / "file-000.mp4"
    old.parent.mkdir(parents=True)
    (v30 / "videos" / FRONT / name).rename(old)
    done = repair(v30, tmp_path / "out")
    assert any("moved to where info.json says" in each for each in done.changes)
    require_settled(done, tmp_path)


def test_recomputed_quantiles_are_in_the_report(v30, tmp_path):
    recorded = json.loads((v30 / "meta/stats.json").read_text())
    recorded["observation.state"]["std"][0] *= 9
    (v30 / "meta/stats.json").write_text(json.dumps(recorded))
    assert demoreel.check(v30).of("stats-differ")
    done = repair(v30, tmp_path / "out")
    assert any("stats-differ" in each for each in done.changes)


def test_reports_have_their_old_names_for_one_release(v30, tmp_path):
    edit_info(v30, lambda info: info.update(total_frames=3))
    done = repair(v30, tmp_path / "out")
    assert done.mended == done.changes != ()
    said = done.to_json()
    assert said["mended"] == said["changes"] == list(done.changes)
    (finding,) = done.before.of("total-frames")
    assert finding.mend == finding.command == finding.to_json()["mend"]


def test_where_there_is_no_episode_nothing_is_said_of_each(tmp_path):
    demoreel.create(tmp_path / "x", fps=10, features={"action": SINGLE["next.reward"]}).finalize()
    with pytest.raises(RepairError, match="There is no episode in this folder") as caught:
        repair(tmp_path / "x", tmp_path / "out")
    assert "--resume" in caught.value.hint


def test_a_second_name_is_not_proposed_twice(v30):
    root = v30.rename(v30.with_name("x-repaired"))
    (root / "meta/stats.json").unlink()
    (finding,) = demoreel.check(root).of("stats-missing")
    assert finding.command == f"demoreel repair {root} {root}-2"


# What is not there


@pytest.mark.parametrize("ending", ["parquet", "mp4"])
def test_pointers_of_git_lfs_are_no_damage(dataset, tmp_path, ending, capsys):
    for path in dataset.rglob(f"*.{ending}"):
        path.write_text(POINTER)
    for options in ([], ["--drop-episodes"], ["--dry-run"]):
        assert run(["repair", str(dataset), str(tmp_path / "out"), *options]) == 1
        assert "git lfs pull" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_pointers_in_lance_tables_are_no_damage(v30, tmp_path):
    demoreel.convert(v30, tmp_path / "lance", to="lance-video")
    for path in (tmp_path / "lance").rglob("*.lance/data/*.lance"):
        path.write_text(POINTER)
    with pytest.raises(RepairError, match="Git LFS"):
        repair(tmp_path / "lance", tmp_path / "out", drop_episodes=True)


def test_a_refusal_in_place_changes_nothing(v21, tmp_path):
    next(v21.rglob("episode_000001.mp4")).unlink()
    before = sorted(path.relative_to(tmp_path) for path in tmp_path.rglob("*"))
    with pytest.raises(RepairError):
        repair(v21, in_place=True)
    assert sorted(path.relative_to(tmp_path) for path in tmp_path.rglob("*")) == before
    assert repair(v21, in_place=True, drop_episodes=True).episodes == 2
    assert stamps(v21) == frames_of((0, 6), (2, 5))


def test_a_camera_without_videos_is_left_out_only_if_asked(dataset, tmp_path, capsys):
    shutil.rmtree(dataset / "videos")
    with pytest.raises(RepairError, match="not there") as caught:
        repair(dataset, tmp_path / "out", drop_episodes=True)
    assert "fetch" in caught.value.hint
    assert f"--drop-camera {FRONT}" in caught.value.hint
    assert not (tmp_path / "out").exists()
    assert run(["repair", str(dataset), "--dry-run"]) == 1
    assert f"camera {FRONT}" in capsys.readouterr().out
    assert run(["repair", str(dataset), str(tmp_path / "out"), "--drop-camera", FRONT]) == 1
    assert f"lost: camera {FRONT}" in capsys.readouterr().out
    assert demoreel.open(tmp_path / "out").info.cameras == ()
    assert demoreel.check(tmp_path / "out").worst not in ("error", "warning")


def test_a_camera_that_is_there_can_be_left_out(pictured, tmp_path):
    done = repair(pictured, tmp_path / "out", drop_cameras=[FRONT])
    assert done.cameras_lost == (FRONT,)
    assert not done.is_whole
    assert demoreel.open(tmp_path / "out").info.cameras == ()
    with pytest.raises(ArgumentError, match="no camera 'rear'"):
        repair(pictured, tmp_path / "other", drop_cameras=["rear"])


@pytest.mark.parametrize("kind", ["parquet", "mp4"])
def test_an_episode_without_a_file_is_left_out_only_if_asked(v21, tmp_path, kind):
    gone = next(v21.rglob(f"episode_000001.{kind}"))
    gone.unlink()
    with pytest.raises(RepairError, match="1 of 3 episodes cannot be kept") as caught:
        repair(v21, tmp_path / "out")
    assert gone.name in caught.value.what
    assert "fetch" in caught.value.hint
    assert "--drop-episodes" in caught.value.hint
    planned = repair(v21, dry_run=True)
    assert [lost.episode for lost in planned.lost] == [1]
    assert planned.absent == (str(gone.relative_to(v21)),)
    done = repair(v21, tmp_path / "out", drop_episodes=True)
    assert not done.is_whole
    assert stamps(tmp_path / "out") == frames_of((0, 6), (2, 5))


def test_a_wrong_file_number_that_costs_nothing_is_no_loss(v30, tmp_path):
    edit_column(v30 / EPISODES, f"videos/{FRONT}/file_index", put(2, 5))
    done = repair(v30, tmp_path / "out")
    assert stamps(tmp_path / "out") == frames_of(*enumerate(LENGTHS))
    assert done.is_whole
    require_settled(done, tmp_path)


def test_videos_that_no_dataset_declares_cost_no_episode(v30, tmp_path):
    other = v30 / "videos/preview/chunk-000"
    other.mkdir(parents=True)
    film(other / "file-000.mp4", 3)
    done = repair(v30, tmp_path / "out")
    assert stamps(tmp_path / "out") == frames_of(*enumerate(LENGTHS))
    assert any("preview" in sentence for sentence in done.dropped)


# Episodes that were added as files


@pytest.fixture
def another(tmp_path):
    def made(layout: str) -> Path:
        return make_dataset(
            tmp_path / "another",
            layout=layout,
            episodes=(3, 7),
            features=SINGLE,
            cameras={FRONT: (64, 64)},
            tasks=("pick", "place"),
            gop=2,
        )

    return made


ADDED = frames_of(*enumerate(LENGTHS), (0, 3), (1, 7))


def test_episodes_added_as_files_are_taken_in(v21, another, tmp_path):
    """Their rows have the numbers that they had elsewhere."""
    other = another("v2.1")
    for number in range(2):
        for path in other.rglob(f"episode_00000{number}.*"):
            name = path.relative_to(other).with_stem(f"episode_00000{number + 3}")
            shutil.copy(path, v21 / name)
    done = repair(v21, tmp_path / "out")
    assert stamps(tmp_path / "out") == ADDED
    new = demoreel.open(tmp_path / "out")
    assert [new[row]["index"] for row in range(len(new))] == list(range(25))
    assert [e.length for e in new.episodes] == [6, 4, 5, 3, 7]
    assert done.is_whole
    assert any("episodes 3-4: not listed in" in sentence for sentence in done.changes)
    require_settled(done, tmp_path)


def test_a_folder_of_episodes_added_beside_is_taken_in(v21, another, tmp_path):
    """Their files have the names of others, in another chunk."""
    other = another("v2.1")
    for name in ("data", "videos"):
        shutil.copytree(other / name / "chunk-000", v21 / name / "chunk-001")
    done = repair(v21, tmp_path / "out")
    assert stamps(tmp_path / "out") == ADDED
    require_settled(done, tmp_path)


def test_a_file_of_episodes_added_to_v3_is_taken_in(v30, another, tmp_path):
    other = another("v3.0")
    for path in [*other.glob("data/*/*.parquet"), *other.rglob("*.mp4")]:
        shutil.copy(path, v30 / path.relative_to(other).with_stem("file-001"))
    done = repair(v30, tmp_path / "out")
    assert stamps(tmp_path / "out") == ADDED
    require_settled(done, tmp_path)


def test_rows_with_the_number_of_another_episode_are_not_left_out_unasked(v30, another, tmp_path):
    other = another("v3.0")
    shutil.copy(tables(other)[0], tables(v30)[0].with_stem("file-001"))
    with pytest.raises(RepairError, match="2 of 5 episodes cannot be kept"):
        repair(v30, tmp_path / "out")
    done = repair(v30, tmp_path / "out", drop_episodes=True)
    assert stamps(tmp_path / "out") == frames_of(*enumerate(LENGTHS))
    assert len(done.lost) == 2


def test_extra_columns_of_episodes_survive_an_added_one(v21, another, tmp_path):
    path = v21 / "meta/episodes.jsonl"
    lines = [{**json.loads(line), "success": True} for line in path.read_text().splitlines()]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    other = another("v2.1")
    for each in other.rglob("episode_000000.*"):
        shutil.copy(each, v21 / each.relative_to(other).with_stem("episode_000003"))
    repair(v21, tmp_path / "out")
    said = [e.extra.get("success") for e in demoreel.open(tmp_path / "out").episodes]
    assert said == [True, True, True, None]


def test_files_without_any_numbers_are_episodes_by_their_names(v21, bases, tmp_path):
    for path in tables(v21):
        edit_table(path, lambda t: t.drop_columns(["index", "episode_index", "frame_index"]))
    done = repair(v21, tmp_path / "out")
    require_same(tmp_path / "out", bases / "v2.1")
    require_settled(done, tmp_path)


def test_dropped_frames_do_not_cut_an_episode_short(dataset, tmp_path):
    """Rows and frames are as many as the metadata say; numbers and times jump."""

    def jumping(array: pa.Array) -> pa.Array:
        values = np.asarray(array).copy()
        values[3:] += 2
        return pa.array(values)

    change(dataset, "frame_index", to=jumping)
    change(
        dataset,
        "timestamp",
        to=lambda array: pa.array(np.where(np.arange(len(array)) < 3, 0, 0.07) + np.asarray(array)),
    )
    done = repair(dataset, tmp_path / "out")
    assert stamps(tmp_path / "out") == frames_of(*enumerate(LENGTHS))
    require_settled(done, tmp_path)


def test_tables_with_names_of_other_tools_are_found(v30, bases, tmp_path):
    (table,) = tables(v30)
    table.rename(v30 / "data" / "train-00000-of-00001.parquet")
    table.parent.rmdir()
    done = repair(v30, tmp_path / "out")
    require_same(tmp_path / "out", bases / "v3.0")
    require_settled(done, tmp_path)


# The report


def test_a_change_of_many_files_is_one_sentence(tmp_path, capsys):
    root = make_dataset(tmp_path / "ds", layout="v2.1", episodes=[2] * 12, cameras=0)
    change(root, "index", "task_index", to=lambda array: array.cast(pa.float64()))
    assert run(["repair", str(root), str(tmp_path / "out")]) == 0
    said = [line for line in capsys.readouterr().out.splitlines() if "repaired:" in line]
    assert "  repaired: index, task_index: stored as float64, and as int64 now" in said
    assert len(said) < 4


def test_settings_stay_and_a_sound_dataset_is_not_changed(dataset, tmp_path):
    edit_info(dataset, lambda info: info.update(chunks_size=500, note="mine"))
    done = repair(dataset, tmp_path / "out")
    assert done.changes == ()
    assert done.is_whole
    raw = json.loads((tmp_path / "out/meta/info.json").read_text())
    assert (raw["chunks_size"], raw["note"]) == (500, "mine")


# Videos in other folders than the template's


def to_v3_order(root: Path) -> None:
    for path in sorted(root.rglob("*.mp4")):
        to = root / "videos" / FRONT / "chunk-000" / path.name
        to.parent.mkdir(parents=True, exist_ok=True)
        path.rename(to)


def to_v2_order(root: Path) -> None:
    for path in sorted(root.rglob("*.mp4")):
        to = root / "videos" / "chunk-000" / FRONT / path.name
        to.parent.mkdir(parents=True, exist_ok=True)
        path.rename(to)


def to_last_name(root: Path) -> None:
    for folder in [path for path in root.rglob(FRONT) if path.is_dir()]:
        folder.rename(folder.with_name("front"))


def to_no_folder(root: Path) -> None:
    for path in sorted(root.rglob("*.mp4")):
        to = root / "videos" / "chunk-000" / path.name
        to.parent.mkdir(parents=True, exist_ok=True)
        path.rename(to)


@pytest.mark.parametrize("move", [to_v3_order, to_v2_order, to_last_name, to_no_folder])
def test_videos_are_found_in_any_order_of_folders(dataset, bases, tmp_path, move):
    layout = demoreel.open(dataset).layout
    move(dataset)
    done = repair(dataset, tmp_path / "out")
    require_same(tmp_path / "out", bases / layout)
    assert done.is_whole
    require_settled(done, tmp_path)


def test_names_with_another_dash_are_found(dataset, bases, tmp_path):
    layout = demoreel.open(dataset).layout
    for path in [*tables(dataset), *dataset.rglob("*.mp4")]:
        path.rename(path.with_name(path.name.translate(str.maketrans("-_", "_-"))))
    done = repair(dataset, tmp_path / "out")
    require_same(tmp_path / "out", bases / layout)
    require_settled(done, tmp_path)


def test_a_camera_that_is_not_declared_is_kept_where_the_metadata_place_it(v30, bases, tmp_path):
    """Without ``index``, only its columns in ``meta/episodes`` tell where its frames are."""
    edit_info(v30, lambda info: info["features"].pop(FRONT))
    edit_table(tables(v30)[0], lambda table: table.drop_columns(["index"]))
    done = repair(v30, tmp_path / "out")
    require_same(tmp_path / "out", bases / "v3.0")
    assert f"{FRONT}: declared in info.json now" in done.changes
    require_settled(done, tmp_path)


def test_cameras_with_the_same_fault_share_a_sentence(tmp_path):
    root = make_dataset(tmp_path / "ds", episodes=1, cameras=2, length=4)
    keys = ("observation.images.cam0", "observation.images.cam1")

    def wrong(info):
        for key in keys:
            info["features"][key]["info"]["video.fps"] = 15.0

    edit_info(root, wrong)
    done = repair(root, tmp_path / "out")
    assert f"info.json: {', '.join(keys)}: video.fps is 30, not 15.0" in done.changes


def test_a_folder_of_a_cameras_last_name_is_not_taken_for_its_own(dataset, tmp_path):
    (own,) = [path for path in dataset.rglob(FRONT) if path.is_dir()]
    shutil.copytree(own, own.with_name("front"))
    for path in own.with_name("front").rglob("*.mp4"):
        film(path, sum(LENGTHS))
    repair(dataset, tmp_path / "out", drop_cameras=["front"])
    assert stamps(tmp_path / "out") == frames_of(*enumerate(LENGTHS))


@pytest.mark.parametrize("order", [(1, 0, 2), (1, 2, 0)])
def test_videos_in_each_others_places_are_not_taken(v21, tmp_path, order):
    """Rows would be cut to the length of another episode's video, and pass the check."""
    films = sorted(v21.rglob("*.mp4"))
    content = [path.read_bytes() for path in films]
    for path, number in zip(films, order, strict=True):
        path.write_bytes(content[number])
    with pytest.raises(RepairError, match="as if it were the video of episode 1"):
        repair(v21, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_one_row_is_one_row(v21, tmp_path):
    film(sorted(v21.rglob("*.mp4"))[0], LENGTHS[0] - 1)
    done = repair(v21, tmp_path / "out")
    assert done.frames_lost == ("episode 0: 1 row at the end has no images, and was left out",)


# Rows and frames that are lost


def without(path: Path, *rows: int) -> None:
    edit_table(path, lambda t: t.take([n for n in range(len(t)) if n not in rows]))


def test_rows_behind_missing_ones_are_listed(dataset, tmp_path, capsys):
    without(tables(dataset)[0], 2)
    assert run(["repair", str(dataset), str(tmp_path / "out")]) == 1
    said = capsys.readouterr().out
    assert "lost: episode 0: 3 rows behind missing ones were left out" in said
    assert "no episode needs" not in said
    done = repair(tmp_path / "out", tmp_path / "again")
    assert (done.changes, done.is_whole) == ((), True)
    assert stamps(tmp_path / "out") == frames_of((0, 2), (1, 4), (2, 5))


def test_frames_whose_rows_are_missing_are_listed(dataset, tmp_path, capsys):
    last = len(pq.read_table(tables(dataset)[-1])) - 1
    without(tables(dataset)[-1], last)
    assert run(["repair", str(dataset), "--dry-run"]) == 1
    assert "to lose: episode 2: 1 frame at the end has no rows" in capsys.readouterr().out
    done = repair(dataset, tmp_path / "out")
    assert done.frames_lost == ("episode 2: 1 frame at the end has no rows, and was left out",)
    assert stamps(tmp_path / "out") == frames_of((0, 6), (1, 4), (2, 4))
    require_settled(done, tmp_path)


def test_statistics_of_images_whose_rows_are_missing_are_recomputed(pictured, tmp_path):
    without(tables(pictured)[-1], len(pq.read_table(tables(pictured)[-1])) - 1)
    done = repair(pictured, tmp_path / "out")
    assert "stats.json: the statistics of images were recomputed" in done.changes
    assert demoreel.open(tmp_path / "out").stats[FRONT]["count"] == sum(LENGTHS) - 1
    require_settled(done, tmp_path)


def test_images_that_no_table_has_are_left_out_only_if_asked(pictured, tmp_path):
    for path in tables(pictured):
        edit_table(path, lambda t: t.drop_columns([FRONT]).replace_schema_metadata(None))
    with pytest.raises(RepairError, match="There are no frames of") as caught:
        repair(pictured, tmp_path / "out")
    assert f"--drop-camera {FRONT}" in caught.value.hint
    done = repair(pictured, tmp_path / "out", drop_cameras=[FRONT])
    assert done.cameras_lost == (FRONT,)
    assert demoreel.open(tmp_path / "out").info.cameras == ()


def test_images_that_one_table_lacks_are_left_out_only_if_asked(bases, tmp_path):
    root = Path(shutil.copytree(bases / "v2.1-images", tmp_path / "ds"))
    edit_table(tables(root)[1], lambda t: t.drop_columns([FRONT]).replace_schema_metadata(None))
    with pytest.raises(RepairError, match="1 of 3 tables does not have it") as caught:
        repair(root, tmp_path / "out")
    assert tables(root)[1].name in caught.value.what
    assert f"--drop-camera {FRONT}" in caught.value.hint
    done = repair(root, tmp_path / "out", drop_cameras=[FRONT])
    assert (done.cameras_lost, done.columns_lost) == ((FRONT,), ())


def test_a_column_that_one_table_lacks_is_not_called_absent(v21, tmp_path):
    edit_table(tables(v21)[1], lambda t: t.drop_columns(["next.reward"]))
    done = repair(v21, tmp_path / "out")
    assert done.columns_lost == ("next.reward",)
    assert any("1 of 3 tables does not have it" in sentence for sentence in done.dropped)
    assert not any("without a column" in sentence for sentence in done.changes)


def test_recomputed_statistics_are_exact_and_stay_so(v30, tmp_path):
    (v30 / "meta/stats.json").unlink()
    repair(v30, tmp_path / "out")
    repair(tmp_path / "out", tmp_path / "again")
    notes = [(tmp_path / name / "meta/demoreel.json").read_text() for name in ("out", "again")]
    assert json.loads(notes[0])["approximate_stats"] == {}
    assert notes[0] == notes[1]


def test_histograms_of_a_recording_survive(v30, tmp_path):
    """Without them, image statistics are approximate after the next cut."""
    demoreel.recompute_stats(v30)
    edit_info(v30, lambda info: info.update(total_frames=3))
    repair(v30, tmp_path / "out")
    demoreel.cut(tmp_path / "out").delete([1]).render(tmp_path / "cut")
    exact = json.loads((tmp_path / "cut/meta/demoreel.json").read_text())
    assert exact["approximate_stats"] == {}


# What is said


def test_a_task_without_text_is_said_to_have_none(tmp_path):
    root = make_dataset(tmp_path / "ds", episodes=(3, 3), cameras=0, tasks=("", "place"))
    done = repair(root, tmp_path / "out")
    assert [e.tasks for e in demoreel.open(tmp_path / "out").episodes] == [("task 0",), ("place",)]
    assert "task 0: had no text; its number is its text now" in done.changes
    assert not any("other tasks" in sentence for sentence in done.changes)
    assert done.dropped == ()
    require_settled(done, tmp_path)


def test_a_note_that_is_no_number_is_kept(dataset, tmp_path):
    edit_info(dataset, lambda info: info.update(note={"score": float("nan")}))
    done = repair(dataset, tmp_path / "out")
    assert (done.changes, done.dropped) == ((), ())
    require_settled(done, tmp_path)


@pytest.mark.parametrize("layout", ["v2.1", "v3.0"])
def test_a_matrix_stored_flat_gets_its_shape(tmp_path, layout):
    matrix = {"pose": {"dtype": "float32", "shape": [4, 4]}}
    root = make_dataset(tmp_path / "ds", episodes=(3,), cameras=0, features=matrix, layout=layout)
    before = items_of(root)
    flat = pa.list_(pa.float32())
    change(
        root,
        "pose",
        to=lambda a: pa.array(np.array(a.to_pylist()).reshape(len(a), 16).tolist(), flat),
    )
    assert demoreel.check(root).worst == "error"
    done = repair(root, tmp_path / "out")
    for one, two in zip(items_of(tmp_path / "out"), before, strict=True):
        assert np.array_equal(one["pose"], two["pose"])
    require_settled(done, tmp_path)


def test_images_that_only_a_path_stands_for_are_called_missing(pictured, tmp_path):
    def without_bytes(array: pa.Array) -> pa.Array:
        rows = [{"bytes": None, "path": f"images/{n}.png"} for n in range(len(array))]
        return pa.array(rows, array.type)

    change(pictured, FRONT, to=without_bytes)
    for to in ("v2.1", "v3.0"):
        with pytest.raises(PictureError, match="are missing from their table"):
            demoreel.convert(pictured, tmp_path / to, to=to)
    with pytest.raises(RepairError, match="are missing"):
        repair(pictured, tmp_path / "out")


# Nothing is left out unasked


def test_tasks_that_no_row_has_keep_their_numbers(v21, tmp_path):
    """Columns of other programs may refer to them."""
    path = v21 / "meta" / "tasks.jsonl"
    path.write_text(path.read_text() + json.dumps({"task_index": 2, "task": "valid"}) + "\n")
    edit_info(v21, lambda info: info.update(total_tasks=3))
    done = repair(v21, tmp_path / "out")
    assert demoreel.open(tmp_path / "out").tasks[2] == "valid"
    assert (done.changes, done.dropped) == ((), ())


def test_episodes_in_no_split_stay_in_none(dataset, tmp_path):
    edit_info(dataset, lambda info: info.update(splits={"train": "0:2"}))
    repair(dataset, tmp_path / "out")
    assert demoreel.open(tmp_path / "out").info.splits == {"train": "0:2"}


def test_a_card_beside_the_data_is_kept(dataset, tmp_path):
    (dataset / "README.md").write_text("# mine")
    (dataset / "notes" / "day").mkdir(parents=True)
    (dataset / "notes" / "day" / "1.txt").write_text("late")
    done = repair(dataset, tmp_path / "out")
    assert (tmp_path / "out/README.md").read_text() == "# mine"
    assert (tmp_path / "out/notes/day/1.txt").read_text() == "late"
    assert done.dropped == ()


@pytest.mark.parametrize("lacks", ["info", "chunks"])
def test_episodes_that_share_gops_are_found_by_what_the_metadata_say(tmp_path, lacks):
    root = tmp_path / "ds"
    # Not all episodes begin at a keyframe: only the metadata tell where they do.
    lengths = (5, 4, 6)  # in a video with a keyframe every other frame
    make_dataset(root, layout="v3.0", episodes=lengths, cameras={FRONT: (64, 64)})
    film(next(root.rglob("*.mp4")), sum(lengths))
    if lacks == "info":
        (root / "meta" / "info.json").unlink()
    else:
        edit_table(
            root / EPISODES,
            lambda table: table.drop_columns(
                [name for name in table.column_names if name.endswith("chunk_index")]
            ),
        )
    done = repair(root, tmp_path / "out")
    assert (done.episodes, done.lost) == (3, ())
    assert [e.length for e in demoreel.open(tmp_path / "out").episodes] == list(lengths)
    require_settled(done, tmp_path)


def test_tables_and_videos_that_are_not_there_are_both_named(v30, tmp_path):
    for path in (*(v30 / "data").rglob("*.parquet"), *v30.rglob("*.mp4")):
        path.unlink()
    with pytest.raises(RepairError, match="2 files are not there") as caught:
        repair(v30, tmp_path / "out")
    assert "demoreel pull" in caught.value.hint
