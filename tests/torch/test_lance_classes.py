"""The two classes for Lance datasets: their items, their arguments, what they refuse."""

from __future__ import annotations

import copy
import inspect
import multiprocessing
import pickle
import shutil
import subprocess
import sys

import pytest
import torch
from torch.utils.data import DataLoader

from demoreel.errors import ArgumentError, DatasetNotFoundError, OutOfRangeError
from demoreel.torch import LeRobotDataset, LeRobotLanceDataset, LeRobotLanceVideoDataset

from ..conftest import assert_same

pytestmark = [
    pytest.mark.filterwarnings("ignore:decode_device='auto'"),
    pytest.mark.filterwarnings("ignore:lance is not fork-safe"),
]

CAMERA = "observation.images.cam_high"
VIDEO_LAYOUTS = ["g1_lance_video", "g1_lance_native"]
WINDOWS = {CAMERA: [-2 / 30, 0.0], "action": [0.0, 1 / 30, 2 / 30]}
LAYOUTS = [*VIDEO_LAYOUTS, "kitchen_lance_frames"]


def opened(root, **options):
    kind = LeRobotLanceDataset if "frames" in root.name else LeRobotLanceVideoDataset
    return kind(root=root, **options)


# Items


@pytest.mark.parametrize("name", VIDEO_LAYOUTS)
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"return_uint8": True, "delta_timestamps": WINDOWS},
        {"return_uint8": True, "episodes": [3, 1]},
        {"return_uint8": True, "episode_filter": lambda row: row["length"] > 260},
        {"image_transforms": lambda image: image[..., :2, :2]},
    ],
    ids=["floats", "windows", "episodes", "filtered", "transformed"],
)
def test_videos_give_the_items_of_their_source(fixtures, name, options):
    source = LeRobotDataset("me/g1", root=fixtures / "g1_v30", **options)
    ours = LeRobotLanceVideoDataset(root=fixtures / name, **options)
    assert len(ours) == len(source) == ours.num_frames
    assert ours.num_episodes == source.num_episodes
    assert ours.features == source.features
    assert list(ours.meta.tasks.index) == list(source.meta.tasks.index)
    indices = [0, 7, 7, len(source) - 1, -3, 300]
    for item, wanted in zip(ours.__getitems__(indices), source.__getitems__(indices), strict=True):
        assert_same(item, wanted)
    assert_same(ours[9], source[9])


def test_frames_give_the_items_of_their_source(fixtures):
    windows = {"observation.images.front": [-0.1, 0.0], "action": [0.0, 0.1]}
    source = LeRobotDataset(
        "me/kitchen", root=fixtures / "kitchen_images_v30", delta_timestamps=windows
    )
    ours = LeRobotLanceDataset(
        root=fixtures / "kitchen_lance_frames", delta_timestamps=windows, decode_device="cpu"
    )
    for index in (0, 22, 23, 122):
        item, wanted = ours[index], source[index]
        for key in ("observation.images.front", "observation.images.wrist"):
            got, exact = item.pop(key), wanted.pop(key)
            assert got.shape == exact.shape
            assert (got - exact).abs().mean() < 0.02
        # The tool that wrote the table leaves text out, and numbers the tasks anew.
        del wanted["note"], wanted["task_index"], item["task_index"]
        assert_same(item, wanted)


def test_slices_are_lists_of_items(fixtures):
    ours = LeRobotLanceVideoDataset(root=fixtures / "g1_lance_video", return_uint8=True)
    items = ours[2:9:3]
    assert [item["frame_index"].item() for item in items] == [2, 5, 8]
    assert ours[5:5] == []


# Places


def test_a_folder_may_be_given_first_and_without_a_name(fixtures):
    ours = LeRobotLanceVideoDataset(str(fixtures / "g1_lance_video"))
    assert (ours.repo_id, ours.root) == ("g1_lance_video", fixtures / "g1_lance_video")


def test_a_repo_id_is_looked_for_where_lerobot_keeps_datasets(fixtures, tmp_path, monkeypatch):
    import huggingface_hub.constants  # noqa: F401  # reads HF_HUB_OFFLINE once for the process

    monkeypatch.setenv("HF_LEROBOT_HOME", str(tmp_path))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    (tmp_path / "me").mkdir()
    (tmp_path / "me" / "g1").symlink_to(fixtures / "g1_lance_native")
    ours = LeRobotLanceVideoDataset("me/g1")
    assert (ours.repo_id, len(ours)) == ("me/g1", 1013)
    with pytest.raises(DatasetNotFoundError, match="not on this machine"):
        LeRobotLanceVideoDataset("me/other")


@pytest.fixture
def apart(copy_of, tmp_path):
    """A function that moves a fixture's ``meta/`` away, and returns both folders."""

    def move(name):
        tables, home = copy_of(name), tmp_path / "meta of it"
        home.mkdir()
        shutil.move(tables / "meta", home / "meta")
        return tables, home

    return move


@pytest.mark.parametrize(
    ("name", "table"),
    [("g1_lance_video", "g1"), ("g1_lance_native", "frames"), ("kitchen_lance_frames", "kitchen")],
)
def test_tables_and_metadata_may_lie_apart(fixtures, apart, name, table):
    tables, home = apart(name)
    whole = opened(fixtures / name)
    kind = type(whole)
    path = tables / f"{table}.lance"
    ways = [
        {"uri": str(path), "meta_root": home},
        {"uri": path.as_uri(), "meta_root": str(home)},
        {"root": tables, "meta_root": home},
        {"root": path, "meta_root": home},
        {"uri": str(tables), "table_name": table, "meta_root": home},
    ]
    for way in ways:
        ours = kind(**way)
        assert ours.root == home
        assert_same(ours[11], whole[11])
    assert_same(pickle.loads(pickle.dumps(ours))[3], whole[3])
    with pytest.raises(ArgumentError, match="meta_root="):
        kind(uri=str(path))
    with pytest.raises(DatasetNotFoundError, match=r"no Lance table 'other\.lance'"):
        kind(uri=str(tables / "other.lance"), meta_root=home)
    with pytest.raises(DatasetNotFoundError, match="no Lance table in this folder"):
        kind(root=home, meta_root=fixtures / name)


def test_one_of_several_tables(fixtures, copy_of):
    root = copy_of("g1_lance_video")
    for name in ("g1.lance", "g1_videos.lance"):
        shutil.copytree(root / name, root / name.replace("g1", "other"))
    with pytest.raises(ValueError, match="several datasets"):
        LeRobotLanceVideoDataset(root=root)
    for way in ({"table_name": "other"}, {"root": root / "other.lance"}):
        ours = LeRobotLanceVideoDataset(**{"root": root, **way})
        assert ours.meta.get_data_file_path(0).name == "other.lance"
        assert len(ours[0]) > 0
    with pytest.raises(ArgumentError, match="table_name='g1' is not"):
        LeRobotLanceVideoDataset(root=root / "other.lance", table_name="g1")


@pytest.mark.parametrize(
    "way", [{"uri": "hf://b/g1.lance", "meta_root": "."}, {"root": "hf://b"}], ids=["uri", "root"]
)
def test_places_that_are_not_read_are_refused_in_words(way):
    with pytest.raises(ArgumentError, match="no place on the Hub") as caught:
        LeRobotLanceVideoDataset(**way)
    assert "hf://datasets" in str(caught.value)


# What is refused


@pytest.mark.parametrize("kind", [LeRobotLanceVideoDataset, LeRobotLanceDataset])
@pytest.mark.parametrize("name", ["g1_v30", "g1_v21"])
def test_other_layouts_are_named_with_their_class(fixtures, kind, name):
    with pytest.raises(ArgumentError, match="reads Lance datasets") as caught:
        kind(root=fixtures / name)
    assert "LeRobotDataset reads it as it lies" in str(caught.value)
    wanted = "lance-video" if kind is LeRobotLanceVideoDataset else "lance-frames"
    assert f"demoreel convert {fixtures / name} TARGET --to {wanted}" in str(caught.value)


@pytest.mark.parametrize("name", LAYOUTS)
def test_the_wrong_class_names_the_right_one(fixtures, name):
    right = type(opened(fixtures / name))
    wrong = {LeRobotLanceDataset, LeRobotLanceVideoDataset} - {right}
    with pytest.raises(ArgumentError, match=f"use demoreel.torch.{right.__name__}$"):
        wrong.pop()(root=fixtures / name)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, "No dataset was named"),
        ({"root": "a", "uri": "b"}, "both name a place"),
        ({"root": "g1_lance_video", "decoder_cache_size": 0}, "decoder_cache_size"),
        ({"root": "g1_lance_video", "decoder_cache_size": 2.5}, "decoder_cache_size"),
        ({"root": "g1_lance_video", "force_cache_sync": True}, "network"),
        ({"root": "g1_lance_video", "delta_timestamps": {"action": [0.01]}}, "multiples"),
        ({"root": "g1_lance_video", "cameras": ["front"]}, "no camera 'front'"),
        ({"root": "g1_lance_video", "episode_filter": lambda row: False}, "keeps no episode"),
    ],
)
def test_arguments_that_make_no_sense(fixtures, monkeypatch, options, words):
    monkeypatch.chdir(fixtures)
    with pytest.raises(ArgumentError, match=words):
        LeRobotLanceVideoDataset(**options)


def test_no_such_episode_or_frame(fixtures):
    with pytest.raises(OutOfRangeError):
        LeRobotLanceVideoDataset(root=fixtures / "g1_lance_video", episodes=[9])
    with pytest.raises(OutOfRangeError):
        LeRobotLanceVideoDataset(root=fixtures / "g1_lance_video")[1013]


# What users of lerobot-lancedb pass

THEIR_ARGUMENTS = {
    "meta_root": None,
    "table_name": None,
    "revision": None,
    "episodes": None,
    "delta_timestamps": None,
    "image_transforms": None,
    "tolerance_s": 1e-4,
    "return_uint8": False,
    "connect_kwargs": None,
    "storage_options": None,
    "video_backend": None,
    "download_videos": None,
    "force_cache_sync": None,
    "depth_output_unit": None,
}


@pytest.mark.parametrize(
    ("kind", "name", "own"),
    [
        (LeRobotLanceVideoDataset, "g1_lance_video", {"decoder_cache_size": 16}),
        (LeRobotLanceDataset, "kitchen_lance_frames", {"decode_device": "auto"}),
    ],
)
def test_every_argument_of_the_original_is_taken(fixtures, kind, name, own):
    by_place = [
        p.name for p in inspect.signature(kind).parameters.values() if p.kind != p.KEYWORD_ONLY
    ]
    assert by_place[:2] == ["repo_id", "root"]
    ours = kind(None, fixtures / name, uri=None, **THEIR_ARGUMENTS, **own)
    assert_same(ours[0], kind(root=fixtures / name)[0])
    with pytest.raises(TypeError, match="unheard_of"):  # before anything is looked for
        kind(repo_id="me/nowhere", unheard_of=1)


# What training code asks for


def test_relative_indices(fixtures):
    ours = LeRobotLanceVideoDataset(root=fixtures / "g1_lance_video", episodes=[3, 1])
    relative = ours.absolute_to_relative_idx
    starts = ours.meta.episodes["dataset_from_index"]
    assert relative[starts[1]] == 0
    assert relative[starts[3]] == 260
    assert len(relative) == len(ours) == len(dict(relative))
    assert [relative[frame] for frame in relative] == list(range(len(ours)))
    for outside in (-1, 0, starts[2], 1013):
        assert outside not in relative
    assert ours[relative[starts[3]]]["index"].item() == starts[3]
    assert (
        LeRobotLanceVideoDataset(root=fixtures / "g1_lance_video").absolute_to_relative_idx is None
    )


def test_copies_read_on(fixtures):
    ours = LeRobotLanceVideoDataset(root=fixtures / "g1_lance_native", return_uint8=True)
    for other in (copy.copy(ours), copy.deepcopy(ours), pickle.loads(pickle.dumps(ours))):
        assert type(other) is LeRobotLanceVideoDataset
        assert_same(other[4], ours[4])
    assert "lance-native" in repr(ours)
    assert not ours.meta.has_language_columns
    assert ours.depth_output_unit == "mm"


# Workers


@pytest.mark.soak
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_workers_after_use_in_the_parent(fixtures, method):
    before = multiprocessing.get_start_method()
    for name in LAYOUTS:
        ours = opened(fixtures / name, return_uint8=True, episodes=[0, 2])
        order = torch.randperm(len(ours), generator=torch.Generator().manual_seed(0))
        indices = order[:24].tolist()
        wanted = ours.__getitems__(indices)  # opens tables, codecs and threads in this process
        loader = DataLoader(
            torch.utils.data.Subset(ours, indices),
            batch_size=8,
            num_workers=2 if method == "fork" else 1,
            multiprocessing_context=method,
        )
        for number, batch in enumerate(loader):
            for place in range(8):
                expected = wanted[8 * number + place]
                assert_same({key: value[place] for key, value in batch.items()}, expected)
        assert_same(ours[indices[0]], wanted[0])  # and the parent reads on
    assert multiprocessing.get_start_method() == before


def test_importing_and_reading_leave_the_start_method_alone(fixtures):
    code = f"""
import multiprocessing, sys
from demoreel.torch import LeRobotLanceVideoDataset
LeRobotLanceVideoDataset(root={str(fixtures / "g1_lance_native")!r})[0]
assert multiprocessing.get_start_method(allow_none=True) is None
assert "lerobot" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True)
