"""The conformance suite: what every layout's reader and writer must pass.

Derive a class from ``LayoutTests``, say how a dataset of your layout is made, and let pytest
collect it::

    class TestV3(LayoutTests):
        layout = "v3.0"

A layout that has a writer of its own overrides ``make``. Every image and row of the datasets says
where it belongs, so that the tests read off which frame they got, whatever is between.
"""

from __future__ import annotations

import multiprocessing
import pickle
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import demoreel
from demoreel.errors import ArgumentError, DemoreelWarning, OutOfRangeError, UnknownKeyError
from demoreel.read.dataset import Dataset
from demoreel.testing.factory import make_dataset
from demoreel.testing.stamp import read_stamp

FRONT, WRIST = "observation.images.front", "observation.images.wrist"
LENGTHS = [5, 23, 1, 12, 2, 17]
TYPES: dict[str, tuple[str, tuple[int, ...]]] = {
    "scalar.float64": ("float64", (1,)),
    "vector.float16": ("float16", (3,)),
    "vector.int32": ("int32", (2,)),
    "scalar.uint8": ("uint8", (1,)),
    "vector.bool": ("bool", (3,)),
    "matrix.float32": ("float32", (4, 3)),
    "cube.int64": ("int64", (2, 3, 2)),
    "note": ("string", (1,)),
}


def locations(lengths: list[int]) -> list[tuple[int, int]]:
    """Return (episode, frame) of every frame of a dataset with these episodes."""
    return [(episode, frame) for episode, n in enumerate(lengths) for frame in range(n)]


def check_item(item: dict[str, Any], episode: int, frame: int, cameras: tuple[str, ...]) -> None:
    """Assert that a sample is that frame: in its numbers and in every image."""
    state = item["observation.state"]
    assert (int(state[0]), int(state[1])) == (episode, frame)
    assert (int(item["episode_index"]), int(item["frame_index"])) == (episode, frame)
    for camera in cameras:
        seen = read_stamp(item[camera])
        assert (seen.episode, seen.frame) == (episode, frame), camera


def _check_in_another_process(ds: Dataset, numbers: list[int], lengths: list[int]) -> int:
    batch = ds.batch(numbers)
    where = locations(lengths)
    for place, number in enumerate(numbers):
        item = {key: column[place] for key, column in batch.items()}
        check_item(item, *where[number], ds.cameras)
    return len(numbers)


class LayoutTests:
    """Tests that any layout passes. Set ``layout``, or override ``make``."""

    layout: Any = "v3.0"

    @classmethod
    def make(cls, path: Path, **options: Any) -> Path:
        """Make a dataset of this layout; options are those of ``make_dataset``."""
        return make_dataset(path, layout=cls.layout, **options)

    @pytest.fixture(scope="class")
    @classmethod
    def two_cameras(cls, tmp_path_factory: pytest.TempPathFactory) -> Path:
        """Six episodes, two cameras of different sizes, several files."""
        return cls.make(
            tmp_path_factory.mktemp("layout") / "two_cameras",
            episodes=LENGTHS,
            cameras={FRONT: (96, 128), WRIST: (64, 80)},
            gop=5,
            data_files_size_in_mb=0.01,
            video_files_size_in_mb=0.02,
            tasks=("pick it", "放下", "push it"),
            task_changes=True,
        )

    def test_describes_itself(self, two_cameras: Path) -> None:
        """Info, episodes, tasks and cameras are those that were written."""
        ds = demoreel.open(two_cameras)
        assert ds.layout == self.layout
        assert ds.fps == 30
        assert ds.cameras == (FRONT, WRIST)
        assert len(ds) == sum(LENGTHS)
        assert [episode.length for episode in ds.episodes] == LENGTHS
        assert [episode.index for episode in ds.episodes] == list(range(len(LENGTHS)))
        assert set(ds.tasks.values()) == {"pick it", "放下", "push it"}
        assert ds.episodes[1].tasks == ("放下", "push it")
        assert ds.episodes[2].tasks == ("push it",)  # one frame cannot change its task
        video_cameras = {key for key in ds.cameras if not ds.reader.in_tables(key)}
        for episode in ds.episodes:
            assert episode.data_file is not None
            assert set(episode.video_files) == video_cameras

    def test_every_frame_is_itself(self, two_cameras: Path) -> None:
        """Single reads give the frame that was asked for, counted from either end."""
        ds = demoreel.open(two_cameras)
        for number, (episode, frame) in enumerate(locations(LENGTHS)):
            check_item(ds[number], episode, frame, ds.cameras)
            check_item(ds[number - len(ds)], episode, frame, ds.cameras)

    def test_batches(self, two_cameras: Path) -> None:
        """Batches in any order, with repetitions, equal single reads."""
        ds = demoreel.open(two_cameras)
        numbers = np.random.default_rng(0).integers(-len(ds), len(ds), 200)
        batch = ds.batch(numbers)
        for place, number in enumerate(numbers.tolist()):
            single = ds[number]
            assert list(single) == list(batch)
            for key, value in single.items():
                np.testing.assert_array_equal(batch[key][place], value, err_msg=key)

    def test_slices(self, two_cameras: Path) -> None:
        """A slice is a batch."""
        ds = demoreel.open(two_cameras)
        assert ds[10:20]["index"].tolist() == list(range(10, 20))
        assert ds[-3:]["frame_index"].tolist() == [14, 15, 16]
        assert ds[20:10:-2]["index"].tolist() == [20, 18, 16, 14, 12]

    def test_windows(self, two_cameras: Path) -> None:
        """Windows hold neighbours of the same episode, clamped and masked at its edges."""
        offsets = [-7, -1, 0, 3]
        seconds = [-0.1, 0.0, 0.5]
        ds = demoreel.open(two_cameras, windows={FRONT: offsets, "action": seconds})
        for number, (episode, frame) in enumerate(locations(LENGTHS)):
            item = ds[number]
            last = LENGTHS[episode] - 1
            assert item[f"{FRONT}_is_pad"].tolist() == [not 0 <= frame + o <= last for o in offsets]
            for image, offset in zip(item[FRONT], offsets, strict=True):
                seen = read_stamp(image)
                assert (seen.episode, seen.frame) == (episode, min(max(frame + offset, 0), last))
            wanted = [min(max(frame + o, 0), last) for o in (-3, 0, 15)]
            assert (-item["action"][:, 1]).astype(int).tolist() == wanted
            assert set(item["action"][:, 0].astype(int).tolist()) == {-episode}
            assert item[WRIST].ndim == 3

    def test_subsets(self, two_cameras: Path) -> None:
        """A subset of episodes equals the whole, filtered."""
        chosen = [4, 1, 3]
        ds = demoreel.open(two_cameras, episodes=chosen, windows={"action": [-1, 0, 1]})
        every = demoreel.open(two_cameras, windows={"action": [-1, 0, 1]})
        kept = [n for n, (episode, _) in enumerate(locations(LENGTHS)) if episode in chosen]
        assert len(ds) == len(kept)
        assert [episode.index for episode in ds.episodes] == sorted(chosen)
        left, right = ds.batch(range(len(ds))), every.batch(kept)
        for key in left:
            np.testing.assert_array_equal(left[key], right[key], err_msg=key)

    def test_chosen_cameras(self, two_cameras: Path) -> None:
        """Only chosen cameras are decoded and handed out."""
        ds = demoreel.open(two_cameras, cameras=[WRIST])
        assert FRONT not in ds[0]
        check_item(ds[7], 1, 2, (WRIST,))
        assert demoreel.open(two_cameras, cameras=[])[3]["index"] == 3

    def test_image_size(self, two_cameras: Path) -> None:
        """Images come in the size that was asked for, and are still themselves."""
        ds = demoreel.open(two_cameras, image_size=(192, 256), cameras=[FRONT])
        assert ds[0][FRONT].shape == (3, 192, 256)
        check_item(ds[30], 3, 1, (FRONT,))

    def test_whole_episodes(self, two_cameras: Path) -> None:
        """Columns and images of an episode, in order."""
        episode = demoreel.open(two_cameras).episode(1)
        assert len(episode) == 23
        state = np.asarray(episode.column("observation.state"))
        assert state[:, 1].astype(int).tolist() == list(range(23))
        for camera, size in ((FRONT, (96, 128, 3)), (WRIST, (64, 80, 3))):
            images = list(episode.frames(camera))
            assert {image.shape for image in images} == {size}
            seen = [read_stamp(image) for image in images]
            assert [(s.episode, s.frame) for s in seen] == [(1, frame) for frame in range(23)]
        part = [read_stamp(image).frame for image in episode.frames(FRONT, 7, 19)]
        assert part == list(range(7, 19))
        assert list(episode.frames(FRONT, 4, 4)) == []

    def test_every_type_of_column(self, tmp_path: Path) -> None:
        """Columns keep dtype, shape and value; text and language are Python values."""
        features = {key: {"dtype": t, "shape": list(s)} for key, (t, s) in TYPES.items()}
        root = self.make(
            tmp_path / "types", episodes=[4, 6], cameras=0, features=features, language=True
        )
        ds = demoreel.open(root)
        for number, (episode, frame) in enumerate(locations([4, 6])):
            item = ds[number]
            for key, (dtype, shape) in TYPES.items():
                if dtype == "string":
                    assert item[key] == f"{key}, episode {episode}, frame {frame} ✓"
                else:
                    assert item[key].dtype == np.dtype(dtype), key
                    assert item[key].shape == (() if shape == (1,) else shape), key
            assert item["language_persistent"][0]["content"] == f"subtask of episode {episode}"
            events = item["language_events"]
            assert len(events) == (0 if frame % 5 else 1)
            for event in events:
                assert event["content"] == f"episode {episode}, frame {frame}"
                call = event["tool_calls"][0]["function"]
                assert call == {"name": "say", "arguments": {"text": f"frame {frame}"}}
        assert ds.episode(1).column("note") == [ds[number]["note"] for number in range(4, 10)]

    def test_noise_is_kept_exactly(self, tmp_path: Path) -> None:
        """Two datasets of the same seed hold the same numbers, another seed others."""
        features = {"x": {"dtype": "float64", "shape": [5]}}
        options: dict[str, Any] = {"episodes": [6, 6], "cameras": 0, "features": features}
        first = demoreel.open(self.make(tmp_path / "a", **options))[:]["x"]
        again = demoreel.open(self.make(tmp_path / "b", **options))[:]["x"]
        other = demoreel.open(self.make(tmp_path / "c", seed=1, **options))[:]["x"]
        np.testing.assert_array_equal(first, again)
        assert not np.array_equal(first, other)
        assert len(np.unique(np.asarray(first))) == 60

    def test_pictures_in_tables(self, tmp_path: Path) -> None:
        """Image cameras, alone and beside a video camera."""
        root = self.make(
            tmp_path / "images",
            episodes=[3, 5],
            cameras={FRONT: (64, 64)},
            image_cameras={WRIST: (48, 64)},
        )
        ds = demoreel.open(root, windows={WRIST: [-1, 0]})
        for number, (episode, frame) in enumerate(locations([3, 5])):
            item = ds[number]
            seen = [read_stamp(image) for image in item[WRIST]]
            assert [(s.episode, s.frame) for s in seen] == [
                (episode, max(frame - 1, 0)),
                (episode, frame),
            ]
            check_item(item, episode, frame, (FRONT,))

    def test_depth(self, tmp_path: Path) -> None:
        """Depth comes in millimetres, or metres when asked."""
        key = "observation.depth.front"
        root = self.make(tmp_path / "depth", episodes=[4], cameras=0, depth_cameras={key: (64, 96)})
        ds = demoreel.open(root)
        item = ds[2]
        assert item[key].shape == (1, 64, 96)
        assert item[key].dtype == np.float32
        column = item[key][0, -1]  # below the stamp: a ramp from 1000 mm on, 8 mm a pixel
        expected = 1000 + 8 * np.arange(96) + 3 * 2
        assert np.abs(column - expected).max() < 5  # 12 bits over ten metres
        metres = demoreel.open(root, depth_unit="m")[2][key]
        np.testing.assert_allclose(metres * 1000, item[key], atol=0.6)

    @pytest.mark.parametrize(
        "options",
        [
            {"codec": "h264", "gop": 12, "b_frames": 2},
            {"codec": "h264", "gop": 8, "b_frames": 3, "open_gop": True},
            {"codec": "hevc", "gop": 6, "b_frames": 2},
            {"codec": "av1", "gop": 2},
            {"codec": "vp9", "gop": 7},
            {"codec": "mpeg4", "gop": 5, "b_frames": 2},
            {"codec": "h264", "gop": 4, "pix_fmt": "yuv444p"},
            {"codec": "hevc", "gop": 4, "pix_fmt": "yuv420p10le"},
        ],
        ids=lambda options: "-".join(str(value) for value in options.values()),
    )
    def test_codecs(self, tmp_path: Path, options: dict[str, Any]) -> None:
        """Any codec, GOP, reordering and depth of colour."""
        lengths = [13, 1, 9]
        root = self.make(tmp_path / "codec", episodes=lengths, cameras={FRONT: (64, 96)}, **options)
        ds = demoreel.open(root)
        order = np.random.default_rng(1).permutation(len(ds))
        where = locations(lengths)
        for number in order.tolist():
            episode, frame = where[number]
            check_item(ds[number], episode, frame, (FRONT,))

    @pytest.mark.parametrize("fps", [10, 29.97, 50])
    def test_frame_rates(self, tmp_path: Path, fps: float) -> None:
        """Many episodes in one file, at rates that floats cannot hold."""
        lengths = [3, 7, 2, 5] * 8
        root = self.make(tmp_path / "fps", episodes=lengths, fps=fps)
        ds = demoreel.open(root)
        for number, (episode, frame) in enumerate(locations(lengths)):
            if number % 3 == 0:
                check_item(ds[number], episode, frame, ds.cameras)

    def test_statistics(self, tmp_path: Path) -> None:
        """Statistics of the whole, and None where there are none."""
        ds = demoreel.open(self.make(tmp_path / "stats", episodes=[8, 12], cameras=1))
        assert ds.stats is not None
        values = np.asarray(ds[:]["observation.state"], dtype=np.float64)
        for name, expected in (
            ("min", values.min(axis=0)),
            ("max", values.max(axis=0)),
            ("mean", values.mean(axis=0)),
            ("std", values.std(axis=0)),
        ):
            np.testing.assert_allclose(
                ds.stats["observation.state"][name], expected, atol=1e-5, err_msg=name
            )
        assert ds.stats["observation.state"]["count"].tolist() == [20]
        assert ds.stats[ds.cameras[0]]["mean"].shape == (3, 1, 1)
        bare = demoreel.open(self.make(tmp_path / "bare", episodes=[2], with_stats=False))
        with pytest.warns(DemoreelWarning, match="no statistics"):
            assert bare.stats is None

    def test_pickles_small_and_reads_in_other_processes(self, two_cameras: Path) -> None:
        """A used dataset goes to forked and spawned processes, and reads right in each."""
        ds = demoreel.open(two_cameras)
        check_item(ds[7], 1, 2, ds.cameras)
        assert len(pickle.dumps(ds)) < 2000
        numbers = [3, 40, 17, 59, 5]
        for method, processes in (("fork", 2), ("spawn", 1)):  # a spawned one imports all again
            context = multiprocessing.get_context(method)
            with ProcessPoolExecutor(processes, mp_context=context) as pool:
                jobs = [
                    pool.submit(_check_in_another_process, ds, numbers, LENGTHS) for _ in range(4)
                ]
                assert [job.result(timeout=120) for job in jobs] == [5] * 4
        check_item(ds[8], 1, 3, ds.cameras)

    def test_wrong_questions(self, two_cameras: Path) -> None:
        """Each gets an error that says so, and the dataset continues."""
        ds = demoreel.open(two_cameras)
        for number in (len(ds), -len(ds) - 1, 10**9):
            with pytest.raises(OutOfRangeError):
                ds[number]
        with pytest.raises(OutOfRangeError):
            ds.episode(6)
        with pytest.raises(OutOfRangeError):
            demoreel.open(two_cameras, episodes=[0, 6])
        with pytest.raises(UnknownKeyError, match=FRONT):
            demoreel.open(two_cameras, cameras=["observation.images.fornt"])
        with pytest.raises(UnknownKeyError, match="did you mean 'action'"):
            demoreel.open(two_cameras, windows={"actoin": [0]})
        with pytest.raises(ArgumentError):
            demoreel.open(two_cameras, windows={"action": [0.01]})
        with pytest.raises(UnknownKeyError, match="is a camera"):
            ds.episode(0).column(FRONT)
        check_item(ds[0], 0, 0, ds.cameras)
