"""What it takes to damage files on purpose."""

from __future__ import annotations

import json
from collections.abc import Callable
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
