"""Defects of Lance tables."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa

from demoreel.layouts.lance.calls import import_lance
from demoreel.layouts.lance.schemas import PACKETS_COLUMN, decode_packets, encode_packets
from demoreel.layouts.lance.tables import versions_of
from support.defects.registry import defect
from support.defects.tools import VIDEO_BYTES, cut_off, edit_info, point_at

_ROWS, _VIDEOS = "arm.lance", "arm_videos.lance"
_FRONT = "observation.images.front"


def _open(root: Path, name: str) -> Any:
    return import_lance().dataset(str(root / name))


def _change_column(root: Path, name: str, column: str, change: Callable[[list[Any]], Any]) -> None:
    """Put other values into a column; blobs stay where they are."""
    table = _open(root, name)
    stored = table.to_table(columns=[column])
    values = change(stored.column(column).to_pylist())
    table.drop_columns([column])
    renewed = pa.table({column: pa.array(values, stored.schema.field(column).type)})
    _open(root, name).add_columns(renewed.to_reader())


@defect("lance-table-missing", on="lance-native")
def table_of_rows_missing(root: Path) -> None:
    shutil.rmtree(root / "frames.lance")


@defect("lance-table-missing", on="lance-video", also=("feature-absent",))
def table_of_videos_missing(root: Path) -> None:
    shutil.rmtree(root / _VIDEOS)


@defect("lance-tables-several", on="lance-video")
def tables_of_two_datasets(root: Path) -> None:
    shutil.copytree(root / _ROWS, root / "leg.lance")


@defect("lance-no-version", on="lance-video")
def table_without_manifests(root: Path) -> None:
    shutil.rmtree(root / _ROWS / "_versions")


@defect("lance-unreadable", on="lance-frames")
def manifest_of_noise(root: Path) -> None:
    there = versions_of(root / _ROWS)
    for path in there.values():
        path.write_bytes(b"no manifest" * 20)


@defect("lance-fragment-missing", on="lance-video")
def data_file_missing(root: Path) -> None:
    for path in (root / _ROWS / "data").glob("*.lance"):
        path.unlink()


@defect("lance-fragment-missing", on="lance-native")
def data_file_cut_off(root: Path) -> None:
    for path in (root / "videos.lance" / "data").glob("*.lance"):
        cut_off(path, keep=0.5)


@defect("lance-deletion-missing", on="lance-frames")
def note_of_deleted_rows_missing(root: Path) -> None:
    _open(root, _ROWS).delete("index < 2")
    shutil.rmtree(root / _ROWS / "_deletions")


@defect("lance-blob-missing", on="lance-video")
def bytes_of_videos_missing(root: Path) -> None:
    for path in (root / _VIDEOS / "data").glob("*/*.blob"):
        path.unlink()


@defect("lance-external-refused", on="lance-video")
def videos_are_the_users_own_files(root: Path) -> None:
    point_at(root / _VIDEOS, lambda number: f"file:///etc/passwd{number or ''}")


@defect("lance-external", on="lance-video")
def videos_beside_their_table(root: Path) -> None:
    blobs = _open(root, _VIDEOS).take_blobs(VIDEO_BYTES, indices=list(range(_count(root))))
    (root / "videos").mkdir()
    for number, blob in enumerate(blobs):
        (root / "videos" / f"{number}.mp4").write_bytes(blob.read())
    point_at(root / _VIDEOS, lambda number: (root / "videos" / f"{number}.mp4").resolve().as_uri())


def _count(root: Path) -> int:
    return int(_open(root, _VIDEOS).count_rows())


@defect("lance-external-refused", on="lance-video")
def rows_of_another_dataset(root: Path) -> None:
    elsewhere = root.parent / f"{root.name}-elsewhere.lance"
    shutil.rmtree(elsewhere, ignore_errors=True)
    shutil.copytree(root / _ROWS, elsewhere)
    shutil.rmtree(root / _ROWS)
    table = import_lance().dataset(str(elsewhere))
    table.shallow_clone(str(root / _ROWS), table.version)


@defect("lance-packet-index", on="lance-video")
def packet_index_of_another_video(root: Path) -> None:
    _change_column(root, _VIDEOS, PACKETS_COLUMN, lambda values: [*values[1:], values[0]])


@defect("lance-packet-index", on="lance-native")
def packet_index_off_by_a_byte(root: Path) -> None:
    sizes = _open(root, "videos.lance").to_table(columns=["file_size"]).column("file_size")

    def shorter(values: list[bytes]) -> list[bytes]:
        size = sizes[0].as_py()
        index = decode_packets(values[0], video_bytes=size, name="")
        assert index is not None
        wrong = dataclasses.replace(index, size=index.size - 1)
        return [encode_packets(wrong, video_bytes=size), *values[1:]]

    _change_column(root, "videos.lance", PACKETS_COLUMN, shorter)


@defect("lance-packet-index", on="lance-video")
def packet_index_of_noise(root: Path) -> None:
    _change_column(root, _VIDEOS, PACKETS_COLUMN, lambda values: [b"noise" * 9, *values[1:]])


@defect("lance-moov-place", on="lance-native")
def moov_noted_elsewhere(root: Path) -> None:
    _change_column(root, "videos.lance", "moov_offset", lambda values: [v + 5 for v in values])


@defect("lance-video-missing", on="lance-video")
def row_of_a_video_missing(root: Path) -> None:
    _open(root, _VIDEOS).delete(f"video_key = '{_FRONT}' and file_index = 1")


@defect("lance-video-twice", on="lance-video", also=("lance-video-missing",))
def row_of_a_video_twice(root: Path) -> None:
    _change_column(root, _VIDEOS, "file_index", lambda values: [min(v, 1) for v in values])


@defect("lance-video-orphan", "lance-video-missing", on="lance-native")
def rows_of_videos_renumbered(root: Path) -> None:
    _change_column(root, "videos.lance", "file_index", lambda values: [v + 40 for v in values])


@defect("lance-meta-behind", on="lance-video")
def rows_of_an_episode_deleted(root: Path) -> None:
    _open(root, _ROWS).delete("episode_index = 1")


@defect(
    "rows-missing", on="lance-native", also=("frame-index-jump", "index-jump", "timestamp-off-grid")
)
def some_rows_deleted(root: Path) -> None:
    _open(root, "frames.lance").delete("episode_index = 1 and frame_index < 3")


@defect("rows-orphan", on="lance-frames")
def rows_of_a_deleted_episode(root: Path) -> None:
    rows = _open(root, _ROWS)
    strange = rows.to_table(filter="episode_index = 2")
    place = strange.schema.get_field_index("episode_index")
    numbers = pa.array([8] * len(strange), strange.schema.field("episode_index").type)
    strange = strange.set_column(place, strange.schema.field("episode_index"), numbers)
    import_lance().write_dataset(strange, str(root / _ROWS), mode="append")


@defect("feature-absent", on="lance-frames")
def lance_column_missing(root: Path) -> None:
    _open(root, _ROWS).drop_columns(["action"])


@defect("not-a-number", on="lance-native")
def nan_in_lance(root: Path) -> None:
    change = lambda rows: [float("nan"), *rows[1:]]  # noqa: E731
    _change_column(root, "frames.lance", "next_reward", change)


@defect("lance-videos-version", on="lance-video")
def version_of_videos_that_is_not_there(root: Path) -> None:
    _open(root, _ROWS).update_metadata({"demoreel.videos": "99"})


@defect("lance-tag-broken", on="lance-video")
def tag_of_a_version_that_is_gone(root: Path) -> None:
    _open(root, _ROWS).tags.create("good", 1)
    versions_of(root / _ROWS)[1].unlink()


@defect("lance-meta-copy", on="lance-native")
def copy_of_meta_out_of_date(root: Path) -> None:
    edit_info(root, lambda info: info.update(robot_type="another"))
