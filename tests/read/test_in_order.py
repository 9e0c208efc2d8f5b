"""Whole episodes to encoded images: the pixels that samples have, each video decoded once."""

from __future__ import annotations

import io
import shutil
import threading

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

import demoreel
from demoreel.errors import ArgumentError, PictureError, VideoError
from demoreel.media.decode import Decoder
from demoreel.media.images import ImageCodec, decode_image
from demoreel.model.depth import depth_table
from demoreel.read import in_order as decoding
from demoreel.read.in_order import MOST_ROWS, ReorderBuffer, encoded_images, in_order, one_by_one
from demoreel.testing import make_dataset

PNG = ImageCodec("png")


def every_image(dataset, codec=PNG, *, first=0, stop=None, threads=2):
    found = {key: [] for key in dataset.cameras}
    stop = len(dataset.episodes) if stop is None else stop
    for portion in encoded_images(
        dataset.reader, first=first, stop=stop, codec=codec, threads=threads
    ):
        lengths = {len(images) for images in portion.values()}
        assert len(lengths) == 1
        assert 1 <= lengths.pop() <= MOST_ROWS
        for key, images in portion.items():
            found[key] += images
    return found


def assert_same_pixels(dataset, found, *, first=0):
    begin = int(dataset.reader.episodes.start[first])
    for key, images in found.items():
        feature = dataset.features[key]
        for at in range(0, len(images), 64):
            part = images[at : at + 64]
            wanted = dataset.batch(range(begin + at, begin + at + len(part)))[key]
            for place, data in enumerate(part):
                if feature.is_depth:
                    codes = np.array(Image.open(io.BytesIO(data)))
                    assert codes.dtype == np.uint16
                    shown = depth_table(feature.depth_code)[codes][None]
                else:
                    shown = decode_image(data).transpose(2, 0, 1)
                assert np.array_equal(shown, wanted[place]), (key, at + place)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"gop": 250, "b_frames": 3},
        {"gop": 12, "b_frames": 3, "open_gop": True},
        {"gop": 9, "b_frames": 2, "pix_fmt": "yuv444p"},
        {"codec": "hevc", "gop": 30, "b_frames": 3},
        {"codec": "av1", "gop": 2},
        {"video_files_size_in_mb": 0.001},
        {"layout": "v2.1", "gop": 7},
    ],
    ids=lambda options: "-".join(map(str, options.values())) or "plain",
)
def test_the_pixels_are_those_of_samples(tmp_path, options):
    cameras = {"observation.images.a": (48, 64), "observation.images.b": (50, 70)}
    path = make_dataset(tmp_path / "made", episodes=[45, 1, 80], cameras=cameras, **options)
    dataset = demoreel.open(path)
    found = every_image(dataset)
    assert {key: len(images) for key, images in found.items()} == dict.fromkeys(cameras, 126)
    assert_same_pixels(dataset, found)


@pytest.mark.parametrize("name", ["kitchen_v30", "kitchen_images_v30"])
def test_datasets_of_other_tools(fixtures, name):
    dataset = demoreel.open(fixtures / name)
    found = every_image(dataset, stop=1)
    assert_same_pixels(dataset, found)


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_any_number_of_threads_gives_the_same(tmp_path, threads):
    cameras = {f"observation.images.{n}": (48, 64) for n in "abc"}
    path = make_dataset(tmp_path / "made", episodes=[70, 9], cameras=cameras, gop=6, b_frames=2)
    dataset = demoreel.open(path)
    assert every_image(dataset, threads=threads) == every_image(dataset, threads=None)


@pytest.mark.parametrize(("first", "stop"), [(1, 2), (0, 2), (2, 4), (3, 3), (0, 0)])
def test_a_part_of_the_episodes(tmp_path, first, stop):
    path = make_dataset(tmp_path / "made", episodes=[11, 30, 7, 52], gop=20, b_frames=2)
    dataset = demoreel.open(path)
    found = every_image(dataset, first=first, stop=stop)
    edges = dataset.reader.episodes.start
    (images,) = found.values()
    assert len(images) == edges[stop] - edges[first]
    assert_same_pixels(dataset, found, first=first)


def test_source_keeps_the_bytes_of_images_in_tables(tmp_path):
    key = "observation.images.still"
    made = make_dataset(tmp_path / "made", episodes=2, cameras=0, image_cameras={key: (48, 64)})
    dataset = demoreel.open(made)
    held = dataset.reader.encoded(np.arange(40), key)
    assert every_image(dataset, ImageCodec("source")) == {key: held}
    again = every_image(dataset, ImageCodec("webp-lossless"))
    assert again[key] != held
    assert_same_pixels(dataset, again)


def test_source_of_a_video_is_refused_at_once(tmp_path):
    dataset = demoreel.open(make_dataset(tmp_path / "made", episodes=1))
    with pytest.raises(ArgumentError, match="no source image bytes") as raised:
        encoded_images(dataset.reader, first=0, stop=1, codec=ImageCodec("source"))
    assert "jpeg, png or webp-lossless" in str(raised.value)


@pytest.mark.parametrize("wrong", [{"first": -1}, {"stop": 3}, {"first": 2, "stop": 1}])
def test_episodes_that_are_not_there(tmp_path, wrong):
    dataset = demoreel.open(make_dataset(tmp_path / "made", episodes=2, length=4))
    with pytest.raises(ArgumentError):
        encoded_images(dataset.reader, **{"first": 0, "stop": 2, "codec": PNG, **wrong})
    with pytest.raises(ArgumentError):
        encoded_images(dataset.reader, first=0, stop=2, codec=PNG, threads=0)


def test_a_dataset_without_cameras_has_nothing_to_encode(tmp_path):
    dataset = demoreel.open(make_dataset(tmp_path / "made", episodes=[300], cameras=0))
    assert list(encoded_images(dataset.reader, first=0, stop=1, codec=PNG)) == []


# Errors


def damaged(path, share):
    data = bytearray(path.read_bytes())
    at = int(len(data) * share)
    data[at : at + 400] = bytes(400)
    path.write_bytes(data)


def test_a_damaged_video_says_where(tmp_path):
    path = make_dataset(
        tmp_path / "made", episodes=[40, 40, 40], cameras={"observation.images.a": (96, 96)}, gop=10
    )
    (video,) = path.rglob("*.mp4")
    damaged(video, 0.5)
    dataset = demoreel.open(path)
    with pytest.raises(VideoError) as raised:
        every_image(dataset)
    where = raised.value.where
    assert where["camera"] == "observation.images.a"
    assert where["dataset"] == path
    assert str(where["file"]) == str(video)
    episodes = dataset.episodes
    frame = where["frame"]
    assert int(where["episode"]) == int(episodes.positions_of_rows(np.array([frame]))[0])


def test_a_missing_video_says_whose_it_is(tmp_path):
    path = make_dataset(tmp_path / "made", episodes=3, video_files_size_in_mb=0.001)
    missing = sorted(path.rglob("*.mp4"))[1]
    missing.unlink()
    with pytest.raises(VideoError) as raised:
        every_image(demoreel.open(path))
    assert raised.value.where["episode"] == 1
    assert str(raised.value.where["file"]) == str(missing)


def test_an_image_that_does_not_decode_says_where(tmp_path):
    key = "observation.images.still"
    path = make_dataset(tmp_path / "made", episodes=2, cameras=0, image_cameras={key: (48, 64)})
    (table,) = (path / "data").rglob("*.parquet")
    rows = pq.read_table(table)
    images = rows.column(key).to_pylist()
    images[25]["bytes"] = images[25]["bytes"][:60]
    place = rows.schema.get_field_index(key)
    new = pa.array(images, rows.schema.field(place).type)
    pq.write_table(rows.set_column(place, rows.schema.field(place), new), table)
    with pytest.raises(PictureError) as raised:
        every_image(demoreel.open(path))
    assert raised.value.where["episode"] == 1
    assert raised.value.where["camera"] == key


def test_threads_end_with_an_abandoned_iterator(tmp_path):
    path = make_dataset(tmp_path / "made", episodes=[400], cameras=2, gop=5)
    before = set(threading.enumerate())
    portions = encoded_images(demoreel.open(path).reader, first=0, stop=1, codec=PNG, threads=3)
    next(portions)
    portions.close()
    assert set(threading.enumerate()) <= before


# How much is decoded, and how much waits


def test_every_packet_is_decoded_once(tmp_path, monkeypatch):
    path = make_dataset(tmp_path / "made", episodes=[50, 70, 33, 100], gop=14, b_frames=2)
    decoded = []
    real = Decoder._wanted

    def counted(self, gop_span, start, wanted):
        decoded.extend(gop_span.packets(start).tolist())
        return real(self, gop_span, start, wanted)

    monkeypatch.setattr(Decoder, "_wanted", counted)
    every_image(demoreel.open(path))
    assert sorted(decoded) == list(range(253))


def test_a_part_that_begins_inside_a_group_costs_only_its_head(tmp_path, monkeypatch):
    path = make_dataset(tmp_path / "made", episodes=[40, 60], gop=30)
    decoded = []
    real = Decoder._wanted

    def counted(self, gop_span, start, wanted):
        decoded.extend(gop_span.packets(start).tolist())
        return real(self, gop_span, start, wanted)

    monkeypatch.setattr(Decoder, "_wanted", counted)
    dataset = demoreel.open(path)
    every_image(dataset, first=1)
    begin = int(dataset.reader.clip(1, dataset.cameras[0]).video.index.starts([40])[0])
    assert sorted(decoded) == list(range(begin, 100))


@pytest.mark.soak
@pytest.mark.parametrize("threads", [1, 4])
@pytest.mark.parametrize("options", [{"gop": 1000}, {"gop": 4}])
def test_what_waits_is_bounded_however_long_the_groups_are(tmp_path, monkeypatch, threads, options):
    path = make_dataset(tmp_path / "made", episodes=[600], cameras=3, **options)
    dataset = demoreel.open(path)
    room = 60_000
    held = []
    real = ReorderBuffer.put

    def watched(self, place, item):
        real(self, place, item)
        held.append(self.held)

    monkeypatch.setattr(ReorderBuffer, "put", watched)
    monkeypatch.setattr(decoding, "_BYTES_WAITING", room)
    found = every_image(dataset, ImageCodec("jpeg"), threads=threads)
    total = sum(len(data) for images in found.values() for data in images)
    largest = max(len(data) for images in found.values() for data in images)
    assert total > 10 * room
    assert max(held) <= room + 8 * largest


# The iterator alone


def test_what_jobs_make_comes_in_their_order_however_long_they_take():
    def job(number):
        def work(decoder):
            sum(range((50 - number) * 2000))
            yield from [number] * (number % 3)

        return work

    found = list(one_by_one(map(job, range(50)), threads=3))
    assert found == [number for number in range(50) for _ in range(number % 3)]


def test_lanes_are_taken_in_step():
    def job(*made):
        return lambda decoder: made

    jobs = [("a", job(1, 2, 3)), ("b", job(1)), ("b", job(2, 3)), ("a", job(4)), ("b", job(4))]
    found = list(in_order(jobs, ["a", "b"], threads=2, most=3))
    assert found == [{"a": [1, 2, 3], "b": [1, 2, 3]}, {"a": [4], "b": [4]}]


def test_a_full_buffer_takes_what_is_waited_for_and_nothing_else():
    early = threading.Event()

    def first(decoder):
        assert early.wait(10)
        yield b"0"  # would wait for ever if a full buffer took nothing
        yield b"1"

    def second(decoder):
        yield bytes(20)
        early.set()
        yield b"3"

    jobs = [(None, first), (None, second)]
    portions = in_order(jobs, [None], threads=2, most=9, room=10, size=len)
    found = [item for portion in portions for item in portion[None]]
    assert found == [b"0", b"1", bytes(20), b"3"]


def test_an_error_reaches_the_caller_and_ends_the_others():
    before = set(threading.enumerate())

    def endless(decoder):
        while True:
            yield b"x"

    def broken(decoder):
        raise KeyError("of no kind that is expected")

    jobs = [(None, endless), (None, broken)]
    with pytest.raises(KeyError):
        list(in_order(jobs, [None], threads=2, room=10, size=len))
    assert set(threading.enumerate()) <= before


def test_lance_is_a_source_too(tmp_path, fixtures):
    shutil.copytree(fixtures / "g1_lance_video", tmp_path / "copy")
    dataset = demoreel.open(tmp_path / "copy")
    found = every_image(dataset, ImageCodec("jpeg"), stop=1)
    same = every_image(demoreel.open(fixtures / "g1_v30"), ImageCodec("jpeg"), stop=1)
    assert found == same
