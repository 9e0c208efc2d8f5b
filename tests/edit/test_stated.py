"""What sources state and is still true stays; what does not is said."""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import demoreel
from demoreel.cli import main
from demoreel.edit.target_info import merged_splits
from demoreel.errors import ArgumentError
from demoreel.testing import make_dataset
from support.defects.tools import EPISODES, TASKS, edit_info, edit_json, edit_table

CAMERA = "observation.images.cam0"


def info_of(root: Path) -> dict:
    return json.loads((root / "meta" / "info.json").read_text())


def stats_of(root: Path) -> dict:
    return json.loads((root / "meta" / "stats.json").read_text())


def episodes_of(root: Path) -> pa.Table:
    return pq.read_table(root / EPISODES)


def without_counts(root: Path, *, lance: bool = False) -> None:
    """Leave what is said of images to stats.json alone, and in v2.0's form: without a count."""
    shutil.rmtree(root / "meta" / "demoreel", ignore_errors=True)
    edit_table(
        root / EPISODES,
        lambda table: table.select(
            [n for n in table.column_names if not n.startswith(f"stats/{CAMERA}/")]
        ),
    )
    edit_json(root / "meta" / "stats.json", lambda stats: stats[CAMERA].pop("count"))


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("stated")
    return {
        layout: make_dataset(
            folder / layout, episodes=[6, 5, 7, 4], cameras={CAMERA: (32, 32)}, layout=layout, gop=2
        )
        for layout in ("v3.0", "v2.1", "v2.0")
    }


@pytest.fixture
def source(base, tmp_path) -> Path:
    return Path(shutil.copytree(base["v3.0"], tmp_path / "source"))


def with_splits(root: Path, **splits: str) -> Path:
    edit_info(root, lambda info: info.update(splits=splits))
    return root


# Splits


def test_merged_splits_do_not_collapse(source, tmp_path):
    with_splits(source, train="0:3", val="3:4")
    other = with_splits(Path(shutil.copytree(source, tmp_path / "other")), val="0:4")
    done = demoreel.cut(source).merge(other).render(tmp_path / "new")
    assert info_of(tmp_path / "new")["splits"] == {"train": "0:3", "val": "3:8"}
    assert done.dropped == ()


def test_many_splits_take_no_time_each():
    """A stranger's info.json may name fifty thousand: to look for names among all took minutes."""
    stated = {f"s{number}": "0:3" for number in range(20_000)}
    began, kept = time.process_time(), np.array([0, 9, 2])
    found = merged_splits([stated], np.zeros(3, int), kept, unchanged=False, dropped=[])
    assert len(found) == 2 * len(stated)  # each became two ranges
    assert time.process_time() - began < 5


def test_a_split_of_two_ranges_becomes_two_and_is_said(source, tmp_path):
    with_splits(source, train="0:3", val="3:4")
    done = demoreel.cut(source).merge(source).render(tmp_path / "new")
    assert info_of(tmp_path / "new")["splits"] == {
        "train": "0:3", "train_2": "4:7", "val": "3:4", "val_2": "7:8",
    }  # fmt: skip
    assert any("'train'" in what for what in done.dropped)
    column = episodes_of(tmp_path / "new").column("split").to_pylist()
    assert column == ["train", "train", "train", "val"] * 2


@pytest.mark.parametrize("layout", ["v3.0", "v2.1", "lance-video"])
def test_episodes_keep_their_splits(source, tmp_path, layout):
    with_splits(source, train="0:2", val="2:3", test="3:4")
    cut = demoreel.cut(source).delete([0, 3]).trim(2, 2)
    done = cut.render(tmp_path / "new", layout=layout)
    assert info_of(tmp_path / "new")["splits"] == {"train": "0:1", "val": "1:2"}
    assert any("'test'" in what for what in done.dropped)


def test_many_ranges_are_left_to_a_column(tmp_path):
    root = make_dataset(tmp_path / "source", episodes=20, length=2, cameras=0)
    with_splits(root, train="0:10", val="10:20")
    order = [number for pair in zip(range(10), range(10, 20), strict=True) for number in pair]
    done = demoreel.cut(root).keep(order).render(tmp_path / "new")
    assert info_of(tmp_path / "new")["splits"] == {}  # one of all would mix them
    assert sum("ranges" in what for what in done.dropped) == 2
    assert episodes_of(tmp_path / "new").column("split").to_pylist() == ["train", "val"] * 10


def test_splits_that_overlap_or_are_no_ranges(source, tmp_path):
    with_splits(source, train="0:4", demo="0:2", half="50%")
    demoreel.cut(source).remove("action").render(tmp_path / "same")
    assert info_of(tmp_path / "same")["splits"] == {"train": "0:4", "demo": "0:2", "half": "50%"}
    done = demoreel.cut(source).delete([0]).render(tmp_path / "less")
    assert info_of(tmp_path / "less")["splits"] == {"train": "0:3", "demo": "0:1"}
    assert any("'half'" in what for what in done.dropped)


def test_episodes_of_no_split_or_another_do_not_become_train(source, tmp_path):
    with_splits(source, train=":2", val="2:3")
    done = demoreel.cut(source).keep([3]).render(tmp_path / "neither")
    assert info_of(tmp_path / "neither")["splits"] == {}
    assert sum("no episode is left" in what for what in done.dropped) == 2
    demoreel.cut(source).delete([0]).render(tmp_path / "open")
    assert info_of(tmp_path / "open")["splits"] == {"train": "0:1", "val": "1:2"}
    with_splits(source, train=[0, 1], val=[2, 3])
    done = demoreel.cut(source).delete([0]).render(tmp_path / "listed")
    assert info_of(tmp_path / "listed")["splits"] == {}
    assert sum("no range" in what for what in done.dropped) == 2


# Statistics


@pytest.mark.parametrize("layout", ["v3.0", "v2.1", "lance-video"])
def test_statistics_of_images_that_only_the_whole_has(source, tmp_path, layout):
    without_counts(source)
    before = demoreel.open(source).stats[CAMERA]
    done = demoreel.cut(source).delete([1]).render(tmp_path / "new", layout=layout)
    after = demoreel.open(tmp_path / "new").stats
    assert after[CAMERA]["mean"].tolist() == before["mean"].tolist()
    assert after["action"]["count"].tolist() == [17]
    assert any(CAMERA in what and "approximate" in what for what in done.dropped)
    if layout != "v2.1":  # where lerobot does not look into stats.json
        assert demoreel.check(tmp_path / "new").worst in (None, "hint")


def test_statistics_of_v2_0_stay(base, tmp_path):
    before = demoreel.open(base["v2.0"]).stats[CAMERA]
    done = demoreel.cut(base["v2.0"]).delete([1]).render(tmp_path / "new", layout="v2.1")
    assert demoreel.open(tmp_path / "new").stats[CAMERA]["mean"].tolist() == before["mean"].tolist()
    assert any(CAMERA in what for what in done.dropped)


def test_merging_with_a_dataset_that_does_not_say_is_said(source, tmp_path):
    other = Path(shutil.copytree(source, tmp_path / "other"))
    without_counts(source)
    edit_json(source / "meta" / "stats.json", lambda stats: stats.pop(CAMERA))
    done = demoreel.cut(source).merge(other).render(tmp_path / "new")
    assert CAMERA not in stats_of(tmp_path / "new")
    assert any(CAMERA in what for what in done.dropped)


def test_other_statistics_stay_while_they_are_true(source, tmp_path):
    own = {"velocity": {"mean": [1.0]}}
    edit_json(source / "meta" / "stats.json", lambda stats: stats.update(own))
    more = {"median": [0.5] * 2}
    edit_json(source / "meta" / "stats.json", lambda stats: stats["action"].update(more))
    edit_table(
        source / EPISODES,
        lambda t: t.append_column("stats/action/median", pa.array([[float(n)] for n in range(4)])),
    )
    demoreel.cut(source).rename({"action": "act"}).render(tmp_path / "same")
    assert stats_of(tmp_path / "same")["velocity"] == own["velocity"]
    assert stats_of(tmp_path / "same")["act"]["median"] == more["median"]
    done = demoreel.cut(source).delete([1]).render(tmp_path / "less")
    assert "velocity" not in stats_of(tmp_path / "less")
    assert sum("velocity" in what or "median" in what for what in done.dropped) == 2
    kept = episodes_of(tmp_path / "less").column("stats/action/median").to_pylist()
    assert kept == [[0.0], [2.0], [3.0]]
    done = demoreel.cut(source).trim(0, 1).render(tmp_path / "shorter")
    assert any("stats/action/median" in what for what in done.dropped)


# Keys, columns, files


def test_keys_of_info_of_all_sources(source, tmp_path):
    other = Path(shutil.copytree(source, tmp_path / "other"))
    edit_info(source, lambda info: info.update(license="mit", station="a"))
    edit_info(other, lambda info: info.update(operator="eve", station="b"))
    done = demoreel.cut(source).merge(other).render(tmp_path / "new")
    said = info_of(tmp_path / "new")
    assert (said["license"], said["operator"], said["station"]) == ("mit", "eve", "a")
    assert [what for what in done.dropped if "station" in what]


def test_what_is_said_of_a_camera_stays(base, tmp_path):
    root = Path(shutil.copytree(base["v2.1"], tmp_path / "old"))

    def both(info):
        info["features"][CAMERA]["video_info"] = {"lens": "wide"}
        info["features"][CAMERA]["mount"] = "wrist"
        info["features"][CAMERA]["info"]["exposure"] = 8

    edit_info(root, both)
    demoreel.convert(root, tmp_path / "new", to="v3.0")
    camera = info_of(tmp_path / "new")["features"][CAMERA]
    assert camera["mount"] == "wrist"
    assert camera["info"]["lens"] == "wide"
    assert camera["info"]["exposure"] == 8


@pytest.mark.parametrize("to", ["v3.0", "v2.1", "lance-video"])
def test_columns_of_tasks_and_episodes_stay(base, tmp_path, to):
    root = Path(shutil.copytree(base["v3.0"], tmp_path / "source"))
    count = len(pq.read_table(root / TASKS))
    edit_table(root / TASKS, lambda t: t.append_column("difficulty", pa.array([7] * count)))
    labels = ["a", "b", "c", "d"]
    for name in ("label", "data/quality", "meta/operator"):
        edit_table(root / EPISODES, lambda t, n=name: t.append_column(n, pa.array(labels)))
    demoreel.cut(root).delete([0]).render(tmp_path / "new", layout=to)
    if to == "v2.1":
        lines = (tmp_path / "new/meta/episodes.jsonl").read_text().splitlines()
        assert [json.loads(line)["label"] for line in lines] == labels[1:]
        assert json.loads((tmp_path / "new/meta/tasks.jsonl").read_text().splitlines()[0])[
            "difficulty"
        ] == 7  # fmt: skip
        return
    for name in ("label", "data/quality", "meta/operator"):
        assert episodes_of(tmp_path / "new").column(name).to_pylist() == labels[1:]
    tasks = pq.read_table(tmp_path / "new" / TASKS)
    assert set(tasks.column("difficulty").to_pylist()) == {7}
    assert demoreel.check(tmp_path / "new").worst in (None, "hint")
    pandas = pytest.importorskip("pandas")
    frame = pandas.read_parquet(tmp_path / "new" / TASKS)
    assert frame.index.name == "task"
    assert list(frame.columns) == ["task_index", "difficulty"]


def test_columns_of_different_types_are_said(source, tmp_path):
    other = Path(shutil.copytree(source, tmp_path / "other"))
    edit_table(source / EPISODES, lambda t: t.append_column("label", pa.array(["a"] * 4)))
    edit_table(other / EPISODES, lambda t: t.append_column("label", pa.array([[1]] * 4)))
    done = demoreel.cut(source).merge(other).render(tmp_path / "new")
    assert any("label" in what for what in done.dropped)


def test_other_files_stay_or_are_said(source, tmp_path):
    (source / "README.md").write_text("about it")
    (source / "meta" / "notes.json").write_text("{}")
    (source / "meta" / "modality.json").write_text('{"state": 1}')
    done = demoreel.cut(source).render(tmp_path / "same")
    assert (tmp_path / "same/meta/notes.json").read_text() == "{}"
    assert [what.split(":")[0] for what in done.dropped] == ["README.md"]
    done = demoreel.cut(source).delete([0]).render(tmp_path / "less")
    assert not (tmp_path / "less/meta/notes.json").exists()
    assert (tmp_path / "less/meta/modality.json").exists()
    said = {what.split(":")[0] for what in done.dropped}
    assert said == {"README.md", "meta/notes.json"}
    report = demoreel.convert(source, tmp_path / "v21", to="v2.1")
    assert (tmp_path / "v21/meta/notes.json").exists()
    assert any("README.md" in what for what in report.dropped)
    secret = tmp_path / "secret"
    secret.write_text("secret")
    (source / "meta" / "leak.txt").symlink_to(secret)
    with pytest.raises(ArgumentError, match="leads out"):
        demoreel.cut(source).render(tmp_path / "leaked")
    assert not (tmp_path / "leaked").exists()


def test_an_edit_in_place_says_what_it_leaves_out(source, tmp_path):
    (source / "meta" / "notes.json").write_text("{}")
    demoreel.convert(source, tmp_path / "lance", to="lance-video")
    done = demoreel.cut(tmp_path / "lance").delete([1]).render_in_place()
    assert any("meta/notes.json" in what for what in done.dropped)


def test_the_command_says_it(source, tmp_path, capsys):
    without_counts(source)
    (source / "README.md").write_text("about it")
    assert main(["cut", "delete", str(source), str(tmp_path / "a"), "-e", "0"]) == 0
    said = capsys.readouterr()
    assert "dropped: README.md" in said.err
    assert f"{CAMERA}" in said.err
    assert "dropped" not in said.out
    assert main(["convert", str(source), str(tmp_path / "b"), "--to", "lance-video", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["dropped"] == [
        "README.md: it is beside the dataset's own files"
    ]


# Repair


@pytest.mark.parametrize("layout", ["v3.0", "v2.1"])
def test_repair_keeps_what_is_stated(base, tmp_path, layout):
    root = Path(shutil.copytree(base[layout], tmp_path / "source"))
    with_splits(root, train="0:3", val="3:4")
    edit_info(root, lambda info: info.update(total_frames=1, license="mit"))
    (root / "meta" / "notes.json").write_text("{}")
    labels = ["a", "b", "c", "d"]
    if layout == "v3.0":
        edit_table(root / EPISODES, lambda t: t.append_column("label", pa.array(labels)))
    else:
        path = root / "meta" / "episodes.jsonl"
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        path.write_text(
            "".join(
                json.dumps({**r, "label": x}) + "\n" for r, x in zip(lines, labels, strict=True)
            )
        )
    done = demoreel.repair(root, tmp_path / "new")
    assert done.dropped == ()
    said = info_of(tmp_path / "new")
    assert said["splits"] == {"train": "0:3", "val": "3:4"}
    assert said["license"] == "mit"
    assert (tmp_path / "new/meta/notes.json").exists()
    if layout == "v3.0":
        assert episodes_of(tmp_path / "new").column("label").to_pylist() == labels
    else:
        episodes = demoreel.open(tmp_path / "new").episodes
        assert [episode.extra["label"] for episode in episodes] == labels


def test_repair_keeps_the_splits_of_what_is_left(base, tmp_path):
    root = Path(shutil.copytree(base["v2.1"], tmp_path / "source"))
    with_splits(root, train="0:3", val="3:4")
    (root / "meta" / "notes.json").write_text("{}")
    sorted(root.rglob("episode_000001.mp4"))[0].write_bytes(b"")
    done = demoreel.repair(root, tmp_path / "new", drop_episodes=True)
    assert info_of(tmp_path / "new")["splits"] == {"train": "0:2", "val": "2:3"}
    assert any("meta/notes.json" in what for what in done.dropped)
