"""A persisted episode: saved and synced to disk, but not yet encoded or committed.

::

    .demoreel/encoding/episode-000001/
        sealed.json           the manifest, written last: it makes the episode a saved one
        rows.arrow            its rows
        camera-0.packets      what was encoded of a camera's frames when it was persisted
        camera-0.raw          the frames after those, as they came from the camera
        camera-0.counts.npy   the levels of the encoded frames

The commit that adds the episode to the dataset deletes the manifest in the same step, so that an
episode is always in one of the two places, and never in both.

All of this may be untrusted. It is checked before anything is allocated for it: names stay
in the folder, links are refused, sizes are compared with those of the files, codecs and pixel
formats are of a closed list. Nothing here reads the encoders' options, and nothing is written.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import stat
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO, Literal

import numpy as np
import pyarrow as pa

from demoreel.errors import (
    FrameMismatchError,
    MetadataError,
    PictureError,
    TableError,
    VideoError,
)
from demoreel.layouts.columns import parsed_rows, read_images, read_numbers, to_arrow
from demoreel.layouts.persisted_files import (
    MANIFEST,
    ROWS,
    counts_path,
    packets_path,
    read_packets,
    spill_path,
)
from demoreel.layouts.spans import require_frames
from demoreel.media.decode import Decoder, GopSpan, group_frames
from demoreel.media.images import decode_depth_image, decode_image
from demoreel.media.video import Codec, PacketIndex, Video, index_packets, index_video
from demoreel.model import DEFAULT_FEATURES, Feature, Info
from demoreel.model.clocks import ROWS as ROWS_CLOCK
from demoreel.model.clocks import capture_key
from demoreel.storage.arrow import UNREADABLE
from demoreel.storage.local import LocalFile, open_file
from demoreel.storage.store import ReadsNow

_LARGEST_MANIFEST = 16 << 20
_LARGEST_NPY_HEAD = 256  # bytes; numpy writes 128
_LARGEST_HEAD = 16 << 20  # of a file of rows: schema, tasks, and what Arrow adds
_LARGEST_TEXT = 64 << 10  # of a row and feature, on an average
_MOST_TEXT = 256 << 20  # of an episode, besides
_MOST_FRAMES = 1 << 28
_OLD_ROWS = re.compile(r"rows-\d{6,12}\.arrow")  # beside the folder, where they were before
_CAMERA_FILES = re.compile(r"camera-\d{1,4}")
_TASKS = "task"
_DECODERS = {
    "av1": "libdav1d",
    "h264": "h264",
    "hevc": "hevc",
    "vp9": "vp9",
    "mpeg4": "mpeg4",
    "ffv1": "ffv1",
}
_DEPTH_FORMATS = ("gray12le", "gray16le")
Identity = tuple[str, int, int]
"""What tells a manifest: its folder's name, its inode, and when it was written."""

_RAW_AT = 1 << 48  # where the raw frames begin, among the bytes of a camera


@dataclass(frozen=True, slots=True)
class PersistedCamera:
    """One camera of a persisted episode.

    Attributes:
        key: The camera's key.
        height: Frame height in pixels.
        width: Frame width in pixels.
        kind: What its frames are: see ``CameraPlan``.
        settings: How it is to be encoded, as the manifest says: not checked.
        base: Path of its files, less their endings.
        frames: How many frames it has.
        safe: How many of them are encoded; the rest are raw.
        places: Where each of the rest is in the file of raw frames, counted in frames.
        persisted: What tells the manifest that says so: its inode, and when it was written.
    """

    key: str
    height: int
    width: int
    kind: Literal["rgb", "depth"]
    settings: Mapping[str, Any]
    base: Path
    frames: int
    safe: int
    places: np.ndarray
    persisted: tuple[int, int]

    @property
    def nbytes(self) -> int:
        """Bytes of a raw frame."""
        return self.height * self.width * (3 if self.kind == "rgb" else 2)

    def video(self, fps: float) -> Video:
        """Return its frames as a video: packets first, then raw frames."""
        try:
            packets = open_file(packets_path(self.base)) if self.safe else None
            raw = open_file(spill_path(self.base)) if len(self.places) else None
        except OSError as error:
            raise VideoError(
                f"A saved episode's frames cannot be read ({error.strerror}).",
                file=error.filename,
            ) from error
        file = _Bytes(packets, raw, self.persisted)
        return index_video(file, str(self.base), stored=lambda: self._index(packets, fps))

    def verify(self, fps: float) -> None:
        """Decode all frames that were encoded."""
        if not self.safe:
            return
        where: dict[str, Any] = {"camera": self.key, "file": packets_path(self.base)}
        try:
            video, decoder = self.video(fps), Decoder()
            for group in group_frames(video.index, np.arange(self.safe)):
                span = GopSpan(video.index, video.file, video.name, group)
                for number, frame in decoder.frames(span):
                    if (frame.height, frame.width) != (self.height, self.width):
                        raise VideoError(
                            f"A frame is {frame.height}x{frame.width}, not "
                            f"{self.height}x{self.width}.",
                            frame=number,
                        )
        except VideoError as error:
            raise VideoError(error.what, **{**error.where, **where}) from error

    def _index(self, packets: LocalFile | None, fps: float) -> PacketIndex:
        rest = self.frames - self.safe
        offset = [_RAW_AT + self.places.astype(np.int64) * self.nbytes]
        size = [np.full(rest, self.nbytes)]
        frame, keyframe = [np.arange(self.safe, self.frames)], [np.ones(rest, bool)]
        header = b""
        if packets is not None:
            found = read_packets(packets, self.safe)
            shown = np.zeros(self.safe, bool)
            shown[found.frame[(found.frame >= 0) & (found.frame < self.safe)]] = True
            if not shown.all() or not found.keyframe[0]:
                raise VideoError("Packets of a saved episode are missing.", file=packets.path)
            offset.insert(0, found.offset)
            size.insert(0, found.size)
            frame.insert(0, found.frame)
            keyframe.insert(0, found.keyframe)
            header = found.header
        form = "rgb24" if self.kind == "rgb" else str(self.settings["pix_fmt"])
        return index_packets(
            codec=Codec(_DECODERS[self.settings["codec"]], header or None, self.width, self.height),
            offset=np.concatenate(offset),
            size=np.concatenate(size),
            pts=np.concatenate(frame),
            keyframe=np.concatenate(keyframe),
            shown=np.ones(self.frames, bool),
            seconds_per_tick=1 / fps,
            raw=Codec("rawvideo", None, self.width, self.height, pix_fmt=form),
            raw_from=self.safe,
        )


class _Bytes(ReadsNow):
    """A camera's packets and raw frames as one run of bytes."""

    def __init__(
        self, packets: LocalFile | None, raw: LocalFile | None, persisted: tuple[int, int]
    ) -> None:
        self._packets = packets
        self._raw = raw
        # Not the packets' size: an encoder may be adding to them. The manifest tells one episode
        # from the next that gets the same names, and perhaps the same inodes.
        self.identity = (
            *persisted,
            *(f.identity[:2] if f is not None else None for f in (packets, raw)),
        )

    @property
    def size(self) -> int:
        return _RAW_AT + (self._raw.size if self._raw is not None else 0)

    def read(self, offset: int, length: int) -> bytes:
        if offset >= _RAW_AT:
            return self._raw.read(offset - _RAW_AT, length) if self._raw is not None else b""
        return self._packets.read(offset, length) if self._packets is not None else b""


@dataclass(frozen=True, slots=True)
class Manifest:
    """What is known of a persisted episode without a look at its rows.

    Attributes:
        folder: Where its files are.
        fps: Frames per second.
        note: What the recorder noted.
        cameras: Its video cameras.
    """

    folder: Path
    fps: float
    note: Mapping[str, Any]
    cameras: tuple[PersistedCamera, ...]

    @property
    def frames(self) -> Mapping[str, int]:
        """How many frames each camera has."""
        return {camera.key: camera.frames for camera in self.cameras}

    @property
    def rows(self) -> Path:
        """Where its rows are."""
        name = self.note.get("rows")
        if name == ROWS:
            return self.folder / ROWS
        if isinstance(name, str) and _OLD_ROWS.fullmatch(name):
            return self.folder.parent / name
        raise _odd(self.folder / MANIFEST, "it does not name its rows")


def read_manifest(folder: Path) -> Manifest:
    """Read and check the manifest of a persisted episode."""
    path = folder / MANIFEST
    try:
        for each in (folder, folder.parent, folder.parent.parent):
            if each.is_symlink():
                raise _odd(path, f"{each.name} is a link")
        if plain_size(path) > _LARGEST_MANIFEST:
            raise _odd(path, "it is too large")
        said = json.loads(path.read_bytes())
        fps, note, listed = said["fps"], said["note"], said["cameras"]
        if not _is_number(fps) or not 0 < fps < 1e6 or not isinstance(note, dict):
            raise _odd(path, "it does not say how fast, or has no note")
        cameras = tuple(_camera(folder, path, entry) for entry in listed)
    except (
        LookupError,
        ArithmeticError,
        ValueError,
        TypeError,
        AttributeError,
        RecursionError,
        OSError,
    ) as error:
        if isinstance(error, (MetadataError, VideoError)):
            raise
        raise _odd(path, str(error) if type(error) is OSError else repr(error)) from error
    if len({camera.key for camera in cameras}) < len(cameras) or not cameras:
        raise _odd(path, "it has no cameras, or one twice")
    if len({camera.frames for camera in cameras}) > 1:
        raise FrameMismatchError("Its cameras do not have as many frames as another.", file=path)
    return Manifest(folder, float(fps), note, cameras)


def _camera(folder: Path, path: Path, said: Mapping[str, Any]) -> PersistedCamera:
    key, kind, settings, files = said["key"], said["kind"], said["settings"], said["files"]
    height, width, frames, safe = (said[name] for name in ("height", "width", "put", "safe"))
    if not isinstance(key, str) or kind not in ("rgb", "depth") or not isinstance(settings, dict):
        raise _odd(path, "a camera is none")
    if settings.get("codec") not in _DECODERS:
        raise _odd(path, f"there is no codec {settings.get('codec')!r}")
    if kind == "depth" and settings.get("pix_fmt") not in _DEPTH_FORMATS:
        raise _odd(path, f"there is no depth of {settings.get('pix_fmt')!r}")
    if not isinstance(files, str) or not _CAMERA_FILES.fullmatch(files):
        raise _odd(path, f"it names {files!r}, which is none of its files")
    sizes = (height, width, frames, safe)
    if not all(_is_whole(value) for value in sizes) or not (
        0 < height < 1 << 16 and 0 < width < 1 << 16 and 0 <= safe <= frames <= _MOST_FRAMES
    ):
        raise _odd(path, f"sizes of camera {key!r} cannot be")
    places = said["places"]
    if not isinstance(places, list) or len(places) != frames - safe or not frames:
        raise _odd(path, f"camera {key!r} has {frames} frames, of which {safe} are encoded")
    if not all(_is_whole(place) for place in places) or len(set(places)) < len(places):
        raise _odd(path, f"frames of camera {key!r} are nowhere")
    base = folder / files
    at = np.array(places, np.int64)
    status = os.lstat(path)
    persisted = (status.st_ino, status.st_mtime_ns)
    camera = PersistedCamera(key, height, width, kind, settings, base, frames, safe, at, persisted)
    if len(at):
        size = plain_size(spill_path(base))
        if at.min() < 0 or (int(at.max()) + 1) * camera.nbytes > size:
            raise VideoError("Raw frames of a saved episode are missing.", file=spill_path(base))
    if safe:
        plain_size(packets_path(base))
    return camera


def read_counts(camera: PersistedCamera) -> np.ndarray:
    """Return the levels of the frames that are encoded: channels x levels."""
    path = counts_path(camera.base)
    shape = (3, 256) if camera.kind == "rgb" else (1, 65536)
    try:
        found = _read_npy(path, shape)
    except (ValueError, OSError, EOFError) as error:
        raise VideoError(f"Counts of a saved episode cannot be read ({error}).", file=path) from (
            error
        )
    pixels = camera.safe * camera.height * camera.width
    if (found < 0).any() or (found.sum(axis=1) != pixels).any():
        raise VideoError("Counts of a saved episode are of other frames.", file=path)
    return found


def _read_npy(path: Path, shape: tuple[int, int]) -> np.ndarray:
    """Read an array of int64 that ``np.save`` has written, and that must have this shape.

    ``np.load`` parses the header as Python, which fails at random in threads of Python 3.11
    (``SystemError``, gh-106905).
    """
    head = plain_size(path) - 8 * shape[0] * shape[1]
    if not 0 < head <= _LARGEST_NPY_HEAD:
        raise ValueError(f"it is not the size of {shape[0]} x {shape[1]} counts")
    data = path.read_bytes()
    said = f"{{'descr': '<i8', 'fortran_order': False, 'shape': {shape}, }}"
    if not data.startswith(b"\x93NUMPY") or data[10:head].strip() != said.encode():
        raise ValueError(f"it is no array of {shape[0]} x {shape[1]} counts")
    return np.frombuffer(data, np.int64, offset=head).reshape(shape).copy()


@dataclass(frozen=True, slots=True)
class PersistedRows:
    """The rows of an episode.

    Attributes:
        tasks: The task of every row.
        columns: Every column that is no camera: arrays of numbers, lists of others.
        images: The encoded images of image cameras.
        times: When the rows were captured, by clock, where that is no column.
    """

    tasks: list[str]
    columns: dict[str, Any]
    images: dict[str, list[bytes]] = field(default_factory=dict)
    times: Mapping[str, np.ndarray] = field(default_factory=dict)


def write_rows(path: Path, rows: PersistedRows, info: Info) -> str:
    """Write rows and force them to disk; return a digest of the file, for ``read_rows``."""
    length = len(rows.tasks)
    given = {**rows.columns, **rows.images}
    columns = {key: to_arrow(given[key], info.features[key], length=length) for key in given}
    columns |= {capture_key(c): pa.array(times, pa.int64()) for c, times in rows.times.items()}
    table = pa.table({_TASKS: pa.array(rows.tasks, pa.string()), **columns})
    with open(path, "wb") as file:
        hashed = _Hashed(file)
        with pa.ipc.new_file(pa.PythonFile(hashed, "w"), table.schema) as writer:
            writer.write_table(table)
        file.flush()
        os.fsync(file.fileno())
    return str(hashed.digest.hexdigest())


class _Hashed(io.RawIOBase):
    """A file that is written from its begin to its end, and a digest of what was."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.digest = _digest()

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self.digest.update(data)
        return self._file.write(data)


def _digest(data: bytes = b"") -> Any:
    return hashlib.blake2b(data, digest_size=16)


def _refuse_damaged(path: Path, data: bytes, digest: object) -> None:
    """Refuse rows that are not those that were written: a hole would be read as zeros."""
    if digest is not None:
        if _digest(data).hexdigest() != digest:
            raise ValueError("the file is not the one that was saved")
        return
    # Older recorders noted no digest. They wrote at once: such a file has an end and no hole.
    if not data.endswith(b"ARROW1"):
        raise ValueError("its end is missing")
    with open(path, "rb") as file:
        if hasattr(os, "SEEK_HOLE") and os.lseek(file.fileno(), 0, os.SEEK_HOLE) < len(data):
            raise ValueError("a part of it was never written")


def read_rows(
    path: Path,
    info: Info,
    *,
    images: bool = True,
    frames: int | None = None,
    digest: object = None,
) -> PersistedRows:
    """Read what ``write_rows`` wrote.

    Args:
        path: The file.
        info: What the dataset is: every feature that a recorder is given has a column.
        images: Whether the images of image cameras are wanted.
        frames: How many rows are expected: a file that is larger than those can be is not read.
        digest: What ``write_rows`` returned; None if that is not known.
    """
    try:
        if frames is not None and plain_size(path) > _most_bytes(info, frames):
            raise TableError("The rows of a saved episode are more than it can have.", file=path)
        plain_size(path)
        data = path.read_bytes()
        _refuse_damaged(path, data, digest)
        table = pa.Table.from_batches(list(_batches(data)))
        table.validate(full=True)
        tasks = table.column(_TASKS).to_pylist()
        wanted = {
            key: feature
            for key, feature in info.features.items()
            if key not in DEFAULT_FEATURES and not feature.is_video
        }
        beside = {clock: capture_key(clock) for clock in (ROWS_CLOCK, *info.cameras)}
        beside = {
            clock: key
            for clock, key in beside.items()
            if key in table.column_names and key not in wanted
        }
        given = set(table.column_names) - {_TASKS, "timestamp", *beside.values()}
        if given != set(wanted) or not all(isinstance(task, str) for task in tasks):
            raise TableError(
                f"The rows of a saved episode have other columns: {sorted(given ^ set(wanted))}.",
                file=path,
            )
        columns: dict[str, Any] = {}
        encoded: dict[str, list[bytes]] = {}
        for key, feature in wanted.items():
            if feature.is_camera and not images:
                continue
            array = table.column(key).combine_chunks()
            (encoded if feature.is_camera else columns)[key] = _values(array, feature, str(path))
        if "timestamp" in table.column_names:
            array = table.column("timestamp").combine_chunks()
            columns["timestamp"] = _values(array, info.features["timestamp"], str(path))
        times = {
            clock: _values(table.column(key).combine_chunks(), _time_feature(key), str(path))
            for clock, key in beside.items()
        }
    except (*UNREADABLE, ValueError, KeyError, struct.error, IndexError) as error:
        if isinstance(error, TableError):
            raise
        what = f"The rows of a saved episode cannot be read ({error})."
        raise TableError(what, file=path) from error
    return PersistedRows(tasks, columns, encoded, times)


def _time_feature(key: str) -> Feature:
    return Feature(key, "int64", (1,))


def most_text(frames: int) -> int:
    """Return how many bytes of text an episode may have: what a recorder takes is read again."""
    return _MOST_TEXT + frames * _LARGEST_TEXT


def _most_bytes(info: Info, frames: int) -> int:
    """Return how large a file of so many rows can be; an untrusted one may be sparse."""
    row = 72 * (1 + len(info.cameras))  # of times
    for key, feature in info.features.items():
        if key in DEFAULT_FEATURES or feature.is_video:
            continue
        if feature.is_numeric:
            row += 8 * int(np.prod(feature.item_shape, dtype=np.int64)) + 64
        elif feature.is_camera:
            row += 8 * int(np.prod(feature.image_shape, dtype=np.int64)) + _LARGEST_TEXT
        else:
            row += _LARGEST_TEXT
    return _LARGEST_HEAD + most_text(frames) + frames * row


def _batches(data: bytes) -> Iterator[pa.RecordBatch]:
    """Yield the batches of an Arrow file; none is inflated, for none that we wrote needs it."""
    if data[:6] != b"ARROW1":
        raise ValueError("it is no Arrow file")
    messages = pa.ipc.MessageReader.open_stream(pa.BufferReader(pa.py_buffer(data)[8:]))
    schema = None
    for message in messages:
        if message.type == "schema" and schema is None:
            schema = pa.ipc.read_schema(message)
        elif message.type == "record batch" and schema is not None:
            if _is_compressed(message.metadata.to_pybytes()):
                raise ValueError("it is compressed")
            yield pa.ipc.read_record_batch(message, schema)
        else:
            raise ValueError(f"it holds a {message.type}")


def _is_compressed(metadata: bytes) -> bool:
    """Whether a record batch's buffers are: its flatbuffer has a field for how, the fourth."""
    message = struct.unpack_from("<I", metadata, 0)[0]
    header = _field(metadata, message, 2)
    if header is None:
        raise ValueError("a record batch has no header")
    return _field(metadata, header + struct.unpack_from("<I", metadata, header)[0], 3) is not None


def _field(data: bytes, table: int, number: int) -> int | None:
    """Return where a field of a flatbuffer's table is; None if the table has none."""
    vtable = table - struct.unpack_from("<i", data, table)[0]
    length = struct.unpack_from("<H", data, vtable)[0]
    place = 4 + 2 * number
    offset = struct.unpack_from("<H", data, vtable + place)[0] if place < length else 0
    return table + offset if offset else None


def _values(array: pa.Array, feature: Feature, where: str) -> Any:
    if feature.is_numeric:
        return read_numbers(array, feature, where=where)
    if feature.is_camera:
        images = read_images(array, key=feature.key, where=where)
        if images.null_count:
            raise TableError(f"Column {feature.key!r} lacks an image.", file=where)
        return images.to_pylist()
    if feature.is_language:
        return [parsed_rows(rows, key=feature.key, where=where) for rows in array.to_pylist()]
    if not pa.types.is_string(array.type) or array.null_count:
        raise TableError(f"Column {feature.key!r} holds {array.type}, not text.", file=where)
    return array.to_pylist()


class PersistedEpisode:
    """A persisted episode, checked against the dataset that it belongs to."""

    def __init__(self, folder: Path, info: Info) -> None:
        self.manifest = read_manifest(folder)
        status = os.lstat(folder / MANIFEST)
        self.identity: Identity = (folder.name, status.st_ino, status.st_mtime_ns)
        self._info = info
        self._refuse_other_cameras()
        frames = self.manifest.cameras[0].frames
        rows = read_rows(
            self.manifest.rows, info, images=False, frames=frames, digest=self._rows_digest
        )
        self.tasks, self.columns, self.times = rows.tasks, rows.columns, rows.times
        self.cameras = {camera.key: camera for camera in self.manifest.cameras}
        for camera in self.manifest.cameras:
            path = folder / MANIFEST
            require_frames(camera.frames, len(self), of="camera", camera=camera.key, file=path)

    def __len__(self) -> int:
        return len(self.tasks)

    def _refuse_other_cameras(self) -> None:
        info, path = self._info, self.manifest.folder / MANIFEST
        if set(self.manifest.frames) != set(info.video_keys) or self.manifest.fps != info.fps:
            raise _odd(path, "it is of another dataset")
        for camera in self.manifest.cameras:
            feature = info.features[camera.key]
            size = (camera.height, camera.width)
            if size != feature.image_shape[:2] or (camera.kind == "depth") != feature.is_depth:
                raise _odd(path, f"camera {camera.key!r} is another than the dataset's")

    def verify(self) -> None:
        """Decode all that was encoded: a commit must not take in what is damaged."""
        for camera in self.manifest.cameras:
            camera.verify(self.manifest.fps)
        for key, images in self.images.items():
            feature = self._info.features[key]
            decode = decode_depth_image if feature.is_depth else decode_image
            for number, data in enumerate(images):
                try:
                    decode(data, declared=feature.image_shape[:2])
                except PictureError as error:
                    raise PictureError(
                        error.what, camera=key, frame=number, file=self.manifest.rows
                    ) from error

    @cached_property
    def images(self) -> dict[str, list[bytes]]:
        """The encoded images of image cameras; read when they are asked for."""
        return read_rows(self.manifest.rows, self._info, digest=self._rows_digest).images

    @property
    def _rows_digest(self) -> object:
        return self.manifest.note.get("rows_digest")


def plain_size(path: Path) -> int:
    """Return the size of a file that is one, and no link."""
    status = os.lstat(path)
    if not stat.S_ISREG(status.st_mode):
        kinds = {stat.S_IFLNK: "a link", stat.S_IFDIR: "a folder", stat.S_IFIFO: "a pipe"}
        raise OSError(f"{path.name} is {kinds.get(stat.S_IFMT(status.st_mode), 'no plain file')}")
    return status.st_size


def _odd(path: Path, why: str) -> MetadataError:
    return MetadataError(f"The manifest of a saved episode cannot be used: {why}.", file=path)


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
