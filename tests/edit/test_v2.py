"""Results that are v2.1: one table and one video per camera for each episode, and nothing more."""

from __future__ import annotations

import json

import pytest

from demoreel.edit.cut import cut
from demoreel.errors import FrameMismatchError
from demoreel.testing import make_dataset
from demoreel.testing.suite import LayoutTests

from .conftest import CAMERA, assert_is, opened, tasks_of


@pytest.mark.parametrize("name", ["small_files", "open_gop", "hevc", "av1", "v2.1"])
def test_there_and_back(whole, name, tmp_path):
    """To v2.1, to v3.0 and to v2.1 again: the items stay equal."""
    made = whole(name)
    made.render(tmp_path / "a", layout="v2.1", verify="full", chunks_size=2)
    cut(tmp_path / "a").render(tmp_path / "b", verify="full")
    cut(tmp_path / "b").render(tmp_path / "c", layout="v2.1", verify="full")
    source = opened(made.cutlist.sources[0].path)
    for place, layout in (("a", "v2.1"), ("b", "v3.0"), ("c", "v2.1")):
        result = opened(tmp_path / place)
        assert result.layout == layout
        assert_is(result, made)
        assert tasks_of(result) == tasks_of(source)
        assert result.stats["action"]["count"] == [len(source)]
        assert result.stats[CAMERA]["mean"].shape == (3, 1, 1)


def test_what_v2_says_of_itself(whole, tmp_path):
    whole("small_files").delete(0).render(tmp_path / "out", layout="v2.1", chunks_size=2)
    info = json.loads((tmp_path / "out" / "meta" / "info.json").read_text())
    assert (info["total_videos"], info["total_chunks"], info["total_episodes"]) == (3, 2, 3)
    assert info["splits"] == {"train": "0:3"}
    files = sorted(p.relative_to(tmp_path / "out") for p in (tmp_path / "out").rglob("*.mp4"))
    assert [str(path) for path in files] == [
        f"videos/chunk-{n // 2:03d}/{CAMERA}/episode_{n:06d}.mp4" for n in range(3)
    ]
    lines = (tmp_path / "out" / "meta" / "episodes_stats.jsonl").read_text().splitlines()
    assert [json.loads(line)["stats"]["action"]["count"] for line in lines] == [[12], [3], [9]]


def test_clips_begin_with_a_group_of_images(whole, tmp_path):
    made = whole("small_files").trim(1, 4, 10)  # a keyframe every four frames
    made.render(tmp_path / "out", layout="v2.1")
    assert_is(opened(tmp_path / "out"), made)
    with pytest.raises(FrameMismatchError, match="1 more"):
        whole("small_files").trim(1, 5, 10).render(tmp_path / "no", layout="v2.1")
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


class TestWhatIsRendered(LayoutTests):
    """A rendered dataset passes what every layout does."""

    layout = "v2.1"
    test_pickles_small_and_reads_in_other_processes = None  # that is the reader's
    test_frame_rates = None  # of many episodes in one file

    @classmethod
    def make(cls, path, **options):
        made = make_dataset(path.with_name(path.name + "_source"), layout="v3.0", **options)
        cut(made).render(path, layout="v2.1")
        return path

    def test_statistics(self):
        """See ``test_there_and_back``: a result has statistics though its source has none."""
