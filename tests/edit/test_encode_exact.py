"""Clips that carry no packet but their own: a few frames encoded, the rest copied verbatim."""

from __future__ import annotations

import random

import av
import numpy as np
import pytest

from demoreel.edit import exact as exact_clips
from demoreel.edit.cut import cut
from demoreel.errors import FrameMismatchError, VideoError
from demoreel.testing import make_dataset, read_stamp

from .stamped import assert_shows, wanted

CAMERA = "observation.images.cam0"
KINDS = {
    "av1": {"codec": "av1"},
    "h264": {},
    "h264_b_frames": {"b_frames": 2},
    "h264_open_gop": {"b_frames": 2, "open_gop": True},
    "vp9": {"codec": "vp9"},
    "hevc": {"codec": "hevc"},
    "hevc_open_gop": {"codec": "hevc", "b_frames": 2, "open_gop": True},
}
CLIPS = wanted((0, range(3, 14)), (1, range(1, 9)), (2, range(7, 19)))


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("exact")
    return {
        name: make_dataset(folder / name, episodes=[17, 12, 20], gop=6, **options)
        for name, options in KINDS.items()
    }


@pytest.fixture(scope="module")
def exact(made, tmp_path_factory):
    """A function that trims a dataset of a kind, once."""
    folder = tmp_path_factory.mktemp("trimmed")

    def exact(name):
        if not (folder / name).exists():
            trimmed(made[name]).render(folder / name, exact=True)
        return folder / name

    return exact


def trimmed(source):
    return cut(source).trim(0, 3, 14).trim(1, 1, 9).trim(2, 7, 19)


def the_video(root):
    (video,) = root.glob("videos/**/*.mp4")
    return str(video)


def psnr(one, other):
    error = ((one.astype(float) - other.astype(float)) ** 2).mean(axis=(1, 2, 3))
    return 10 * np.log10(255**2 / np.maximum(error, 1e-9))


@pytest.mark.parametrize("name", KINDS)
def test_only_the_clips_own_frames_are_there(made, tmp_path, name):
    done = trimmed(made[name])
    assert done.plan().summary()["carried_frames"] > 0
    plan = done.plan(exact=True)
    assert plan.summary()["carried_frames"] == 0
    assert 0 < plan.summary()["encoded_frames"][CAMERA] <= 31
    done.render(tmp_path / "out", exact=True, verify="full")
    result = assert_shows(tmp_path / "out", CLIPS)
    assert result.reader.clip(0, CAMERA).video.index.frames == len(result)
    rows = [*range(3, 14), *range(18, 26), *range(36, 48)]
    theirs = assert_shows(made[name], wanted((0, range(17)), (1, range(12)), (2, range(20))))
    mine, theirs = (d.batch(r)[CAMERA] for d, r in ((result, range(len(rows))), (theirs, rows)))
    same = [np.array_equal(a, b) for a, b in zip(mine, theirs, strict=True)]
    assert len(same) - sum(same) <= plan.summary()["encoded_frames"][CAMERA]
    assert psnr(mine, theirs).min() > 40


@pytest.mark.parametrize("name", KINDS)
def test_players_run_across_the_seams(exact, name):
    result = assert_shows(exact(name), CLIPS)
    ours = result.batch(range(len(result)))[CAMERA]
    with av.open(the_video(exact(name))) as container:
        played = [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]
    assert len(played) == len(ours)
    assert all(np.array_equal(a.transpose(2, 0, 1), b) for a, b in zip(played, ours, strict=True))


@pytest.mark.parametrize("name", KINDS)
def test_one_decoder_seeks_back_and_forth(exact, name):
    """A decoder that keeps headers from where it was finds its way in the other's frames."""
    flat = [place for clip in CLIPS for place in clip]
    wanted_frames = random.Random(0).sample(range(len(flat)), 20)
    with av.open(the_video(exact(name))) as container:
        stream = container.streams.video[0]
        for number in wanted_frames:
            container.seek(round(number / 30 / stream.time_base), stream=stream, backward=True)
            found = next(
                frame
                for frame in container.decode(stream)
                if round(frame.pts * stream.time_base * 30) == number
            )
            stamp = read_stamp(found.to_ndarray(format="rgb24"))
            assert (stamp.episode, stamp.frame) == flat[number]


@pytest.mark.parametrize("name", KINDS)
def test_in_v21_where_a_video_holds_nothing_else(made, tmp_path, name):
    done = trimmed(made[name])
    with pytest.raises(FrameMismatchError, match="exact=True"):
        done.plan(layout="v2.1")
    done.render(tmp_path / "out", layout="v2.1", exact=True, verify="full")
    assert_shows(tmp_path / "out", CLIPS)


@pytest.mark.parametrize("name", ["av1", "h264_b_frames", "hevc"])
def test_cut_again_and_merged(made, tmp_path, name):
    """Headers of several encodings in one file, and files with and without them, get along."""
    trimmed(made[name]).render(tmp_path / "one", exact=True)
    cut(tmp_path / "one").trim(0, 1, 10).trim(2, 2, 9).render(tmp_path / "two", exact=True)
    twice = wanted((0, range(4, 13)), (1, range(1, 9)), (2, range(9, 16)))
    assert_shows(tmp_path / "two", twice)
    whole = wanted((0, range(17)), (1, range(12)), (2, range(20)))
    cut(tmp_path / "two").merge(tmp_path / "one", made[name]).render(
        tmp_path / "all", verify="full"
    )
    assert_shows(tmp_path / "all", twice + CLIPS + whole)


def test_depth_stays_what_it_was(tmp_path):
    make_dataset(tmp_path / "in", episodes=[13], cameras=0, depth_cameras={"depth": (64, 64)})
    done = cut(tmp_path / "in").trim(0, 3, 12)
    done.render(tmp_path / "out", exact=True, verify="full")
    mine = assert_shows(tmp_path / "out", wanted((0, range(3, 12)))).batch(range(9))["depth"]
    theirs = assert_shows(tmp_path / "in", wanted((0, range(13)))).batch(range(3, 12))["depth"]
    assert np.array_equal(mine, theirs)
    summary = done.plan(exact=True).summary()
    assert (summary["encoded_frames"], summary["whole_clips"]) == ({"depth": 9}, {"depth": 1})


def test_whole_episodes_need_nothing(made):
    for name in KINDS:
        assert cut(made[name]).delete(1).plan(exact=True).summary()["encoded_frames"] == {}


def test_what_cannot_be_encoded_alike_is_refused(tmp_path):
    make_dataset(tmp_path / "in", episodes=[9], gop=4, codec="mpeg4")
    with pytest.raises(VideoError, match="mpeg4") as refused:
        cut(tmp_path / "in").trim(0, 2).render(tmp_path / "out", exact=True)
    assert refused.value.where["camera"] == CAMERA
    assert "file-000.mp4" in str(refused.value.where["file"])
    assert "vcodec" in str(refused.value.hint)
    assert not (tmp_path / "out").exists()
    cut(tmp_path / "in").trim(0, 4).render(tmp_path / "out", exact=True)


@pytest.mark.parametrize("name", KINDS)
def test_whole_clips_where_packets_cannot_be_mixed(made, name):
    """A clip of HEVC that needs encoding is encoded as a whole, in another file."""
    done = cut(made[name]).trim(0, 3, 14)
    plan = done.plan(exact=True)
    is_hevc = name.startswith("hevc")
    assert plan.summary()["whole_clips"] == ({CAMERA: 1} if is_hevc else {})
    assert (len(plan.videos) == 2) is is_hevc


def test_a_header_without_room_means_whole_clips(made, tmp_path, monkeypatch):
    monkeypatch.setattr(exact_clips, "_MOST_SETS", 0)
    trimmed(made["h264"]).render(tmp_path / "out", exact=True, verify="full")
    assert_shows(tmp_path / "out", CLIPS)
    assert trimmed(made["h264"]).plan(exact=True).summary()["whole_clips"] == {CAMERA: 3}
