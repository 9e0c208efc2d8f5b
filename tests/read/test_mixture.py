"""Parts of a mixture: which frames, how they fit, what is refused, and their statistics."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest

import demoreel
from demoreel.errors import ArgumentError, DatasetNotFoundError, UnknownKeyError, VideoError
from demoreel.read.mixture import MixtureReader
from demoreel.read.mixture_file import mixture_arguments
from demoreel.read.part import Part
from demoreel.stats.mixture import mixture_stats
from demoreel.testing import make_dataset

FRONT, TOP, CAM = "observation.images.front", "observation.images.top", "observation.images.cam0"
FLAG = {"intervention": {"dtype": "bool", "shape": [1]}}


@pytest.fixture(scope="module")
def worlds(tmp_path_factory):
    """Datasets that differ in cameras, sizes, dimensions, rates, tasks and columns."""
    folder = tmp_path_factory.mktemp("parts")
    make_dataset(
        folder / "kitchen",
        episodes=[12, 9],
        cameras={FRONT: (32, 48)},
        tasks=("pick", "place"),
        features={"arm": {"dtype": "float32", "shape": [3], "names": ["a", "b", "c"]}, **FLAG},
    )
    make_dataset(
        folder / "table",
        episodes=[15, 10, 5],
        cameras={TOP: (24, 32)},
        tasks=("push",),
        features={"arm": {"dtype": "float64", "shape": [2], "names": ["c", "a"]}},
    )
    make_dataset(
        folder / "slow", episodes=[10, 8], cameras={FRONT: (32, 48)}, fps=10, tasks=("pick",)
    )
    make_dataset(folder / "old", episodes=[7, 6], cameras={FRONT: (32, 48)}, layout="v2.1")
    demoreel.convert(folder / "kitchen", folder / "lance", to="lance-video")
    return folder


def sample(mixture: MixtureReader, part: int, number: int):
    found = mixture.batch(np.array([part]), np.array([number]))
    return {key: column[0] for key, column in found.items()}


class TestReading:
    def test_samples_are_those_of_the_datasets_in_the_order_asked_for(self, worlds):
        mixture = MixtureReader(
            [worlds / "kitchen", Part(worlds / "table", rename={TOP: FRONT}), worlds / "lance"],
            image_size=(24, 32),
            pad={"arm": 4},
        )
        parts, numbers = np.array([1, 0, 2, 1, 0, 1]), np.array([3, 20, 5, 29, 0, 3])
        batch = mixture.batch(parts, numbers)
        own = [
            demoreel.open(worlds / name, image_size=(24, 32))
            for name in ("kitchen", "table", "lance")
        ]
        for place, (part, number) in enumerate(zip(parts, numbers, strict=True)):
            wanted = own[part][int(number)]
            image = wanted[TOP if part == 1 else FRONT]
            np.testing.assert_array_equal(batch[FRONT][place], image)
            np.testing.assert_array_equal(batch["action"][place], wanted["action"])
            size = 2 if part == 1 else 3
            np.testing.assert_array_equal(
                batch["arm"][place], [*np.float32(wanted["arm"]), *[0.0] * (4 - size)]
            )
            assert batch["arm_dim_is_pad"][place].tolist() == [n >= size for n in range(4)]
            assert batch["index"][place] == wanted["index"]
            assert batch["task"][place] == wanted["task"]
            assert mixture.tasks[int(batch["task_index"][place])] == wanted["task"]
            assert batch["intervention_is_missing"][place] == (part == 1)
        assert batch["dataset_index"].tolist() == parts.tolist()
        assert batch["normalization_key"] == [("kitchen", "table", "lance")[n] for n in parts]
        assert batch["arm"].dtype == np.float32

    def test_windows_stop_at_episodes_and_mark_what_is_filled(self, worlds):
        mixture = MixtureReader(
            [worlds / "kitchen", worlds / "old"],
            windows={"action": [-1 / 30, 0.0, 1 / 30], "arm": [0.0, 1 / 30], FRONT: [-1 / 30, 0.0]},
        )
        first, last = sample(mixture, 0, 0), sample(mixture, 1, 6)
        assert first["action"].shape == (3, 6)
        assert first["action_is_pad"].tolist() == [True, False, False]
        assert last["action_is_pad"].tolist() == [False, False, True]
        assert last["arm"].shape == (2, 3)
        assert not last["arm"].any()
        assert last["arm_is_pad"].all()
        assert last["arm_is_missing"]
        own = demoreel.open(worlds / "old", windows={FRONT: [-1, 0]})
        np.testing.assert_array_equal(last[FRONT], own[6][FRONT])

    def test_a_missing_camera_is_black_and_says_so(self, worlds):
        mixture = MixtureReader([worlds / "kitchen", worlds / "table"], pad={"arm": 3})
        other = sample(mixture, 1, 0)
        assert other[f"{FRONT}_is_missing"]
        assert not other[FRONT].any()
        assert other[TOP].any()
        assert not sample(mixture, 0, 0)[f"{FRONT}_is_missing"]

    def test_dims_pick_and_reorder(self, worlds):
        mixture = MixtureReader(
            [Part(worlds / "kitchen", dims={"arm": ["c", "a"]}), worlds / "table"],
            cameras=[],
        )
        wanted = demoreel.open(worlds / "kitchen")[4]["arm"]
        np.testing.assert_array_equal(sample(mixture, 0, 4)["arm"], wanted[[2, 0]])
        assert mixture.features["arm"].names == ["c", "a"]
        assert mixture.notes == []
        swapped = MixtureReader(
            [Part(worlds / "kitchen", dims={"arm": [0, 2]}), worlds / "table"], cameras=[]
        )
        assert "other names in table" in swapped.notes[0]

    def test_task_templates(self, worlds):
        mixture = MixtureReader([Part(worlds / "kitchen", task="do: {task}!"), worlds / "slow"][:1])
        assert sample(mixture, 0, 0)["task"] == "do: pick!"
        assert list(mixture.tasks.values()) == ["do: pick!", "do: place!"]

    @pytest.mark.parametrize("resample", ["nearest", "linear"])
    def test_windows_at_another_rate(self, worlds, resample):
        """Of 10 frames a second, windows of 30: between two frames, or the nearest of them."""
        mixture = MixtureReader(
            [Part(worlds / "slow", fps=30, resample=resample), worlds / "old"],
            windows={"action": [-1 / 30, 0.0, 1 / 30, 2 / 30, 0.1], FRONT: [0.0, 2 / 30]},
        )
        plain = demoreel.open(worlds / "slow")
        here, found = [plain[n] for n in range(10)], sample(mixture, 0, 4)
        rows = np.stack([one["action"] for one in here])
        places = np.array([4 - 1 / 3, 4, 4 + 1 / 3, 4 + 2 / 3, 5])
        if resample == "nearest":
            wanted = rows[np.floor(places + 0.5).astype(int)]
        else:
            wanted = np.stack(
                [[np.interp(at, range(10), rows[:, d]) for d in range(6)] for at in places]
            )
        np.testing.assert_allclose(found["action"], wanted, rtol=1e-6)
        np.testing.assert_array_equal(found[FRONT], [here[4][FRONT], here[5][FRONT]])
        end = sample(mixture, 0, 9)
        assert end["action_is_pad"].tolist() == [False, False, False, True, True]
        np.testing.assert_allclose(end["action"][-1], rows[9])

    def test_a_frame_that_cannot_be_read_is_named(self, worlds, tmp_path):
        broken = tmp_path / "broken"
        shutil.copytree(worlds / "old", broken)
        video = sorted(broken.rglob("*.mp4"))[1]
        data = bytearray(video.read_bytes())
        begin = data.index(b"mdat") + 4
        data[begin:] = b"\0" * (len(data) - begin)
        moov = video.read_bytes().index(b"moov")
        data[moov - 4 :] = video.read_bytes()[moov - 4 :] if moov > begin else data[moov - 4 :]
        video.write_bytes(data)
        mixture = MixtureReader([worlds / "kitchen", broken])
        mixture.batch(np.array([0, 1]), np.array([3, 2]))
        with pytest.raises(VideoError) as caught:
            mixture.batch(np.array([0, 1, 1]), np.array([3, 2, 9]))
        assert caught.value.where["dataset"] == str(broken)
        assert (caught.value.where["episode"], caught.value.where["frame"]) == (1, 2)


class TestFrames:
    def test_a_condition_chooses_frames(self, worlds):
        for name in ("kitchen", "lance"):
            mixture = MixtureReader([Part(worlds / name, where="intervention")])
            plain = demoreel.open(worlds / name, cameras=[])
            wanted = [n for n in range(len(plain)) if plain[n]["intervention"]]
            assert 0 < len(wanted) < len(plain)
            assert mixture.sizes == [len(wanted)]
            found = mixture.batch(np.zeros(len(wanted), int), np.arange(len(wanted)))
            assert found["index"].tolist() == wanted
            assert found["intervention"].all()

    def test_within_chosen_episodes(self, worlds):
        part = Part(worlds / "table", episodes=[0, 2], where="frame_index >= 4")
        found = MixtureReader([part]).batch(np.zeros(12, int), np.arange(12))
        assert found["frame_index"].tolist() == [*range(4, 15), 4]
        assert set(found["episode_index"].tolist()) == {0, 2}

    def test_success_is_an_episodes(self, tmp_path):
        root = make_dataset(
            tmp_path / "made", episodes=[6, 5, 4], cameras=0,
            features={"next.success": {"dtype": "bool", "shape": [1]}},
        )  # fmt: skip
        plain = demoreel.open(root)
        good = {int(plain[n]["episode_index"]) for n in range(15) if plain[n]["next.success"]}
        mixture = MixtureReader([Part(root, where="next.success")])
        assert set(mixture.parts[0].dataset.episodes.episode_index.tolist()) == good
        frames = MixtureReader([Part(root, where="next.success", whole_episodes=False)])
        assert frames.sizes == [sum(bool(plain[n]["next.success"]) for n in range(15))]
        whole = MixtureReader([Part(root, where="frame_index = 5", whole_episodes=True)])
        assert whole.sizes == [6]

    def test_excluded_episodes(self, worlds):
        assert MixtureReader([Part(worlds / "table", exclude_episodes=[1, 99])]).sizes == [20]
        part = Part(worlds / "table", episodes=range(2), exclude_episodes=[0])
        assert MixtureReader([part]).sizes == [10]
        with pytest.raises(ArgumentError, match="no episode"):
            MixtureReader([Part(worlds / "table", exclude_episodes=range(3))])

    def test_a_condition_that_nothing_meets(self, worlds):
        with pytest.raises(ArgumentError, match="no frame where"):
            MixtureReader([Part(worlds / "table", where="frame_index > 99")])


class TestRefused:
    def test_all_reasons_at_once_each_with_both_datasets(self, worlds):
        with pytest.raises(ArgumentError) as caught:
            MixtureReader(
                [
                    worlds / "kitchen",
                    Part(worlds / "table", rename={TOP: FRONT}),
                    Part(worlds / "slow", name="sluggish"),
                ],
                missing="error",
            )
        said = caught.value.what
        assert "30 in kitchen, 10 in sluggish" in said
        assert f"{FRONT} is 32x48 in kitchen and 24x32 in table" in said
        assert "arm is [3] in kitchen and [2] in table" in said
        assert "table lacks intervention, which kitchen has" in said
        assert "sluggish lacks arm, which kitchen has" in said

    def test_drop_keeps_what_all_have(self, worlds):
        mixture = MixtureReader([worlds / "kitchen", worlds / "old"], missing="drop")
        found = sample(mixture, 1, 0)
        assert "arm" not in found
        assert not [key for key in found if key.endswith("_is_missing")]
        assert set(mixture.dropped) == {"arm", "intervention"}
        assert "dropped: arm (not in old)" in str(mixture)

    def test_another_kind(self, worlds):
        with pytest.raises(ArgumentError, match="a camera in kitchen and a column of numbers"):
            MixtureReader([worlds / "kitchen", Part(worlds / "table", rename={"arm": FRONT})])

    @pytest.mark.parametrize(
        ("changes", "error", "words"),
        [
            ({"rename": {"nothing": "x"}}, UnknownKeyError, "nothing"),
            ({"rename": {"arm": "action"}}, ArgumentError, "both be called"),
            ({"dims": {"arm": ["z"]}}, ArgumentError, "no dimension 'z'"),
            ({"dims": {"arm": [7]}}, ArgumentError, "no 7"),
            ({"dims": {"none": [7]}}, UnknownKeyError, "none"),
            ({"dims": {FRONT: [0]}}, ArgumentError, "one dimension"),
            ({"fps": 0}, ArgumentError, "positive"),
            ({"resample": "cubic"}, ArgumentError, "linear"),
            ({"where": "nothing > 1"}, ArgumentError, "not understood"),
        ],
    )
    def test_parts(self, worlds, changes, error, words):
        with pytest.raises(error, match=words):
            MixtureReader([Part(worlds / "kitchen", **changes)])

    @pytest.mark.parametrize(
        ("changes", "error", "words"),
        [
            ({"pad": {"arm": 2}}, ArgumentError, "pad=2 cannot hold"),
            ({"pad": {"leg": 2}}, UnknownKeyError, "leg"),
            ({"cameras": ["eye"]}, UnknownKeyError, "eye"),
            ({"windows": {"leg": [0.0]}}, UnknownKeyError, "leg"),
            ({"windows": {"arm": [0.01]}}, ArgumentError, "multiples"),
            ({"missing": "ignore"}, ArgumentError, "mask"),
        ],
    )
    def test_mixtures(self, worlds, changes, error, words):
        with pytest.raises(error, match=words):
            MixtureReader([worlds / "kitchen"], **changes)
        with pytest.raises(ArgumentError, match="at least one"):
            MixtureReader([])


class TestStatistics:
    def values(self, root, key):
        plain = demoreel.open(root, cameras=[])
        return np.asarray(plain.batch(range(len(plain)))[key], np.float64)

    def test_of_whole_datasets_by_length_are_those_of_all_rows(self, worlds):
        found = mixture_stats(MixtureReader([worlds / "kitchen", worlds / "old"])).merged
        both = np.concatenate([self.values(worlds / n, "action") for n in ("kitchen", "old")])
        kinds = found["action"]
        assert kinds["count"].tolist() == [len(both)]
        np.testing.assert_allclose(kinds["mean"], both.mean(0))
        np.testing.assert_allclose(kinds["std"], both.std(0))
        np.testing.assert_array_equal(kinds["min"], both.min(0))
        for name, share in (("q01", 0.01), ("q50", 0.5), ("q99", 0.99)):
            np.testing.assert_allclose(kinds[name], np.quantile(both, share, axis=0))
        np.testing.assert_allclose(
            found["arm"]["mean"], self.values(worlds / "kitchen", "arm").mean(0)
        )

    def test_weigh_as_samples_are_drawn(self, worlds):
        mixture = MixtureReader(
            [Part(worlds / "kitchen", probability=0.25), Part(worlds / "old", probability=0.75)]
        )
        found = mixture_stats(mixture)
        first, second = (self.values(worlds / n, "action") for n in ("kitchen", "old"))
        # 21 and 13 frames: 13 copies of each frame of the one, 63 of the other.
        drawn = np.concatenate([np.repeat(first, 13, axis=0), np.repeat(second, 63, axis=0)])
        np.testing.assert_allclose(found.merged["action"]["mean"], drawn.mean(0))
        np.testing.assert_allclose(found.merged["action"]["std"], drawn.std(0))
        np.testing.assert_allclose(found.merged["action"]["q90"], np.quantile(drawn, 0.9, axis=0))
        np.testing.assert_allclose(found.parts[0]["action"]["mean"], first.mean(0))
        np.testing.assert_allclose(
            found.by_key["old"]["action"]["q10"], np.quantile(second, 0.1, axis=0)
        )

    def test_padding_and_other_frames_do_not_count(self, worlds):
        mixture = MixtureReader(
            [
                Part(worlds / "kitchen", where="intervention", normalize_as="both"),
                Part(worlds / "table", normalize_as="both"),
            ],
            pad={"arm": 4},
            cameras=[],
        )
        found = mixture_stats(mixture)
        kitchen = self.values(worlds / "kitchen", "arm")
        kitchen = kitchen[self.values(worlds / "kitchen", "intervention").astype(bool)]
        assert found.merged["arm"]["mean"].shape == (4,)
        assert found.merged["arm"]["mean"][2] == pytest.approx(kitchen[:, 2].mean())
        assert found.merged["arm"]["std"][3] == 0
        assert list(found.by_key) == ["both"]

    def test_of_frames(self, worlds):
        mixture = MixtureReader(
            [Part(worlds / "kitchen", probability=0.5), Part(worlds / "old", probability=0.5)]
        )
        found = mixture_stats(mixture)
        stated = [demoreel.open(worlds / n).stats[FRONT]["mean"] for n in ("kitchen", "old")]
        np.testing.assert_allclose(
            found.merged[FRONT]["mean"].reshape(-1), np.mean(stated, axis=0).reshape(-1), rtol=1e-5
        )
        assert found.merged[FRONT]["mean"].shape == (3, 1, 1)

    def test_of_frames_whose_levels_were_counted(self, worlds, tmp_path):
        """As numpy has them over all images, each as often as it is sampled; quantiles too."""
        roots = [shutil.copytree(worlds / n, tmp_path / n) for n in ("kitchen", "old")]
        for root in roots:
            demoreel.recompute_stats(root)
        parts = [Part(roots[0], probability=0.25, episodes=[1]), Part(roots[1], probability=0.75)]
        found = mixture_stats(MixtureReader(parts))
        assert found.approximate == []
        images = [demoreel.open(root, episodes=part.episodes) for root, part in
                  zip(roots, parts, strict=True)]  # fmt: skip
        levels = [own.batch(range(len(own)))[FRONT].swapaxes(0, 1) / 255 for own in images]
        # 9 frames and 13: 13 copies of each frame of the one, 27 of the other.
        drawn = np.concatenate(
            [np.tile(one.reshape(3, -1), n) for one, n in zip(levels, (13, 27), strict=True)], 1
        )
        kinds = {kind: value.reshape(-1) for kind, value in found.merged[FRONT].items()}
        np.testing.assert_allclose(kinds["mean"], drawn.mean(1), rtol=1e-6)
        np.testing.assert_allclose(kinds["std"], drawn.std(1), rtol=1e-6)
        for name, share in (("min", 0), ("q01", 0.01), ("q50", 0.5), ("q90", 0.9), ("max", 1)):
            np.testing.assert_allclose(kinds[name], np.quantile(drawn, share, axis=1), atol=1e-6)
        scaled = mixture_stats(MixtureReader(parts, image_size=(16, 24)))
        assert scaled.approximate == [FRONT]


class TestFiles:
    def test_yaml_and_json_say_the_same(self, worlds, tmp_path):
        text = f"""
parts:
  - {worlds / "kitchen"}
  - source: {worlds / "table"}
    episodes: 0:2
    rename: {{{TOP}: {FRONT}}}
image_size: [24, 32]
pad: {{arm: 3}}
weights: equal
"""
        (tmp_path / "mix.yaml").write_text(text)
        found = mixture_arguments(tmp_path / "mix.yaml")
        assert found["parts"][1].episodes == [0, 1]
        assert found["image_size"] == (24, 32)
        raw = {
            "parts": [
                str(worlds / "kitchen"),
                {"source": str(worlds / "table"), "episodes": [0, 1], "rename": {TOP: FRONT}},
            ],
            "image_size": [24, 32],
            "pad": {"arm": 3},
            "weights": "equal",
        }
        (tmp_path / "mix.json").write_text(json.dumps(raw))
        assert mixture_arguments(tmp_path / "mix.json") == found

    def test_paths_are_relative_to_the_file(self, worlds):
        (worlds / "here.yaml").write_text("parts: [kitchen, 's3://bucket/ds']")
        found = mixture_arguments(worlds / "here.yaml")["parts"]
        assert [str(part.source) for part in found] == [str(worlds / "kitchen"), "s3://bucket/ds"]

    @pytest.mark.parametrize(
        ("text", "words"),
        [
            ("parts: []", "no list"),
            ("[1, 2]", "no list"),
            ("parts: [{sauce: a}]", "no source"),
            ("parts: [{source: a, probabilty: 1}]", "probabilty"),
            ("parts: [a]\nimage: 3", "'image'"),
            ("parts: [a]\nseed: yes", "seed"),
            ("parts: [{source: a, episodes: all}]", "FIRST:END"),
            ("parts: [a", "neither"),
            ("parts: !!python/object/apply:os.system ['true']", "neither"),
        ],
    )
    def test_what_is_no_mixture(self, tmp_path, text, words):
        (tmp_path / "mix.yaml").write_text(text)
        with pytest.raises(ArgumentError, match=words):
            mixture_arguments(tmp_path / "mix.yaml")
        with pytest.raises(DatasetNotFoundError):
            mixture_arguments(tmp_path / "none.yaml")
