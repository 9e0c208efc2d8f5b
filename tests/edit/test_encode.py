"""Cameras re-encoded, images made into videos, cameras that a source does not have."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import numpy as np
import pytest

import demoreel
from demoreel.edit import packing
from demoreel.edit.cut import cut
from demoreel.edit.render import commit
from demoreel.errors import ArgumentError, ConversionError, UnknownKeyError
from demoreel.stats.recompute import recompute
from demoreel.testing import make_dataset, read_stamp

from .stamped import assert_shows, wanted

FRONT, TOP, STILL, DEPTH = "front", "top", "still", "depth"
WHOLE = wanted((0, range(9)), (1, range(6)))


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    return make_dataset(
        tmp_path_factory.mktemp("encode") / "source",
        episodes=[9, 6],
        gop=4,
        cameras={FRONT: (64, 64), TOP: (64, 96)},
        image_cameras={STILL: (64, 64)},
        depth_cameras={DEPTH: (64, 64)},
    )


def depths(path):
    ds = demoreel.open(path, decode_threads=1)
    return ds.batch(range(len(ds)))[DEPTH]


@pytest.mark.parametrize("vcodec", ["libsvtav1", "h264", "hevc", "vp9"])
def test_every_codec(source, tmp_path, vcodec):
    plan = cut(source).plan(vcodec=vcodec)
    assert plan.summary()["encoded_frames"] == {FRONT: 15, TOP: 15}
    cut(source).render(tmp_path / "out", vcodec=vcodec, crf=25, gop=3, verify="full")
    result = assert_shows(tmp_path / "out", WHOLE)
    said = result.features[FRONT].info
    codec = {"libsvtav1": "av1"}.get(vcodec, vcodec)
    assert (said["video.codec"], said["video.crf"], said["video.g"]) == (codec, 25, 3)
    index = result.reader.clip(0, FRONT).video.index
    assert (index.start_of == np.arange(len(index.start_of))).sum() == 5  # 9 frames, then 6
    assert np.array_equal(depths(tmp_path / "out"), depths(source))


def test_cameras_by_name(source, tmp_path):
    cut(source).trim(0, 1).render(tmp_path / "out", vcodec="h264", pix_fmt="yuv444p", cameras=[TOP])
    result = assert_shows(tmp_path / "out", wanted((0, range(1, 9)), (1, range(6))))
    assert result.features[TOP].info["video.pix_fmt"] == "yuv444p"
    assert result.features[FRONT].info == demoreel.open(source).features[FRONT].info


def test_images_in_tables_become_a_video(source, tmp_path):
    cut(source).render(tmp_path / "out", images="video", verify="full")
    result = assert_shows(tmp_path / "out", WHOLE)
    assert result.features[STILL].dtype == "video"
    assert result.features[STILL].info["video.codec"] == "av1"
    assert result.features[FRONT].info["video.codec"] == "h264"
    cut(source).render(
        tmp_path / "v21", images="video", vcodec="h264", cameras=[STILL], layout="v2.1"
    )
    assert_shows(tmp_path / "v21", WHOLE)


@pytest.mark.parametrize(
    ("form", "error", "said"),
    [
        ({"vcodec": "h265x"}, ArgumentError, "no codec"),
        ({"crf": 20}, ArgumentError, "no codec"),
        ({"cameras": [FRONT]}, ArgumentError, "no codec"),
        ({"vcodec": "h264", "cameras": ["nothing"]}, UnknownKeyError, "no camera"),
        ({"vcodec": "h264", "cameras": [DEPTH]}, ArgumentError, "depth"),
        ({"vcodec": "h264", "cameras": [STILL]}, ArgumentError, "tables"),
        ({"vcodec": "av1", "gop": 0}, ArgumentError, "gop"),
        ({"images": "film"}, ArgumentError, "images"),
        ({"fps": 0}, ArgumentError, "positive"),
        ({"fps": -3}, ArgumentError, "positive"),
    ],
)
def test_what_makes_no_sense(source, tmp_path, form, error, said):
    with pytest.raises(error, match=said):
        cut(source).render(tmp_path / "out", **form)
    assert list(tmp_path.iterdir()) == []


def test_files_are_tasks_and_any_number_of_processes_makes_them(source, tmp_path, monkeypatch):
    monkeypatch.setattr(packing, "_FRAMES_ENCODED", 10)
    form = {"vcodec": "h264", "crf": 20}
    done = cut(source).merge(source)
    done.render(tmp_path / "alone", **form)
    assert len(list((tmp_path / "alone").glob(f"videos/{FRONT}/**/*.mp4"))) == 4
    done.render(tmp_path / "jobs", jobs=2, **form)
    for shard in range(3):
        assert not done.render(tmp_path / "shards", shard=(shard, 3), **form).committed
    assert commit(tmp_path / "shards").committed
    for name in ("alone", "jobs", "shards"):
        assert_shows(tmp_path / name, WHOLE + WHOLE)
        assert sorted(path.name for path in tmp_path.iterdir()) == ["alone", "jobs", "shards"]


SLOW = """
import sys, demoreel
from demoreel.edit import packing
packing._FRAMES_ENCODED = 10
def tell(share):
    print(share, flush=True)
    sys.stdin.readline()
demoreel.cut(sys.argv[1]).render(sys.argv[2], vcodec="h264", report=tell)
"""


def test_killed_and_continued(source, tmp_path, monkeypatch):
    process = subprocess.Popen(
        [sys.executable, "-c", SLOW, str(source), str(tmp_path / "out")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout.readline()
    while not list(tmp_path.glob(".out.cut-*/notes/*.json")):
        assert process.poll() is None
    process.kill()
    process.wait()
    assert not (tmp_path / "out").exists()
    monkeypatch.setattr(packing, "_FRAMES_ENCODED", 10)
    assert cut(source).render(tmp_path / "out", vcodec="h264").resumed
    assert_shows(tmp_path / "out", WHOLE)
    assert os.listdir(tmp_path) == ["out"]


def test_other_images_are_noticed(source, tmp_path, monkeypatch):
    """What was encoded from the wrong frames does not become a dataset."""
    from demoreel.edit import videos

    right = videos._images
    monkeypatch.setattr(videos, "_images", lambda *what: reversed(list(right(*what))))
    with pytest.raises(ConversionError, match="re-encoded differs"):
        cut(source).render(tmp_path / "out", vcodec="h264")
    assert not (tmp_path / "out").exists()


def with_and_without(folder, codec="h264"):
    """Two datasets: one that has all cameras, one that has the first only."""
    make_dataset(folder / "plain", episodes=[6, 140], cameras={FRONT: (64, 64)})
    make_dataset(
        folder / "rich",
        episodes=[7],
        codec=codec,
        gop=4,
        cameras={FRONT: (64, 64), TOP: (64, 96)},
        image_cameras={STILL: (64, 64)},
        depth_cameras={DEPTH: (64, 64)},
    )
    return folder / "plain", folder / "rich"


@pytest.mark.parametrize(
    ("codec", "plain_first"), [("h264", True), ("h264", False), ("av1", True), ("hevc", False)]
)
def test_cameras_that_a_source_lacks_are_black(tmp_path, codec, plain_first):
    plain, rich = with_and_without(tmp_path, codec)
    one, other = (plain, rich) if plain_first else (rich, plain)
    done = cut(one).merge(other, features="union")
    assert done.plan().summary()["black_clips"] == {TOP: 2, DEPTH: 2}
    done.render(tmp_path / "out", verify="full")
    batch = demoreel.open(tmp_path / "out", decode_threads=1).batch(range(153))
    missing = batch["episode_index"] != (2 if plain_first else 0)
    for camera in (TOP, STILL, DEPTH):
        assert np.array_equal(batch[f"{camera}_is_missing"], missing)
    for camera in (TOP, STILL):
        assert batch[camera][missing].max() <= 2
        assert [read_stamp(p).frame for p in batch[camera][~missing]] == list(range(7))
    assert [read_stamp(p).frame for p in batch[FRONT]] == batch["frame_index"].tolist()
    cut(tmp_path / "out").delete([0]).render(tmp_path / "less", layout="v2.1", verify="full")
    assert len(demoreel.open(tmp_path / "less")) == 153 - done.clips[0].length


def test_black_images_are_no_data(tmp_path):
    """Statistics are those of the images that were filmed, through cuts and recomputation."""
    plain, rich = with_and_without(tmp_path)
    cut(plain).merge(rich, features="union").render(tmp_path / "union")
    cut(tmp_path / "union").delete(0).render(tmp_path / "less")
    cut(tmp_path / "less").merge(plain, features="union").render(tmp_path / "more")
    shutil.copytree(tmp_path / "more", tmp_path / "again")
    recompute(tmp_path / "again")
    theirs = demoreel.open(rich).stats
    for name in ("union", "less", "more", "again"):
        stats = demoreel.open(tmp_path / name).stats
        for camera in (TOP, STILL, DEPTH):
            if camera == DEPTH and name == "again":
                continue  # counted from all images there, sampled by none of the others
            for kind in ("count", "mean", "std", "min", "max"):
                assert np.allclose(stats[camera][kind], theirs[camera][kind], atol=1e-2), (
                    name,
                    camera,
                )
    rows = demoreel.open(tmp_path / "more", decode_threads=1).batch(range(293))
    expected = np.repeat([True, False, True], [140, 7, 146])
    assert np.array_equal(rows[f"{TOP}_is_missing"], expected)


def test_a_mask_stays_with_its_feature(tmp_path):
    plain, rich = with_and_without(tmp_path)
    cut(plain).merge(rich, features="union").render(tmp_path / "union")
    cut(tmp_path / "union").merge(rich, features="common").render(tmp_path / "out")
    result = demoreel.open(tmp_path / "out", decode_threads=1)
    assert result.batch(range(160))[f"{TOP}_is_missing"].sum() == 146
    with pytest.raises(ArgumentError, match="differ"):
        cut(tmp_path / "union").merge(rich).plan()
