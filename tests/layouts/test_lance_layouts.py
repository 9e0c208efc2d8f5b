"""The readers of the Lance layouts pass the conformance suite, on tables made here with Lance."""

from __future__ import annotations

import io
import json
import shutil
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pytest
from PIL import Image

import demoreel
from demoreel.layouts.columns import to_arrow
from demoreel.layouts.lance.schemas import PACKETS_COLUMN, encode_packets
from demoreel.media.colour import depth_codes
from demoreel.media.decode import Decoder, GopSpan
from demoreel.media.video import open_video
from demoreel.model import Feature
from demoreel.read.dataset import Dataset
from demoreel.testing import LayoutTests, make_dataset

pytestmark = pytest.mark.filterwarnings("ignore:lance is not fork-safe")


def as_lance(source: Path, target: Path, layout: str, *, with_packets: bool) -> Path:
    """Make Lance tables of a v3.0 dataset."""
    ds = demoreel.open(source)
    shutil.copytree(source / "meta", target / "meta")
    names = {
        "lance-native": ("frames", "videos"),
        "lance-video": ("made_up", "made_up_videos"),
        "lance-frames": ("made_up", ""),
    }
    frames, videos = names[layout]
    if layout == "lance-native":
        path = target / "meta" / "info.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), "storage_format": "lance"}))
    write(frames_table(ds, with_images=not videos), target / f"{frames}.lance")
    if videos and ds.info.video_keys:
        write(videos_table(ds, layout, with_packets), target / f"{videos}.lance")
    return target


def write(table: pa.Table, path: Path) -> None:
    lance.write_dataset(table, path, data_storage_version="2.2", max_rows_per_file=20)


def frames_table(ds: Dataset, *, with_images: bool) -> pa.Table:
    every = np.arange(len(ds))
    columns: dict[str, pa.Array] = {}
    for key, feature in ds.features.items():
        name = key.replace(".", "_")
        if feature.is_image:
            columns[name] = pa.array(ds.reader.encoded(every, key), pa.binary())
        elif not feature.is_video:
            values = ds.reader.rows(every, [key])[key]
            columns[name] = plain(to_arrow(values, feature, length=len(ds)))
        elif with_images:
            columns[name] = pa.array(encoded_frames(ds, feature), pa.binary())
    return pa.table(columns)


def plain(array: pa.Array) -> pa.Array:
    """Lance knows no JSON inside lists: text does."""
    if "json" not in str(array.type):
        return array
    fields = [
        field.with_type(pa.list_(pa.string())) if field.name == "tool_calls" else field
        for field in array.type.value_type
    ]
    return array.cast(pa.list_(pa.struct(fields)))


def encoded_frames(ds: Dataset, feature: Feature) -> list[bytes]:
    """Lossless images of a video camera; of a depth camera, its codes."""
    found = []
    for episode in range(len(ds.episodes)):
        if feature.is_depth:
            images = list(codes(ds, episode, feature.key))
        else:
            images = list(ds.episode(episode).frames(feature.key))
        found += [png(image) for image in images]
    return found


def codes(ds: Dataset, episode: int, key: str) -> Any:
    clip = ds.reader.clip(episode, key)
    frames = range(clip.first, clip.first + len(ds.episode(episode)))
    span = GopSpan(clip.video.index, clip.video.file, clip.video.name, tuple(frames))
    return (depth_codes(frame) for _, frame in Decoder().frames(span))


def png(image: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(image)).save(buffer, "PNG", compress_level=1)
    return buffer.getvalue()


def videos_table(ds: Dataset, layout: str, with_packets: bool) -> pa.Table:
    rows: list[dict[str, Any]] = []
    for key in ds.info.video_keys:
        for path in sorted((ds.root / "videos" / key).glob("*/*.mp4")):
            data = path.read_bytes()
            at = data.index(b"moov") - 4
            rows.append(
                {
                    "video_key": key,
                    "chunk_index": int(path.parent.name.split("-")[1]),
                    "file_index": int(path.stem.split("-")[1]),
                    "moov_offset": at,
                    "moov_size": int.from_bytes(data[at : at + 4], "big"),
                    PACKETS_COLUMN: encode_packets(open_video(path).index, video_bytes=len(data)),
                    "video_bytes": data,
                }
            )
    kept = ["video_key", "chunk_index", "file_index"]
    kept += ["moov_offset", "moov_size"] if layout == "lance-native" else []
    kept += [PACKETS_COLUMN] if with_packets else []
    table = pa.table({name: [row[name] for row in rows] for name in kept})
    blobs = lance.blob_array([row["video_bytes"] for row in rows])
    return table.append_column(lance.blob_field("video_bytes"), blobs)


class LanceTests(LayoutTests):
    with_packets = False

    @classmethod
    def make(cls, path: Path, **options: Any) -> Path:
        source = make_dataset(path.with_name(f"{path.name}_v30"), layout="v3.0", **options)
        return as_lance(source, path, cls.layout, with_packets=cls.with_packets)


# tests/convert/test_layouts.py has the layouts as demoreel writes them, with its packet index.


class TestLanceNative(LanceTests):
    layout = "lance-native"
