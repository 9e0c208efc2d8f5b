"""Checks of Lance tables: are they there, whole, and does each video's row hold its bytes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from demoreel.check.codes import code_for
from demoreel.check.look import Look
from demoreel.check.videos import check_camera
from demoreel.errors import (
    DemoreelError,
    TableError,
    UnsafePathError,
    VideoError,
    refuse_shortage,
)
from demoreel.layouts.lance.calls import LanceFailure
from demoreel.layouts.lance.reader import VIDEOS_VERSION
from demoreel.layouts.lance.schemas import PACKETS_COLUMN, decode_packets
from demoreel.layouts.lance.tables import LanceTable, versions_of
from demoreel.layouts.lance.videos import LanceVideos
from demoreel.media import mp4
from demoreel.media.video import PacketIndex, Video
from demoreel.storage.external import prefixes_of

_LARGEST_META = 256 << 20

_NAMED_BY = ("video_key", "chunk_index", "file_index")
_MOOV = ("moov_offset", "moov_size")
_A_TICK = 1e-6


def check_lance(look: Look) -> None:
    """Check the tables of a Lance dataset; others are passed over.

    Cost: manifests, a look at the size of every data file, and each video's table of packets.
    """
    if not look.is_lance or look.info is None:
        return
    for name in _needed(look):
        table = _opened(look, name)
        if table is None:
            look.broken.add(name)
        else:
            _check_files(look, name, table)
            _check_tags(look, name, table)
            if name not in look.broken:
                _check_external(look, name, table)
    rows = f"{look.table}.lance"
    videos = videos_table(look)
    if rows not in look.broken:
        _check_columns(look, rows, videos)
        _check_noted_version(look, rows, videos)
    if videos is not None and videos not in look.broken and look.episodes is not None:
        check_lance_videos(look, LanceTable(str(look.root / videos)))
    _check_copy(look)


def videos_table(look: Look) -> str | None:
    """Return the name of the table of videos; None where there is none."""
    if look.layout == "lance-native":
        return "videos.lance" if look.video_cameras else None
    return f"{look.table}_videos.lance" if look.layout == "lance-video" else None


def _needed(look: Look) -> list[str]:
    names = [f"{look.table}.lance"]
    videos = videos_table(look)
    return [*names, videos] if videos is not None else names


def _opened(look: Look, name: str) -> LanceTable | None:
    path = look.root / name
    if not path.is_dir():
        look.found("lance-table-missing", f"There is no {name}.", file=name)
        return None
    if not versions_of(path):
        look.found("lance-no-version", "It has no manifest in _versions.", file=name)
        return None
    table = LanceTable(str(path))
    try:
        _ = table.version, table.columns
        return table
    except UnsafePathError as error:
        look.found("lance-external-refused", error.what, file=name)
        return None
    except DemoreelError as error:
        refuse_shortage(error)
        look.found("lance-unreadable", error.what, file=name)
        return None


def _check_files(look: Look, name: str, table: LanceTable) -> None:
    """Check that every data file and every note of deleted rows is there, in its size."""
    try:
        own = table.own()
    except TableError as error:
        look.found("lance-unreadable", error.what, file=name)
        look.broken.add(name)
        return
    if own is None:
        return  # a forked process: scanning, which asks a helper, will tell
    folder = look.root / name
    for fragment in (part.metadata for part in own.get_fragments()):
        for file in fragment.files:
            if file.base_id is None:
                _check_data_file(look, name, folder, file)
        if fragment.deletion_file is not None:
            noted = list((folder / "_deletions").glob(f"{fragment.id}-*"))
            if not noted:
                look.found(
                    "lance-deletion-missing",
                    f"Fragment {fragment.id} has deleted rows, and nothing says which.",
                    file=name,
                )
                look.broken.add(name)


def _check_data_file(look: Look, name: str, folder: Path, file: Any) -> None:
    path = folder / "data" / file.path
    size = path.stat().st_size if path.is_file() else None
    if size is not None and (not file.file_size_bytes or size == file.file_size_bytes):
        return
    said = "is not there" if size is None else f"has {size} bytes of {file.file_size_bytes}"
    look.found("lance-fragment-missing", f"A data file {said}.", file=f"{name}/data/{file.path}")
    look.broken.add(name)


def _check_tags(look: Look, name: str, table: LanceTable) -> None:
    there = versions_of(look.root / name)
    try:
        tags = table.tags()
    except TableError as error:
        look.found("lance-tag-broken", error.what, file=name)
        return
    for tag, version in tags.items():
        if version not in there:
            look.found("lance-tag-broken", f"The tag {tag!r} names version {version}.", file=name)


def _check_external(look: Look, name: str, table: LanceTable) -> None:
    """Say which files outside itself a table points at, and whether it may."""
    try:
        outside = table.named_outside()
    except DemoreelError as error:
        look.found("lance-unreadable", error.what, file=name)
        return
    for code, is_refused in (("lance-external-refused", True), ("lance-external", False)):
        named = [uri for uri, refused in outside.items() if refused is is_refused]
        if named:
            said = f"It names {len(named)}, in {', '.join(prefixes_of(named))}."
            look.found(code, said, file=name)


def _check_columns(look: Look, rows: str, videos: str | None) -> None:
    """Where frames are neither with the rows nor in videos, a table is missing."""
    assert look.info is not None
    columns = LanceTable(str(look.root / rows)).columns
    if videos is None and look.layout == "lance-frames":
        absent = [k for k in look.info.video_keys if k.replace(".", "_") not in columns]
        if absent:
            look.found(
                "lance-table-missing",
                f"There are no frames of {absent[0]} in {rows}, and there is no "
                f"{look.table}_videos.lance.",
                camera=absent[0],
                file=f"{look.table}_videos.lance",
            )
    if "episode_index" not in columns:
        look.found(
            "lance-table-missing",
            f"{rows} has no episode_index: it is not a table of rows.",
            file=rows,
        )
        look.broken.add(rows)


def _check_noted_version(look: Look, rows: str, videos: str | None) -> None:
    noted = LanceTable(str(look.root / rows)).metadata.get(VIDEOS_VERSION)
    if videos is None or noted is None:
        return
    there = versions_of(look.root / videos)
    if not noted.isdigit() or int(noted) not in there:
        look.found(
            "lance-videos-version",
            f"{rows} belongs to version {noted[:20]} of {videos}; there are "
            f"{', '.join(map(str, sorted(there)[-5:]))}.",
            file=rows,
        )


def _check_copy(look: Look) -> None:
    """``meta.lance`` of lance-native holds the files of ``meta/``, for readers of stores."""
    if look.layout != "lance-native" or not (look.root / "meta.lance").is_dir():
        return
    table = LanceTable(str(look.root / "meta.lance"))
    try:
        copies = table.scan(["path", "data"])
    except DemoreelError as error:
        refuse_shortage(error)
        look.found("lance-meta-copy", f"It cannot be read: {error.what}", file="meta.lance")
        return
    if copies.nbytes > _LARGEST_META:
        return
    for path, data in zip(*(copies.column(n).to_pylist() for n in ("path", "data")), strict=True):
        name = str(path) if str(path).startswith("meta/") else f"meta/{path}"
        size = look.files.get(name)
        same = size == len(data or b"") and (look.root / name).read_bytes() == bytes(data)
        if not same:
            said = "is not in meta/" if size is None else "differs"
            look.found("lance-meta-copy", f"Its copy of {name} {said}.", file=name)


def check_lance_videos(look: Look, table: LanceTable) -> None:
    """Check every video that the metadata name, and that no other lies in the table."""
    try:
        named = _rows_of(table)
    except DemoreelError as error:
        refuse_shortage(error)
        look.found("lance-unreadable", error.what, file=table.name)
        return
    opener = _Opener(look, table, named)
    count = 0
    wanted: set[tuple[str, int, int]] = set()
    for camera in look.video_cameras:
        files = []
        for (chunk, file), positions in look.sharing(f"videos/{camera}"):
            wanted.add((camera, chunk, file))
            files.append((f"{table.name}#{camera}/chunk-{chunk:03d}/file-{file:03d}", positions))
            opener.places[files[-1][0]] = (camera, chunk, file)
        count += check_camera(look, camera, files, opener.open)
    look.facts["videos"] = count
    for key in named:
        if key not in wanted:
            look.found(
                "lance-video-orphan",
                f"Chunk {key[1]}, file {key[2]} is not in the metadata.",
                camera=key[0],
                file=table.name,
            )


def _rows_of(table: LanceTable) -> dict[tuple[str, int, int], list[int]]:
    """Return the places of each video's rows in the table."""
    found: dict[tuple[str, int, int], list[int]] = {}
    rows = table.scan(_NAMED_BY)
    columns = [rows.column(name).to_pylist() for name in _NAMED_BY]
    for place, (camera, chunk, file) in enumerate(zip(*columns, strict=True)):
        found.setdefault((str(camera), int(chunk or 0), int(file or 0)), []).append(place)
    return found


class _Opener:
    """Opens videos by name, and compares what the table notes of them with their bytes."""

    def __init__(
        self, look: Look, table: LanceTable, rows: dict[tuple[str, int, int], list[int]]
    ) -> None:
        self._look, self._table, self._rows = look, table, rows
        self._videos = LanceVideos(table)
        self.places: dict[str, tuple[str, int, int]] = {}

    def open(self, name: str, positions: np.ndarray) -> Video | None:
        """Return a video; None where it cannot be opened, which is a finding."""
        look = self._look
        assert look.episodes is not None
        camera, chunk, file = self.places[name]
        where = {"camera": camera, "file": name, "episode": look.episodes.index[positions[0]]}
        places = self._rows.get((camera, chunk, file), [])
        if len(places) != 1:
            code = "lance-video-twice" if places else "lance-video-missing"
            look.found(code, f"Rows of {self._table.name} that hold it: {len(places)}.", **where)
            return None
        try:
            stored = self._stored(places[0])
            self._check_moov(places[0], name, where)
            video = self._videos.video(camera, chunk, file, name=name)
            self._check_index(video, stored, where)
            return video
        except UnsafePathError:
            pass  # said for all at once
        except VideoError as error:
            self._report(error, where)
        except TableError as error:
            look.found("lance-unreadable", error.what, **where)
        return None

    def _report(self, error: VideoError, where: dict[str, Any]) -> None:
        lost = isinstance(error.__cause__, LanceFailure)
        otherwise = "lance-blob-missing" if lost else "video-unreadable"
        self._look.found(code_for(error, otherwise), error.what, **where)

    def _values(self, place: int, *columns: str) -> list[Any]:
        row = self._table.take(np.array([place]), columns)
        return [row.column(name)[0].as_py() for name in columns]

    def _stored(self, place: int) -> bytes | None:
        if PACKETS_COLUMN not in self._table.columns:
            return None
        return self._values(place, PACKETS_COLUMN)[0] or None

    def _check_moov(self, place: int, name: str, where: dict[str, Any]) -> None:
        """The noted place of the moov box must be one: readers go there first."""
        if not set(_MOOV) <= set(self._table.columns):
            return
        offset, size = self._values(place, *_MOOV)
        if not size or offset is None:
            return
        camera, chunk, file = self.places[name]
        blob = self._videos.blob(camera, chunk, file)
        head = blob.read(int(offset), 8)
        if head != int(size).to_bytes(4, "big", signed=False) + b"moov":
            self._look.found(
                "lance-moov-place", f"There is no moov box of {size} bytes at {offset}.", **where
            )

    def _check_index(self, video: Video, stored: bytes | None, where: dict[str, Any]) -> None:
        """The packet index beside a video must be the one that its own bytes give."""
        if stored is None:
            return
        own = mp4.read_index(video.file, name=video.name)
        kept = decode_packets(stored, video_bytes=video.file.size, name=video.name)
        if kept is None:
            self._look.found(
                "lance-packet-index", "It was made for a video of another size.", **where
            )
        elif own is not None and not _same(own, kept):
            self._look.found(
                "lance-packet-index",
                f"It lists {len(kept.offset)} packets and {kept.frames} frames; the video has "
                f"{len(own.offset)} and {own.frames}, or they lie elsewhere.",
                **where,
            )


def _same(one: PacketIndex, other: PacketIndex) -> bool:
    arrays = ("offset", "size", "frame_of", "start_of", "packet_of")
    return all(
        np.array_equal(getattr(one, name), getattr(other, name)) for name in arrays
    ) and bool((np.abs(one.seconds - other.seconds) <= _A_TICK).all())
