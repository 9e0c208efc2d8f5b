"""What it takes to damage files on purpose."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from demoreel.media.encode import VideoEncoder, VideoSettings

DATA = "data/chunk-000/file-000.parquet"
EPISODES = "meta/episodes/chunk-000/file-000.parquet"
TASKS = "meta/tasks.parquet"
FRONT_VIDEO = "videos/observation.images.front/chunk-000/file-000.mp4"


def edit_json(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change a JSON file: ``change`` gets what it holds."""
    value = json.loads(path.read_text())
    change(value)
    path.write_text(json.dumps(value))


def edit_info(root: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change ``meta/info.json``."""
    edit_json(root / "meta" / "info.json", change)


def edit_lines(path: Path, change: Callable[[list[dict[str, Any]]], object]) -> None:
    """Change a JSON-lines file: ``change`` gets the list of its objects."""
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    change(lines)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def edit_table(path: Path, change: Callable[[pa.Table], pa.Table]) -> None:
    """Change a parquet file: ``change`` gets its table and returns another."""
    table = pq.read_table(path)
    pq.write_table(change(table), path)


def edit_column(path: Path, name: str, change: Callable[[list[Any]], object]) -> None:
    """Change one column of a parquet file: ``change`` gets its values as a list."""

    def changed(table: pa.Table) -> pa.Table:
        values = table.column(name).to_pylist()
        change(values)
        kind = table.schema.field(name).type
        place = table.schema.get_field_index(name)
        return table.set_column(place, table.schema.field(name), pa.array(values, kind))

    edit_table(path, changed)


def put(place: int, value: Any) -> Callable[[list[Any]], None]:
    """Return a change that puts a value into a place of a list."""

    def change(values: list[Any]) -> None:
        values[place] = value

    return change


def add(amount: float, places: slice) -> Callable[[list[Any]], None]:
    """Return a change that adds to the numbers in some places of a list."""

    def change(values: list[Any]) -> None:
        values[places] = [value + amount for value in values[places]]

    return change


VIDEO_BYTES = "video_bytes"
"""The column of a Lance table that holds videos."""


def point_at(table: Path, uris: Callable[[int], str]) -> None:
    """Let a Lance table of videos name files instead of holding bytes.

    Args:
        table: The table.
        uris: Returns the URI for a row's number.
    """
    from demoreel.layouts.lance.calls import import_lance
    from demoreel.layouts.lance.write import FILE_VERSION

    lance = import_lance()
    opened = lance.dataset(str(table))
    rows = opened.to_table(columns=[n for n in opened.schema.names if n != VIDEO_BYTES])
    blobs = lance.blob_array([lance.Blob.from_uri(uris(number)) for number in range(len(rows))])
    lance.write_dataset(
        rows.append_column(lance.blob_field(VIDEO_BYTES), blobs),
        str(table),
        mode="overwrite",
        data_storage_version=FILE_VERSION,
        allow_external_blob_outside_bases=True,
    )


def lfs_pointer(path: Path) -> None:
    """Put what a clone without Git LFS has into the place of a file."""
    size = path.stat().st_size
    path.write_text(
        "version https://git-lfs.github.com/spec/v1\n"
        f"oid sha256:{hashlib.sha256(path.read_bytes()).hexdigest()}\nsize {size}\n"
    )


def cut_off(path: Path, *, keep: float) -> None:
    """Cut a file off behind a share of its bytes."""
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * keep)])


def film(path: Path, frames: int, *, fps: float = 30, size: tuple[int, int] = (64, 64)) -> None:
    """Put a video of so many frames into the place of another."""
    path.unlink(missing_ok=True)
    height, width = size
    settings = VideoSettings(codec="h264", pix_fmt="yuv420p", gop=2, crf=30, preset="ultrafast")
    with VideoEncoder(path, fps=fps, width=width, height=height, settings=settings) as video:
        for number in range(frames):
            video.add(np.full((height, width, 3), 7 * number % 256, np.uint8))


def remux(
    path: Path,
    *,
    retime: Callable[[int, int], int] | None = None,
    index_first: bool = False,
) -> None:
    """Write a video's packets into a new file in its place.

    Args:
        path: The video.
        retime: Gets a packet's number and its time in frames; returns another time in frames.
        index_first: Whether the table of packets comes before the packets.
    """
    import av

    aside = path.with_suffix(".new.mp4")
    options = {"movflags": "faststart"} if index_first else {}
    with av.open(str(path)) as source, av.open(str(aside), "w", options=options) as target:
        stream = source.streams.video[0]
        copy = target.add_stream_from_template(stream)
        rate = stream.average_rate or Fraction(30)
        for number, packet in enumerate(source.demux(stream)):
            if packet.size == 0:
                continue
            if retime is not None and packet.pts is not None and packet.time_base is not None:
                frame = round(packet.pts * packet.time_base * rate)
                moved = int(Fraction(retime(number, frame)) / rate / packet.time_base)
                packet.pts = packet.dts = moved
            packet.stream = copy
            target.mux(packet)
    aside.replace(path)


def add_audio(
    path: Path, clicks: Sequence[float] = (), *, seconds: float | None = None, rate: int = 48000
) -> None:
    """Put an audio track beside a video's frames.

    Args:
        path: The video; its packets stay as they are.
        clicks: Seconds at which a click is heard; silence otherwise.
        seconds: How long the audio is; None is as long as the video.
        rate: Samples a second.
    """
    import av

    aside = path.with_suffix(".new.mp4")
    with av.open(str(path)) as source, av.open(str(aside), "w") as target:
        stream = source.streams.video[0]
        copy = target.add_stream_from_template(stream)
        audio = target.add_stream("aac", rate=rate, layout="mono")
        if seconds is None:
            assert stream.duration is not None
            assert stream.time_base is not None
            seconds = float(stream.duration * stream.time_base)
        for packet in source.demux(stream):
            if packet.size:
                packet.stream = copy
                target.mux(packet)
        sound = np.zeros((1, round(seconds * rate)), np.float32)
        for click in clicks:
            at = round(click * rate)
            sound[0, at : at + 96] = 0.9 * np.hanning(96)[: sound.shape[1] - at]
        for at in range(0, sound.shape[1], 1024):
            frame = av.AudioFrame.from_ndarray(sound[:, at : at + 1024].copy(), "fltp", "mono")
            frame.sample_rate, frame.pts = rate, at
            target.mux(audio.encode(frame))
        target.mux(audio.encode(None))
    aside.replace(path)
