"""A video and its index belong together, whatever happens to the file."""

from __future__ import annotations

import os
import shutil
import threading

import numpy as np
import pytest

from demoreel.errors import VideoError
from demoreel.media import mp4, video
from demoreel.media.decode import Decoder, GopSpan
from demoreel.media.video import open_video


@pytest.fixture
def short(films):
    return films.film(codec="h264", frames=10, gop=5)


@pytest.fixture
def long(films):
    return films.film(codec="h264", frames=20, gop=4, b_frames=2)


def frames_of(opened):
    span = GopSpan(opened.index, opened.file, opened.name, tuple(range(opened.index.frames)))
    return [frame.to_ndarray(format="rgb24") for _, frame in Decoder().frames(span)]


def same(images, expected):
    return len(images) == len(expected) and all(
        np.array_equal(one, two) for one, two in zip(images, expected, strict=True)
    )


def test_a_second_open_reads_nothing(short, monkeypatch):
    first = open_video(short)
    monkeypatch.setattr(mp4, "read_index", None)
    assert open_video(short).index is first.index
    assert open_video(str(short)).index is first.index
    assert first.name == str(short)


def test_a_replaced_file_is_read_anew(films, short, long, tmp_path):
    path = tmp_path / "v.mp4"
    shutil.copy(short, path)
    before = open_video(path)
    assert before.index.frames == 10
    shutil.copy(long, tmp_path / "new")
    os.replace(tmp_path / "new", path)
    after = open_video(path)
    assert after.index.frames == 20
    assert same(frames_of(after), films.plain(long)[0])
    # Who still holds the first one continues reading the first file, with its own index.
    assert same(frames_of(before), films.plain(short)[0])


def test_a_file_of_the_same_size_and_name_is_another_file(films, tmp_path):
    """Same length, other packets: as when an episode is recorded again."""
    one = films.film(codec="mpeg4", frames=6, gop=1)
    two = films.film(codec="mpeg4", frames=6, gop=6)
    size = max(one.stat().st_size, two.stat().st_size) + 8
    path = tmp_path / "v.mp4"
    for source in (one, two, one):
        data = source.read_bytes()
        rest = size - len(data)
        fresh = tmp_path / "new"
        fresh.write_bytes(data + rest.to_bytes(4, "big") + b"free" + bytes(rest - 8))
        os.replace(fresh, path)
        assert same(frames_of(open_video(path)), films.plain(source)[0])


def test_a_file_that_is_rewritten_in_place(films, short, long, tmp_path):
    path = tmp_path / "v.mp4"
    shutil.copy(short, path)
    open_video(path)
    with path.open("r+b") as file:
        file.write(long.read_bytes())
        file.truncate()
    assert same(frames_of(open_video(path)), films.plain(long)[0])


def test_cut_off_after_it_was_opened(films, tmp_path):
    path = tmp_path / "v.mp4"
    shutil.copy(films.film(codec="h264", frames=20, gop=4, mux={"movflags": "faststart"}), path)
    opened = open_video(path)
    os.truncate(path, int(opened.index.offset[10]))
    with pytest.raises(VideoError, match="cut off"):
        frames_of(opened)
    with pytest.raises(VideoError, match="cut off"):
        open_video(path)
    # What is before the cut can still be had.
    early = GopSpan(opened.index, opened.file, opened.name, (0, 1, 2))
    assert [number for number, _ in Decoder().frames(early)] == [0, 1, 2]


def test_a_file_that_is_deleted_after_it_was_opened(films, short, tmp_path):
    path = tmp_path / "v.mp4"
    shutil.copy(short, path)
    opened = open_video(path)
    path.unlink()
    assert same(frames_of(opened), films.plain(short)[0])
    with pytest.raises(VideoError, match="No such file"):
        open_video(path)


def test_an_error_is_not_remembered(short, tmp_path):
    path = tmp_path / "v.mp4"
    path.write_bytes(short.read_bytes()[:1000])
    with pytest.raises(VideoError):
        open_video(path)
    shutil.copy(short, path)
    assert open_video(path).index.frames == 10


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(VideoError, match="cannot be opened") as caught:
        open_video(tmp_path / "none.mp4")
    assert caught.value.where["file"] == str(tmp_path / "none.mp4")
    assert caught.value.hint


def test_a_folder_is_no_video(tmp_path):
    with pytest.raises(VideoError, match="directory"):
        open_video(tmp_path)


def test_a_file_that_not_even_root_can_open(tmp_path):
    path = tmp_path / "v.mp4"
    path.symlink_to(path)
    with pytest.raises(VideoError, match="cannot be opened"):
        open_video(path)


def test_text_is_no_video(tmp_path):
    path = tmp_path / "v.mp4"
    path.write_text("<html>You have no access to this file.</html>\n")
    with pytest.raises(VideoError, match="does not open"):
        open_video(path)


def test_a_git_lfs_pointer_is_called_that(tmp_path):
    path = tmp_path / "v.mp4"
    path.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 123\n")
    with pytest.raises(VideoError, match=r"(?s)Git LFS pointer.*git lfs pull"):
        open_video(path)


def test_indices_stay_bounded(films, short, tmp_path, monkeypatch):
    """Only the most recently used ones are kept, by their size."""
    each = open_video(short).index.nbytes
    monkeypatch.setattr(video._indices, "most_bytes", 5 * each)
    for number in range(20):
        shutil.copy(short, tmp_path / f"{number}.mp4")
        assert open_video(tmp_path / f"{number}.mp4").index.frames == 10
        assert video._indices.held_bytes <= 5 * each


def test_many_threads_open_the_same_file(films, tmp_path):
    source = films.film(codec="av1", frames=12)
    path = tmp_path / "v.mp4"
    shutil.copy(source, path)
    expected, _ = films.plain(source)
    results = []

    def work():
        results.append(same(frames_of(open_video(path)), expected))

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [True] * 8
