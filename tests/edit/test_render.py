"""Whatever is cut, every frame is found once, where the plan says, with the same bytes."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import av
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from demoreel.edit.clips import Clip, CutList
from demoreel.edit.cut import Cut, cut, load
from demoreel.errors import ArgumentError, TargetExistsError
from demoreel.testing.suite import LayoutTests
from support.plain_stats import stats_of_rows

from .conftest import CAMERA, KINDS, assert_is, opened, tasks_of

SLOWLY = settings(
    max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@st.composite
def cut_lists(draw):
    """Names of 1 to 5 sources, clips of them (source, episode, start, stop), and sizes of files."""
    names = draw(st.lists(st.sampled_from(sorted(KINDS)), min_size=1, max_size=5, unique=True))
    clips = []
    for _ in range(draw(st.integers(1, 7))):
        source = draw(st.integers(0, len(names) - 1))
        lengths = KINDS[names[source]]["episodes"]
        episode = draw(st.integers(0, len(lengths) - 1))
        start = draw(st.integers(0, lengths[episode] - 1))
        clips.append((source, episode, start, draw(st.integers(start + 1, lengths[episode]))))
    sizes = {
        "data_files_size_in_mb": draw(st.sampled_from([0.002, 0.01, 100])),
        "video_files_size_in_mb": draw(st.sampled_from([0.002, 0.01, 200])),
        "chunks_size": draw(st.sampled_from([1, 2, 1000])),
    }
    return names, clips, sizes


@SLOWLY
@given(drawn=cut_lists())
def test_every_frame_is_where_the_plan_says(sources, drawn):
    names, clips, sizes = drawn
    every = [cut(sources[name]).cutlist.sources[0] for name in names]
    wanted = Cut(CutList(tuple(every), tuple(Clip(*clip) for clip in clips)))
    with tempfile.TemporaryDirectory() as folder:
        wanted.render(f"{folder}/out", verify="full", **sizes)
        result = opened(f"{folder}/out")
        assert_is(result, wanted)
        their_tasks = []
        for clip in wanted.clips:
            source = opened(wanted.cutlist.sources[clip.source].path)
            begin = int(source.episodes.start[clip.episode])
            their_tasks += tasks_of(source)[begin + clip.start : begin + clip.stop]
        assert tasks_of(result) == their_tasks
        assert sorted(result.tasks) == list(range(len(result.tasks)))
        assert_plays_through(result)


def assert_plays_through(result) -> None:
    """FFmpeg, decoding each video from its beginning to its end, shows every frame, in order."""
    shown: dict[str, dict[int, np.ndarray]] = {}
    for position, episode in enumerate(result.episodes):
        place = result.reader.clip(position, CAMERA)
        if place.video.name not in shown:
            shown[place.video.name] = played(place.video.name)
        images = shown[place.video.name]
        wanted = result.batch(range(episode.start, episode.stop))[CAMERA]
        for frame, image in enumerate(wanted):
            found = images[place.first + frame]
            assert np.array_equal(found.transpose(2, 0, 1), image), (position, frame)


def played(path: str) -> dict[int, np.ndarray]:
    with av.open(path) as container:
        stream = container.streams.video[0]
        assert stream.average_rate == 30
        frames = {}
        last = -1
        for frame in container.decode(stream):
            number = round(frame.pts * stream.time_base * 30)
            assert number > last
            assert float(frame.pts * stream.time_base * 30) == number
            frames[number] = frame.to_ndarray(format="rgb24")
            last = number
    return frames


@pytest.mark.soak
@settings(SLOWLY, max_examples=8)
@given(names=st.lists(st.sampled_from(sorted(KINDS)), min_size=3, max_size=3))
def test_merging_is_associative(sources, names):
    a, b, c = (cut(sources[name]) for name in names)
    assert a.merge(b).merge(c).cutlist == a.merge(b.merge(c)).cutlist
    assert a.merge(b, c).cutlist == a.merge(b).merge(c).cutlist
    with tempfile.TemporaryDirectory() as folder:
        a.merge(b).render(f"{folder}/ab")
        cut(f"{folder}/ab").merge(c).render(f"{folder}/ab_c")
        b.merge(c).render(f"{folder}/bc")
        a.merge(f"{folder}/bc").render(f"{folder}/a_bc")
        left, right = opened(f"{folder}/ab_c"), opened(f"{folder}/a_bc")
        assert_is(left, a.merge(b, c))
        assert_is(right, a.merge(b, c))
        assert tasks_of(left) == tasks_of(right)


@pytest.mark.parametrize("name", ["small_files", "open_gop", "hevc", "v2.1"])
def test_a_split_followed_by_a_merge_gives_the_items_back(whole, name, tmp_path):
    parts = whole(name).split({"one": 0.5, "two": 0.5})
    for part in parts:
        parts[part].render(tmp_path / part)
    cut(tmp_path / "one").merge(tmp_path / "two").render(tmp_path / "both")
    assert_is(opened(tmp_path / "both"), whole(name))
    source = opened(whole(name).cutlist.sources[0].path)
    assert tasks_of(opened(tmp_path / "both")) == tasks_of(source)


@settings(SLOWLY, max_examples=6)
@given(drawn=cut_lists())
def test_statistics_equal_recomputation(sources, drawn):
    names, clips, sizes = drawn
    every = [cut(sources[name]).cutlist.sources[0] for name in names]
    wanted = Cut(CutList(tuple(every), tuple(Clip(*clip) for clip in clips)))
    with tempfile.TemporaryDirectory() as folder:
        wanted.render(f"{folder}/out", **sizes)
        result = opened(f"{folder}/out")
        numeric = [key for key, f in result.features.items() if f.is_numeric]
        rows = result.reader.rows(np.arange(len(result)), numeric)
        again = stats_of_rows(result.features, rows)
        for key in numeric:
            for kind, value in again[key].items():
                found = result.stats[key][kind]
                np.testing.assert_allclose(found, value, rtol=1e-12, atol=1e-12)
                assert kind in ("mean", "std") or np.array_equal(found, value), (key, kind)
        assert result.stats[CAMERA]["count"] == [len(result)] or any(
            clip.length < KINDS[names[clip.source]]["episodes"][clip.episode]
            for clip in wanted.clips
        )


class TestWhatIsRendered(LayoutTests):
    """A rendered dataset passes what every layout does."""

    layout = "v3.0"
    test_pickles_small_and_reads_in_other_processes = None  # that is the reader's

    @classmethod
    def make(cls, path, **options):
        made = LayoutTests.make.__func__(cls, path.with_name(path.name + "_source"), **options)
        cut(made).render(path)
        return path

    def test_statistics(self, tmp_path):
        """Numbers have statistics, whether the source had some or not; images only if it had."""
        LayoutTests.make(tmp_path / "bare", episodes=[2, 3], with_stats=False)
        cut(tmp_path / "bare").render(tmp_path / "out")
        found = opened(tmp_path / "out").stats
        assert found["observation.state"]["count"].tolist() == [5]
        assert CAMERA not in found


def test_a_cut_list_goes_through_a_file(whole, tmp_path):
    wanted = whole("b_frames").trim(0, 3, 0.3).retask({0: "another"}).remove("note")
    wanted.save(tmp_path / "list.json")
    assert load(tmp_path / "list.json").cutlist == wanted.cutlist
    raw = json.loads((tmp_path / "list.json").read_text())
    assert raw["clips"][0] == [0, 0, 3, 9, "another"]
    load(tmp_path / "list.json").render(tmp_path / "out")
    assert "note" not in opened(tmp_path / "out").features


def test_a_cut_list_of_a_source_that_changed_is_refused(tmp_path, sources):
    import shutil

    shutil.copytree(sources["av1"], tmp_path / "copy")
    cut(tmp_path / "copy").save(tmp_path / "list.json")
    info = tmp_path / "copy" / "meta" / "info.json"
    info.write_text(info.read_text().replace("made_up", "other"))
    with pytest.raises(ArgumentError, match="has changed"):
        load(tmp_path / "list.json").render(tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "text", ["[]", "{}", '{"demoreel.cutlist": 2}', '{"demoreel.cutlist": 1, "sources": []}']
)
def test_what_is_no_cut_list_is_refused(tmp_path, text):
    (tmp_path / "list.json").write_text(text)
    with pytest.raises(ArgumentError):
        load(tmp_path / "list.json")


def test_a_target_that_is_there_is_refused(whole, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine").write_text("x")
    with pytest.raises(TargetExistsError):
        whole("av1").render(tmp_path / "out")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["out"]


def test_a_source_is_no_target(whole, sources):
    for target in (sources["av1"], sources["av1"] / "data" / "x", sources["av1"].parent):
        with pytest.raises(ArgumentError, match="source"):
            whole("av1").render(target)


def test_the_same_plan_on_every_machine(whole):
    assert whole("open_gop").plan().fingerprint == whole("open_gop").plan().fingerprint
    assert whole("open_gop").plan().fingerprint != whole("open_gop").delete(1).plan().fingerprint


def test_the_source_is_only_read(sources, tmp_path):
    def state(root: Path):
        return {p: (p.stat().st_mtime_ns, p.stat().st_size) for p in root.rglob("*")}

    before = state(sources["small_files"])
    cut(sources["small_files"]).trim(1, 3, 7).render(tmp_path / "out")
    assert state(sources["small_files"]) == before
