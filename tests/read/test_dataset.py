"""The dataset as a user meets it: what the conformance suite does not cover."""

from __future__ import annotations

import gc
import pickle

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import demoreel
from demoreel.errors import ArgumentError
from demoreel.testing import make_dataset, read_stamp

CAMERA = "observation.images.cam0"


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return make_dataset(
        tmp_path_factory.mktemp("dataset") / "made",
        episodes=[11, 4, 30, 1, 9],
        gop=4,
        b_frames=1,
        video_files_size_in_mb=0.01,
    )


@given(
    chosen=st.sets(st.integers(0, 4), min_size=1),
    offsets=st.lists(st.integers(-40, 40), min_size=1, max_size=4),
    data=st.data(),
)
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_any_subset_with_any_window_equals_the_whole_filtered(root, chosen, offsets, data):
    windows = {"observation.state": offsets, CAMERA: offsets[:2]}
    part = demoreel.open(root, episodes=chosen, windows=windows)
    every = demoreel.open(root)
    lengths = [11, 4, 30, 1, 9]
    where = [(e, f) for e, n in enumerate(lengths) for f in range(n) if e in chosen]
    assert len(part) == len(where)
    number = data.draw(st.integers(0, len(where) - 1))
    episode, frame = where[number]
    item = part[number]
    state = np.asarray(every.episode(episode).column("observation.state"))
    wanted = [min(max(frame + o, 0), lengths[episode] - 1) for o in offsets]
    np.testing.assert_array_equal(item["observation.state"], state[wanted])
    for image, at in zip(item[CAMERA], wanted[:2], strict=True):
        assert (read_stamp(image).episode, read_stamp(image).frame) == (episode, at)


def test_repr_and_iteration(root):
    ds = demoreel.open(root, episodes=[1, 3])
    assert repr(ds) == "<Dataset made: v3.0, 2 episodes, 5 frames, 30 fps, 1 camera>"
    assert [int(item["frame_index"]) for item in ds] == [0, 1, 2, 3, 0]


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        ("image_size", (0, 5)),
        ("image_size", (5,)),
        ("image_size", (5.5, 4)),
        ("decode_threads", 0),
        ("depth_unit", "cm"),
        ("episodes", []),
    ],
)
def test_arguments_that_make_no_sense(root, argument, value):
    with pytest.raises(ArgumentError):
        demoreel.open(root, **{argument: value})


@pytest.mark.parametrize("bad", [[], [1.5], [[1, 2]], ["a"]])
def test_batches_that_make_no_sense(root, bad):
    with pytest.raises(ArgumentError):
        demoreel.open(root).batch(bad)


def test_numpy_integers_are_indices(root):
    ds = demoreel.open(root)
    assert int(ds[np.int64(12)]["index"]) == 12
    assert ds.batch(np.array([3, -1], dtype=np.int32))["index"].tolist() == [3, 54]


def test_an_image_that_many_samples_share_is_decoded_once(root, monkeypatch):
    from demoreel.media.decode import Decoder

    decoded = []
    original = Decoder.frames

    def counting(self, gop_span):
        decoded.extend(gop_span.frames)
        return original(self, gop_span)

    monkeypatch.setattr(Decoder, "frames", counting)
    ds = demoreel.open(root, windows={CAMERA: [-2, -1, 0]}, decode_threads=1)
    batch = ds.batch([17, 18, 19, 18])
    assert len(decoded) == 5  # frames 0..4 of episode 2
    seen = [[read_stamp(p).frame for p in sample] for sample in batch[CAMERA]]
    assert seen == [[0, 1, 2], [1, 2, 3], [2, 3, 4], [1, 2, 3]]


def test_more_threads_give_the_same(root):
    numbers = np.random.default_rng(0).permutation(55)
    one = demoreel.open(root, decode_threads=1).batch(numbers)
    four = demoreel.open(root, decode_threads=4).batch(numbers)
    np.testing.assert_array_equal(one[CAMERA], four[CAMERA])


def test_memory_of_dropped_batches_serves_again_but_never_while_it_is_looked_at(root):
    ds = demoreel.open(root, image_size=(240, 320))
    kept = ds.batch(range(8))[CAMERA][3, 1]  # a view of a view keeps all of it
    before = kept.copy()
    addresses = set()
    for number in range(6):
        batch = ds.batch(range(number, number + 8))
        addresses.add(batch[CAMERA].__array_interface__["data"][0])
        del batch
        gc.collect()
    np.testing.assert_array_equal(kept, before)
    assert len(addresses) <= 2


def test_pickling_moves_arguments_not_tables(root):
    ds = demoreel.open(root, episodes=range(5), windows={"action": range(16)}, cameras=[CAMERA])
    ds.batch(range(len(ds)))
    data = pickle.dumps(ds)
    assert len(data) < 1000
    again = pickle.loads(data)
    for key, value in ds[20].items():
        np.testing.assert_array_equal(again[20][key], value)


def test_one_of_many_cameras_reads_only_its_videos(tmp_path):
    root = make_dataset(tmp_path / "three", episodes=2, cameras=3)
    for camera in ("cam0", "cam2"):
        for video in (root / "videos" / f"observation.images.{camera}").rglob("*.mp4"):
            video.unlink()
    item = demoreel.open(root, cameras=["observation.images.cam1"])[25]
    assert read_stamp(item["observation.images.cam1"]).frame == 5


def test_columns_never_open_a_video(tmp_path):
    root = make_dataset(tmp_path / "blind", episodes=2)
    for video in root.rglob("*.mp4"):
        video.unlink()
    ds = demoreel.open(root)
    assert np.asarray(ds.episode(1).column("action")).shape == (20, 6)


def test_long_groups_of_images_stream_in_order(tmp_path):
    root = make_dataset(tmp_path / "long", episodes=[150], gop=1000, b_frames=2)
    frames = [read_stamp(p).frame for p in demoreel.open(root).episode(0).frames(CAMERA)]
    assert frames == list(range(150))


def test_nothing_is_written_into_the_dataset(root):
    before = {path: path.stat().st_mtime_ns for path in root.rglob("*")}
    ds = demoreel.open(root)
    ds.batch(range(len(ds)))
    assert ds.stats is not None
    assert {path: path.stat().st_mtime_ns for path in root.rglob("*")} == before


def test_a_read_only_dataset_opens(fixtures):
    assert int(demoreel.open(fixtures / "g1_v30")[5]["index"]) == 5
