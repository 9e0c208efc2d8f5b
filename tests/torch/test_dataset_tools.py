"""Editing by lerobot's names: what they make, where it goes, and what they refuse."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
import torch

import demoreel
from demoreel.errors import ArgumentError, DatasetNotFoundError, TargetExistsError, UnknownKeyError
from demoreel.testing import make_dataset
from demoreel.torch import (
    LeRobotDataset,
    LeRobotLanceVideoDataset,
    add_features,
    aggregate_datasets,
    convert_image_to_video_dataset,
    delete_episodes,
    merge_datasets,
    modify_features,
    modify_tasks,
    recompute_stats,
    reencode_dataset,
    remove_feature,
    split_dataset,
)

CAMERA = "observation.images.cam0"
LENGTHS = [5, 7, 4, 6]
FRAMES = sum(LENGTHS)
REWARD = {"dtype": "float32", "shape": [1], "names": None}
BYTE = {"dtype": "int8", "shape": [1], "names": None}


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tools") / "kitchen"
    return make_dataset(folder, episodes=LENGTHS, gop=3, tasks=("pick", "place"), fps=10)


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_LEROBOT_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def dataset(path, home):
    return LeRobotDataset("me/kitchen", root=path)


def frames_of(dataset) -> list[tuple[int, int]]:
    """Which episode and frame of the source each item is, as its numbers say."""
    rows = dataset.reader.reader.rows(np.arange(len(dataset)), ["observation.state"])
    state = np.asarray(rows["observation.state"])
    return [(int(episode), int(frame)) for episode, frame in state[:, :2].tolist()]


def frames(*episodes: int) -> list[tuple[int, int]]:
    return [(episode, frame) for episode in episodes for frame in range(LENGTHS[episode])]


def tasks_by_episode(dataset) -> list[list[str]]:
    return dataset.meta.episodes["tasks"]


# ── Episodes ──────────────────────────────────────────────────────────────────────────────────────


def test_deleted_episodes_are_gone(dataset, home):
    made = delete_episodes(dataset, [1, 3])
    assert made.repo_id == "me/kitchen_modified"
    assert made.root == home / "me" / "kitchen_modified"
    assert frames_of(made) == frames(0, 2)
    assert torch.equal(made[5][CAMERA], dataset[12][CAMERA])
    assert dataset.num_episodes == 4
    with pytest.raises(TargetExistsError):
        delete_episodes(dataset, [1])


def test_the_result_is_opened_as_its_source_was(path, tmp_path):
    def doubled(image):
        return image * 2

    windows = {"action": [0.0, 0.1], CAMERA: [-0.1, 0.0]}
    dataset = LeRobotDataset(
        "me/kitchen",
        root=path,
        delta_timestamps=windows,
        image_transforms=doubled,
        tolerance_s=1e-3,
    )
    made = delete_episodes(dataset, [0], tmp_path / "out", "me/shorter")
    assert (made.repo_id, made.root) == ("me/shorter", tmp_path / "out")
    assert made.delta_timestamps == windows
    assert made.tolerance_s == 1e-3
    assert torch.equal(made[0][CAMERA], dataset[5][CAMERA])
    without = remove_feature(dataset, CAMERA, tmp_path / "blind")
    assert without.delta_timestamps == {"action": [0.0, 0.1]}
    assert CAMERA not in without[0]


@pytest.mark.parametrize("episodes", [[], [4], [-1], [0, 1, 2, 3]])
def test_what_cannot_be_deleted(dataset, tmp_path, episodes):
    with pytest.raises(ValueError, match=r"[Ee]pisode"):
        delete_episodes(dataset, episodes, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_splits_by_list_and_by_share(dataset, tmp_path, home):
    made = split_dataset(dataset, {"train": [2, 0], "val": np.array([3])}, tmp_path / "parts")
    assert {name: frames_of(part) for name, part in made.items()} == {
        "train": frames(0, 2),
        "val": frames(3),
    }
    assert made["val"].root == tmp_path / "parts" / "val"
    assert made["val"].repo_id == "me/kitchen_val"
    # As lerobot rounds: down, and the last takes what is left.
    shares = split_dataset(dataset, {"a": 0.3, "b": 0.3, "c": 0.3})
    assert [part.num_episodes for part in shares.values()] == [1, 1, 2]
    assert shares["c"].root == home / "me" / "kitchen_c"


@pytest.mark.parametrize(
    "splits",
    [
        {},
        {"a": []},
        {"a": [0], "b": [0]},
        {"a": [4]},
        {"a": 0.8, "b": 0.3},
        {"a": 0.1, "b": 0.9},
        {"a": 0.5, "b": [1]},
        {"..": [0]},
        {"a/b": [0]},
    ],
)
def test_what_cannot_be_split(dataset, tmp_path, splits):
    with pytest.raises(ArgumentError):
        split_dataset(dataset, splits, tmp_path / "parts")
    assert not (tmp_path / "parts").exists()


def test_no_part_is_written_where_one_is_there(dataset, tmp_path):
    (tmp_path / "b").mkdir()
    with pytest.raises(TargetExistsError):
        split_dataset(dataset, {"a": [0], "b": [1]}, tmp_path)
    assert not (tmp_path / "a").exists()


# ── Several datasets ──────────────────────────────────────────────────────────────────────────────


def test_merging_datasets_of_any_layout(dataset, path, tmp_path, home):
    demoreel.convert(path, tmp_path / "lance", to="lance-video")
    lance = LeRobotLanceVideoDataset("me/lance", root=tmp_path / "lance")
    made = merge_datasets([lance, dataset, path], "me/all")
    assert made.root == home / "me" / "all"
    assert frames_of(made) == frames(*range(4)) * 3
    assert torch.equal(made[FRAMES + 3][CAMERA], dataset[3][CAMERA])


def test_aggregating_by_name_and_by_folder(path, home, tmp_path):
    demoreel.cut(path).keep([0]).render(home / "me" / "one")
    demoreel.cut(path).keep([2]).render(home / "me" / "two")
    made = aggregate_datasets(["me/one", "me/two"], "me/both")
    assert made.root == home / "me" / "both"
    assert frames_of(made) == frames(0, 2)
    assert made.meta.chunks_size == 1000
    again = aggregate_datasets(
        ["a", "b"],
        "me/both",
        roots=[path, made.root],
        aggr_root=tmp_path / "out",
        chunk_size=7,
        data_files_size_in_mb=3,
        video_files_size_in_mb=4,
    )
    assert frames_of(again) == frames(0, 1, 2, 3, 0, 2)
    sizes = (again.meta.chunks_size, again.meta.data_files_size_in_mb)
    assert (*sizes, again.meta.video_files_size_in_mb) == (7, 3, 4)


def test_encoder_settings_that_differ_are_null(path, tmp_path, home, caplog):
    roots = [shutil.copytree(path, tmp_path / name) for name in ("fine", "coarse")]
    stated = {"video.g": 2, "video.crf": 30, "video.extra_options": {"tune": "film"}}
    for number, root in enumerate(roots):
        info = json.loads((root / "meta" / "info.json").read_text())
        said = info["features"][CAMERA].setdefault("info", {})
        said |= stated | ({"video.crf": 23, "video.extra_options": {}} if number else {})
        (root / "meta" / "info.json").write_text(json.dumps(info))
    merged = aggregate_datasets(["me/fine", "me/coarse"], "me/both", roots=roots)
    assert f"{CAMERA}: video.crf, video.extra_options" in caplog.text
    said = merged.meta.features[CAMERA]["info"]
    assert [said[name] for name in stated] == [2, None, {}]
    assert frames_of(merged) == frames(0, 1, 2, 3) * 2
    assert demoreel.check(merged.root).by_severity()["error"] == 0
    more = LeRobotDataset.resume("me/both", root=merged.root)
    more.finalize()


def test_what_cannot_be_merged(dataset, path, home):
    with pytest.raises(ArgumentError, match="No datasets to merge"):
        merge_datasets([], "me/all")
    with pytest.raises(ArgumentError, match="2 repo_ids and 1 roots"):
        aggregate_datasets(["a", "b"], "me/all", roots=[path])
    with pytest.raises(DatasetNotFoundError):
        aggregate_datasets(["me/nobody"], "me/all")
    with pytest.raises(ArgumentError, match="repo_id"):
        merge_datasets([dataset], "../elsewhere")
    assert not home.exists()


# ── Features ──────────────────────────────────────────────────────────────────────────────────────


def test_features_from_arrays_tensors_and_functions(dataset, tmp_path):
    reward = np.linspace(0, 1, FRAMES)
    goal = torch.arange(2 * FRAMES).reshape(FRAMES, 2)

    def progress(row, episode, frame):
        assert row["frame_index"] == frame
        assert row["episode_index"] == episode
        return np.array([frame / LENGTHS[episode]])

    made = modify_features(
        dataset,
        add_features={
            "reward": (reward, REWARD),
            "goal": (goal, {"dtype": "int64", "shape": (2,), "names": ["x", "y"]}),
            "progress": (progress, REWARD),
            "sum": (lambda row, *_: row["action"][:2] + 1, {"dtype": "float32", "shape": (2,)}),
        },
        remove_features="observation.state",
        output_dir=tmp_path / "out",
    )
    assert "observation.state" not in made.features
    assert made.features["reward"]["dtype"] == "float32"
    assert made.features["goal"]["names"] == ["x", "y"]
    item = made[8]
    assert item["reward"] == torch.tensor(np.float32(reward[8]))
    assert item["goal"].tolist() == [16, 17]
    assert item["progress"] == pytest.approx(3 / 7)
    assert item["sum"].tolist() == [0, -2]
    assert made.meta.stats["goal"]["max"].tolist() == [2 * FRAMES - 2, 2 * FRAMES - 1]
    assert torch.equal(item[CAMERA], dataset[8][CAMERA])


def test_adding_and_removing_by_their_short_names(dataset, tmp_path):
    more = add_features(dataset, {"reward": (np.ones(FRAMES), REWARD)}, tmp_path / "more")
    less = remove_feature(more, ["reward", "action"], tmp_path / "less")
    assert set(more.features) - set(less.features) == {"reward", "action"}
    assert frames_of(less) == frames_of(dataset)


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({}, ArgumentError),
        ({"remove_features": "nothing"}, UnknownKeyError),
        ({"remove_features": ["timestamp"]}, ArgumentError),
        ({"add_features": {"action": (np.ones(FRAMES), REWARD)}}, ArgumentError),
        ({"add_features": {"x": (np.ones(3), REWARD)}}, ArgumentError),
        ({"add_features": {"x": (np.full(FRAMES, 300), BYTE)}}, ArgumentError),
        ({"add_features": {"x": (np.full(FRAMES, 0.5), BYTE)}}, ArgumentError),
        ({"add_features": {"x": (np.full(FRAMES, 1e39), REWARD)}}, ArgumentError),
        ({"add_features": {"x": (lambda *_: 300, BYTE)}}, ArgumentError),
        ({"add_features": {"x": (lambda *_: float("nan"), BYTE)}}, ArgumentError),
        ({"add_features": {"x": (np.ones((FRAMES, 2)), REWARD)}}, ArgumentError),
        ({"add_features": {"x": (np.ones(FRAMES), {"dtype": "float32"})}}, ArgumentError),
        ({"add_features": {"x": (["a"], {"dtype": "string", "shape": [1]})}}, ArgumentError),
        ({"add_features": {"x": (lambda *_: np.ones(2), REWARD)}}, ArgumentError),
    ],
)
def test_what_cannot_be_modified(dataset, tmp_path, change, error):
    with pytest.raises(error):
        modify_features(dataset, output_dir=tmp_path / "out", **change)
    assert not (tmp_path / "out").exists()


# ── Tasks ─────────────────────────────────────────────────────────────────────────────────────────


def test_tasks_by_precedence(dataset, tmp_path):
    made = modify_tasks(
        dataset,
        new_task="other",
        episode_tasks={2: "special"},
        task_replacements={"pick": "take"},
        output_dir=tmp_path / "out",
    )
    assert tasks_by_episode(dataset) == [["pick"], ["place"], ["pick"], ["place"]]
    assert tasks_by_episode(made) == [["take"], ["other"], ["special"], ["other"]]
    assert made[0]["task"] == "take"
    assert made[LENGTHS[0]]["task"] == "other"
    one = modify_tasks(dataset, "the same", output_dir=tmp_path / "one")
    assert tasks_by_episode(one) == [["the same"]] * 4
    assert one.meta.total_tasks == 1


def copied(path, tmp_path, name="own"):
    return LeRobotDataset("me/own", root=shutil.copytree(path, tmp_path / name))


def test_tasks_in_place(path, home, tmp_path):
    ds = copied(path, tmp_path)
    meta, videos = ds.meta, sorted((ds.root / "videos").rglob("*.mp4"))
    before = [(file, file.stat().st_mtime_ns) for file in videos]
    assert modify_tasks(ds, episode_tasks={0: "zip", 2: "about"}) is ds
    assert ds.meta is meta
    assert list(meta.tasks.index) == ["about", "place", "zip"]
    assert tasks_by_episode(ds) == [["zip"], ["place"], ["about"], ["place"]]
    assert [int(ds[n]["task_index"]) for n in (0, 5, 12, 16)] == [2, 1, 0, 1]
    assert [ds[n]["task"] for n in (0, 5, 12, 16)] == ["zip", "place", "about", "place"]
    assert [(file, file.stat().st_mtime_ns) for file in videos] == before
    modify_tasks(ds, task_replacements={"place": "put"})
    assert meta.total_tasks == 3
    known = {finding.code for finding in demoreel.check(path).findings}
    assert {finding.code for finding in demoreel.check(ds.root).findings} <= known
    again = LeRobotDataset("me/own", root=ds.root)
    assert tasks_by_episode(again) == [["zip"], ["put"], ["about"], ["put"]]
    assert float(again.meta.stats["task_index"]["max"][0]) == 2
    assert frames_of(again) == frames_of(LeRobotDataset("me/kitchen", root=path))


@pytest.mark.parametrize("layout", ["v2.1", "lance-video"])
def test_tasks_in_place_in_other_layouts(path, home, tmp_path, layout):
    demoreel.convert(path, tmp_path / "own", to=layout)
    ds = LeRobotDataset("me/own", root=tmp_path / "own")
    assert modify_tasks(ds, new_task="one") is ds
    assert tasks_by_episode(ds) == [["one"]] * 4
    assert ds.reader.layout == layout
    assert ds[9]["task"] == "one"


def test_videos_in_another_codec_in_place(path, home, tmp_path):
    ds = copied(path, tmp_path)
    assert reencode_dataset(ds, "h264") is ds
    assert ds.features[CAMERA]["info"]["video.codec"] == "h264"
    assert frames_of(ds) == frames_of(LeRobotDataset("me/kitchen", root=path))
    assert ds[9][CAMERA].shape == LeRobotDataset("me/kitchen", root=path)[9][CAMERA].shape
    assert [place.name for place in tmp_path.iterdir()] == ["own"]  # nothing is left of the old one


def test_a_dataset_that_was_moved_aside(path, home, tmp_path):
    """As lerobot-edit-dataset does it: the result takes the old place."""
    ds = copied(path, tmp_path)
    shutil.move(ds.root, tmp_path / "own_old")
    ds.root = tmp_path / "own_old"
    made = delete_episodes(ds, [0], output_dir=tmp_path / "own", repo_id="me/own")
    assert made.num_episodes == 3
    assert LeRobotDataset("me/own", root=tmp_path / "own_old").num_episodes == 4


def test_what_datasets_say_differently_of_their_encoder(path, home, tmp_path, caplog):
    other = shutil.copytree(path, tmp_path / "other")
    info = json.loads((other / "meta" / "info.json").read_text())
    said = info["features"][CAMERA]["info"]
    said |= {"video.crf": 99, "video.extra_options": {"tune": "film"}}
    (other / "meta" / "info.json").write_text(json.dumps(info))
    made = aggregate_datasets(["a", "b"], "me/all", roots=[path, other])
    assert "heterogeneous" in caplog.text
    kept = LeRobotDataset("me/kitchen", root=path).features[CAMERA]["info"]
    now = made.features[CAMERA]["info"]
    assert (now["video.crf"], now["video.extra_options"]) == (None, {})
    assert now["video.codec"] == kept["video.codec"]


def test_files_of_sources_stay_apart(path, home, tmp_path):
    other = shutil.copytree(path, tmp_path / "other")
    apart = merge_datasets([path, other], "me/apart", concatenate_videos=False)
    assert len(list((apart.root / "videos" / CAMERA).rglob("*.mp4"))) == 2
    assert len(list((apart.root / "data").rglob("*.parquet"))) == 1
    tables = merge_datasets([path, other], "me/tables", concatenate_data=False)
    assert len(list((tables.root / "data").rglob("*.parquet"))) == 2
    assert len(list((tables.root / "videos" / CAMERA).rglob("*.mp4"))) == 1
    assert frames_of(tables) == frames_of(apart)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda ds: delete_episodes(ds, []), "No episodes to delete"),
        (lambda ds: delete_episodes(ds, [10, 20]), r"Invalid episode indices: \[10, 20\]"),
        (lambda ds: delete_episodes(ds, [0, 1, 2, 3]), "Cannot delete all episodes"),
        (lambda ds: split_dataset(ds, {}), "No splits provided"),
        (lambda ds: split_dataset(ds, {"a": [0], "b": [0]}), "cannot appear in multiple splits"),
        (lambda ds: split_dataset(ds, {"a": 0.7, "b": 0.5}), "must sum to <= 1.0"),
        (lambda ds: split_dataset(ds, {"a": [9]}), "Invalid episode indices"),
        (lambda ds: modify_features(ds), "Must specify at least one of add_features"),
        (lambda ds: remove_feature(ds, "nothing"), "Feature 'nothing' not found"),
        (lambda ds: remove_feature(ds, "timestamp"), "Cannot remove required features"),
        (lambda ds: add_features(ds, {}), "No features provided"),
        (lambda ds: add_features(ds, {"r": (np.zeros(FRAMES), {"dtype": "x"})}), "feature_info"),
        (
            lambda ds: add_features(ds, {"action": (np.zeros(FRAMES), REWARD)}),
            "Feature 'action' already exists",
        ),
        (lambda ds: modify_tasks(ds), "Must specify at least one of new_task"),
        (lambda ds: modify_tasks(ds, episode_tasks={9: "x"}), "Invalid episode indices"),
        (lambda ds: reencode_dataset(ds), "Either rgb_encoder or depth_encoder"),
    ],
)
def test_refusals_have_the_words_that_scripts_know(dataset, call, words):
    with pytest.raises(ValueError, match=words):
        call(dataset)


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"new_task": ""},
        {"episode_tasks": {4: "x"}},
        {"task_replacements": {"nothing": "x"}},
        {"new_task": "x", "episode_tasks": {9: "y"}},
    ],
)
def test_what_is_no_task(dataset, tmp_path, change):
    with pytest.raises(ArgumentError):
        modify_tasks(dataset, output_dir=tmp_path / "out", **change)
    assert not (tmp_path / "out").exists()


# ── Which dataset ─────────────────────────────────────────────────────────────────────────────────


def test_a_folder_and_a_name_are_datasets_too(path, home, tmp_path):
    assert delete_episodes(path, [0]).root == home / "kitchen_modified"
    demoreel.cut(path).render(home / "me" / "named")
    made = delete_episodes("me/named", [0], tmp_path / "out")
    assert made.repo_id == "me/named_modified"
    with pytest.raises(DatasetNotFoundError):
        delete_episodes("me/nobody", [0])


def test_some_episodes_are_not_a_dataset(path, home):
    some = LeRobotDataset("me/kitchen", root=path, episodes=[0, 1])
    with pytest.raises(ArgumentError, match="episodes="):
        delete_episodes(some, [0])


def test_a_dataset_that_is_being_recorded(tmp_path):
    recording = LeRobotDataset.create(
        "me/new", 10, {"action": {"dtype": "float32", "shape": (2,)}}, root=tmp_path / "new"
    )
    with pytest.raises(ArgumentError, match="recorded"):
        delete_episodes(recording, [0])
    recording.finalize()


# ── Images ──────────────────────────────────────────────────────────────────────────────────────


class LikeLeRobots:
    """As much of lerobot's encoder settings as matters."""

    vcodec = "libx264"
    pix_fmt = "yuv420p"
    g = 5
    crf = 20.0
    preset = "ultrafast"
    extra_options: dict[str, str] = {}  # noqa: RUF012


def test_images_become_videos(tmp_path, home):
    path = make_dataset(
        tmp_path / "pictures",
        episodes=[6, 4],
        cameras={},
        image_cameras={"observation.images.front": (64, 96)},
    )
    dataset = LeRobotDataset("me/pictures", root=path)
    made = convert_image_to_video_dataset(dataset, rgb_encoder=LikeLeRobots())
    assert made.repo_id == "me/pictures_video"
    assert made.root == home / "me" / "pictures_video"
    assert made.meta.video_keys == ["observation.images.front"]
    details = made.features["observation.images.front"]["info"]
    assert (details["video.codec"], details["video.g"], details["video.crf"]) == ("h264", 5, 20)
    assert len(made) == 10
    for index in (0, 7, 9):
        near = made[index]["observation.images.front"] - dataset[index]["observation.images.front"]
        assert near.abs().mean() < 0.05
    some = convert_image_to_video_dataset(
        dataset, tmp_path / "some", "me/some", rgb_encoder="h264", episode_indices=[1]
    )
    assert len(some) == 4
    with pytest.raises(ArgumentError, match="image datasets only"):
        convert_image_to_video_dataset(made, tmp_path / "again")


def test_no_preset_is_noted_as_none(dataset, tmp_path):
    encoder = LikeLeRobots()
    encoder.preset = None
    made = reencode_dataset(dataset, encoder, output_dir=tmp_path / "out")
    assert made.features[CAMERA]["info"]["video.preset"] is None


def test_videos_in_another_codec(dataset, tmp_path):
    made = reencode_dataset(dataset, LikeLeRobots(), num_workers=2, output_dir=tmp_path / "out")
    assert made.features[CAMERA]["info"]["video.g"] == 5
    assert frames_of(made) == frames_of(dataset)
    assert (made[9][CAMERA] - dataset[9][CAMERA]).abs().mean() < 0.05


@pytest.mark.parametrize(
    ("vcodec", "fast", "options", "noted"),
    [
        ("h264", 0, {"tune": "film", "profile:v": "high", "bf": 2}, {"tune": "film"}),
        ("libsvtav1", 1, {"svtav1-params": "tune=0"}, {"svtav1-params": "tune=0:fast-decode=1"}),
        ("hevc", 1, {}, {"tune": "fastdecode"}),
    ],
)
def test_options_of_the_encoder(dataset, tmp_path, vcodec, fast, options, noted):
    encoder = LikeLeRobots()
    encoder.vcodec, encoder.preset = vcodec, None
    encoder.fast_decode, encoder.extra_options = fast, options
    made = reencode_dataset(dataset, encoder, output_dir=tmp_path / "out")
    info = made.features[CAMERA]["info"]
    assert info["video.extra_options"].items() >= noted.items()
    assert info["video.fast_decode"] == fast
    assert frames_of(made) == frames_of(dataset)
    assert (made[9][CAMERA] - dataset[9][CAMERA]).abs().mean() < 0.05


@pytest.mark.parametrize(
    "encoders",
    [{}, {"rgb_encoder": "nothing"}, {"depth_encoder": LikeLeRobots()}],
)
def test_what_cannot_be_encoded(dataset, tmp_path, encoders):
    with pytest.raises(ArgumentError):
        reencode_dataset(dataset, output_dir=tmp_path / "out", **encoders)
    assert not (tmp_path / "out").exists()


def spoiled(path):
    """Write statistics that are wrong."""
    stats = json.loads((path / "meta" / "stats.json").read_text())
    stats["action"]["mean"] = [7.0] * 6
    stats[CAMERA]["mean"] = [[[0.5]]] * 3
    (path / "meta" / "stats.json").write_text(json.dumps(stats))


def test_statistics_in_place_and_in_a_copy(path, tmp_path, dataset):
    copied = shutil.copytree(path, tmp_path / "copied")
    spoiled(copied)
    wrong = LeRobotDataset("me/wrong", root=copied)
    assert wrong.meta.stats["action"]["mean"][0] == 7
    right = dataset.meta.stats["action"]["mean"]

    made = recompute_stats(wrong, output_dir=tmp_path / "made")
    assert made.meta.stats["action"]["mean"] == pytest.approx(right)
    assert wrong.meta.stats["action"]["mean"][0] == 7

    assert recompute_stats(wrong) is wrong
    assert wrong.meta.stats["action"]["mean"] == pytest.approx(right)
    assert wrong.meta.stats[CAMERA]["mean"].flat[0] == 0.5
    again = recompute_stats(copied, skip_image_video=False)
    assert again.root == copied
    wanted = dataset.meta.stats[CAMERA]["mean"]
    assert again.meta.stats[CAMERA]["mean"] == pytest.approx(wanted, abs=0.02)
    with pytest.raises(ArgumentError, match="relative"):
        recompute_stats(wrong, relative_action=True)
