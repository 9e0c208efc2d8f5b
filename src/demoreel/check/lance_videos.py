"""Checks of the videos in a Lance table: bytes, packet index and metadata against each other."""

from __future__ import annotations

from typing import Any

import numpy as np

from demoreel.check.look import Look
from demoreel.check.videos import check_camera, report_unreadable
from demoreel.errors import DemoreelError, TableError, VideoError
from demoreel.layouts.lance_videos import LanceVideos
from demoreel.media import mp4
from demoreel.media.packet_bytes import PACKETS_COLUMN, decode_packets
from demoreel.media.packets import PacketIndex
from demoreel.media.video import Video
from demoreel.storage.lance_calls import LanceFailure
from demoreel.storage.lance_tables import LanceTable

_NAMED_BY = ("video_key", "chunk_index", "file_index")
_MOOV = ("moov_offset", "moov_size")
_A_TICK = 1e-6


def check_lance_videos(look: Look, table: LanceTable) -> None:
    """Check every video that the metadata name, and that no other lies in the table."""
    try:
        named = _rows_of(table)
    except DemoreelError as error:
        look.found("lance-unreadable", error.what, file=table.name)
        return
    opener = _Opener(look, table, named)
    count = 0
    wanted: set[tuple[str, int, int]] = set()
    for camera in look.filmed:
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
            look.found(code, f"{len(places)} rows of {self._table.name} hold it.", **where)
            return None
        try:
            stored = self._stored(places[0])
            self._check_moov(places[0], name, where)
            video = self._videos.video(camera, chunk, file, name=name)
            self._check_index(video, stored, where)
            return video
        except VideoError as error:
            self._report(error, where)
        except TableError as error:
            look.found("lance-unreadable", error.what, **where)
        return None

    def _report(self, error: VideoError, where: dict[str, Any]) -> None:
        if "packet index stored" in error.what:
            self._look.found("lance-packet-index", error.what, **where)
        elif isinstance(error.__cause__, LanceFailure) or "holds no bytes" in error.what:
            self._look.found("lance-blob-missing", error.what, **where)
        else:
            report_unreadable(self._look, error, **where)

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
