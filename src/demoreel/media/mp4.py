"""Reads the packet table of an mp4 (its ``moov`` box) without a demuxer.

Everything a random read needs stands in ``moov``: a few kilobytes, one read, whatever the size
of the video. Files that use rarer corners of the format (fragments, several edits, a codec change)
return None here and are indexed by a full demux instead (``remux.py``).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from demoreel.errors import VideoError
from demoreel.media.video import Codec, PacketIndex, index_packets
from demoreel.model.limits import limit, refuse_above
from demoreel.storage.local import is_pointer, not_fetched
from demoreel.storage.store import Bytes

_HEAD = 1 << 16  # first read: enough for the boxes before mdat, and often for all of moov
_MOST_BOXES = 1 << 10  # of a file: each may cost a request
_MOST_CHILDREN = 1 << 16
_MOST_EDITS = 64
_NEVER = 1 << 62

_DECODERS = {
    b"av01": "libdav1d",
    b"avc1": "h264",
    b"avc3": "h264",
    b"hvc1": "hevc",
    b"hev1": "hevc",
    b"vp09": "vp9",
    b"vp08": "vp8",
    b"mp4v": "mpeg4",
}
_CONFIGS = {
    b"av01": b"av1C",
    b"avc1": b"avcC",
    b"avc3": b"avcC",
    b"hvc1": b"hvcC",
    b"hev1": b"hvcC",
}
_MPEG4_VISUAL = 0x20
_AUDIO = (b"mp4a", b"Opus", b"fLaC", b"alac", b"ac-3", b"ec-3", b".mp3")
"""Audio whose packets are copied: a closed list, each packet of which decodes on its own."""

_MOST_AUDIO = 1 << 22  # packets: a day of AAC; uncompressed audio has one a sample
_LARGEST_ENTRY = 1 << 16
_LATEST = 1 << 52  # ticks; more is a mistake, and sums would run over
_HANDLERS = {
    b"vide": "another video track",
    b"tmcd": "a timecode track",
    b"sbtl": "a subtitle track",
    b"subt": "a subtitle track",
    b"text": "a text track",
    b"clcp": "a caption track",
    b"meta": "a metadata track",
    b"hint": "a hint track",
}
_ENTRY_HEAD = 78  # bytes of a video's sample entry before the boxes in it
_PLACEMENT = 44  # bytes at the end of a track header: matrix, width, height
_LAST_MATRIX = 14  # of ISO 23001-8, as far as FFmpeg converts them


class _Unusual(Exception):
    """The file is not broken, but needs a real demuxer."""


def read_index(
    file: Bytes, *, name: str, moov_at: tuple[int, int] | None = None
) -> PacketIndex | None:
    """Return the packet index of an mp4, or None if it needs a demuxer.

    Args:
        file: The video's bytes.
        name: Its path, for errors.
        moov_at: Offset and size of ``moov`` where they were noted: saves looking for it.
    """
    moov = _noted_moov(file, moov_at) or _find_moov(file, name)
    if moov is None:
        return None
    try:
        index = _index_from_moov(moov, file.size, name)
    except _Unusual:
        return None
    except VideoError:
        raise
    except (struct.error, ValueError, IndexError, OverflowError) as error:
        raise VideoError(
            f"The video's table of packets is damaged ({error}).",
            hint="restore the file from a copy",
            file=name,
        ) from error
    if index.end > file.size:
        raise VideoError(
            f"The video is cut off: its packets need {index.end} bytes, the file has {file.size}.",
            hint="restore the file from a copy, or record the episodes again",
            code="video-truncated",
            file=name,
        )
    return index


@dataclass(frozen=True, slots=True)
class Description:
    """What a video's track says of its packets, as bytes to be written again.

    Attributes:
        kind: The sample entry's four letters, e.g. ``av01``.
        entry: The sample entry's content.
        placement: The end of the track header: matrix, width and height of the shown frame.
    """

    kind: bytes
    entry: bytes
    placement: bytes

    def boxes(self) -> list[tuple[bytes, bytes]]:
        """Return the boxes inside the sample entry: kind and content."""
        return list(_boxes(self.entry, _ENTRY_HEAD))

    @property
    def head(self) -> bytes:
        """The part of the sample entry before its boxes."""
        return self.entry[:_ENTRY_HEAD]


def read_description(file: Bytes, *, name: str) -> Description | None:
    """Return how an mp4 describes its video track; None where it needs a demuxer."""
    moov = _find_moov(file, name)
    if moov is None or _child(moov, b"mvex") is not None or _child(moov, b"cmov") is not None:
        return None
    try:
        track = _video_track(moov)
        stsd = _required(track, b"mdia", b"minf", b"stbl", b"stsd")
        kind, entry = next(_boxes(stsd, 8))
        if struct.unpack_from(">I", stsd, 4)[0] != 1 or kind not in _DECODERS:
            return None
        return Description(kind, entry, _required(track, b"tkhd")[-_PLACEMENT:])
    except (_Unusual, struct.error, ValueError, StopIteration):
        return None


@dataclass(frozen=True, slots=True, eq=False)
class AudioTrack:
    """An audio track's packets, in decoding order, on the movie's clock.

    Attributes:
        scale: Ticks a second.
        entry: The sample entry, box and all.
        language: The packed language code.
        offset: Where each packet is in the file.
        size: Its bytes.
        begin: The tick at which it is heard; those before an edit's start are negative.
        length: Ticks that it lasts.
        first: The first packet that is heard; those before it only prepare the decoder.
    """

    scale: int
    entry: bytes
    language: int
    offset: np.ndarray
    size: np.ndarray
    begin: np.ndarray
    length: np.ndarray
    first: int

    @property
    def kind(self) -> tuple[object, ...]:
        """Equal for tracks whose packets may be in one track."""
        return (self.scale, self.entry)

    @property
    def seconds(self) -> float:
        """When its last packet ends."""
        return float(self.begin[-1] + self.length[-1]) / self.scale if len(self.size) else 0.0


@dataclass(frozen=True, slots=True)
class Tracks:
    """What an mp4 holds besides its video.

    Attributes:
        audio: Its audio track, if it has one whose packets can be copied.
        problem: Why the audio cannot be copied; empty if it can, or there is none.
        others: Tracks that are neither, in words: subtitles, timecode, another video.
    """

    audio: AudioTrack | None = None
    problem: str = ""
    others: tuple[str, ...] = ()

    @property
    def has_audio(self) -> bool:
        """Whether there is audio, of whatever kind."""
        return self.audio is not None or bool(self.problem)


def read_tracks(file: Bytes, *, name: str) -> Tracks | None:
    """Return what an mp4 holds besides its video; None if this is no mp4.

    Cost: the same one or two small reads as ``read_index``.
    """
    moov = _find_moov(file, name)
    if moov is None:
        return None
    try:
        return _tracks(moov, file.size)
    except (_Unusual, struct.error, ValueError, IndexError, OverflowError) as error:
        raise VideoError(
            f"The video's list of tracks is damaged ({error}).",
            hint="restore the file from a copy",
            file=name,
        ) from error


def _tracks(moov: bytes, file_size: int) -> Tracks:
    audio: list[bytes] = []
    others: list[str] = []
    has_video = False
    for kind, content in _boxes(moov):
        if kind != b"trak":
            continue
        handler = (_child(content, b"mdia", b"hdlr") or b"")[8:12]
        if handler == b"soun":
            audio.append(content)
        elif handler == b"vide" and not has_video:
            has_video = True
        else:
            named = handler.decode("latin1").strip() if handler.strip().isalnum() else "unknown"
            others.append(_HANDLERS.get(handler, f"a track of the kind {named!r}"))
    if not audio:
        return Tracks(others=tuple(others))
    try:
        if len(audio) > 1:
            raise _Unusual(f"there are {len(audio)} audio tracks")
        if _child(moov, b"mvex") is not None or _child(moov, b"cmov") is not None:
            raise _Unusual("the file is fragmented, or its tables are compressed")
        return Tracks(_audio_track(audio[0], moov, file_size), others=tuple(others))
    except _Unusual as error:
        return Tracks(problem=str(error), others=tuple(others))
    except (struct.error, ValueError, IndexError, OverflowError) as error:
        return Tracks(problem=f"its table of packets is damaged ({error})", others=tuple(others))


def _audio_track(track: bytes, moov: bytes, file_size: int) -> AudioTrack:
    stbl = _required(track, b"mdia", b"minf", b"stbl")
    header = _required(track, b"mdia", b"mdhd")
    scale, movie_ticks = _timescale(header), _timescale(_required(moov, b"mvhd"))
    stsd = _required(stbl, b"stsd")
    kind, entry = next(_boxes(stsd, 8), (b"", b""))
    if struct.unpack_from(">I", stsd, 4)[0] != 1 or len(entry) > _LARGEST_ENTRY:
        raise _Unusual("it has several sample descriptions")
    if kind not in _AUDIO:
        raise _Unusual(f"packets of the kind {kind.decode('latin1')!r} are not copied")
    count = struct.unpack_from(">I", _required(stbl, b"stsz"), 8)[0]
    if count > _MOST_AUDIO:
        raise _Unusual(f"it has {count} packets")
    size = _sample_sizes(stbl, file_size)
    offset = _sample_offsets(stbl, size)
    if len(size) and int((offset + size).max()) > file_size:
        raise ValueError("packets behind the file's end")
    begin = _presentation_times(stbl, len(size))
    runs = _table(_required(stbl, b"stts"), 2)
    length = np.repeat(runs[:, 1], runs[:, 0])
    if (np.diff(begin) <= 0).any():
        raise _Unusual("its packets are not in order")
    edit = _edit(_child(track, b"edts", b"elst"), scale, movie_ticks)
    first, stop = 0, len(size)
    if edit.delay is not None:
        if not -_LATEST < edit.start < _LATEST or edit.delay > _LATEST:
            raise ValueError("an edit at no time")
        first = int(np.searchsorted(begin + length, edit.start, side="right"))
        stop = int(np.searchsorted(begin, edit.stop, side="left"))
        begin = begin - int(edit.start) + edit.delay
    language = struct.unpack_from(">H", header, 32 if header[0] == 1 else 20)[0]
    return AudioTrack(
        scale=scale,
        entry=struct.pack(">I4s", len(entry) + 8, kind) + entry,
        language=int(language),
        offset=offset[:stop],
        size=size[:stop],
        begin=begin[:stop],
        length=length[:stop],
        first=min(first, stop),
    )


def _noted_moov(file: Bytes, place: tuple[int, int] | None) -> bytes | None:
    """Return the content of ``moov`` if it is where it was noted; None if it is not."""
    if place is None or not 8 < place[1] <= limit("MOOV_BYTES"):
        return None
    box = file.read(*place)
    if len(box) < place[1] or box[:8] != struct.pack(">I4s", place[1], b"moov"):
        return None
    return box[8:]


def _find_moov(file: Bytes, name: str) -> bytes | None:
    """Walk the top-level boxes to ``moov`` and return its content; None if this is no mp4."""
    if file.size == 0:
        raise VideoError(
            "The video is empty (0 bytes).", hint="restore the file", code="video-empty", file=name
        )
    head = file.read(0, _HEAD)
    if is_pointer(head):
        raise not_fetched(VideoError, name)
    if head[4:8] not in (b"ftyp", b"moov", b"mdat", b"free", b"skip", b"wide"):
        return None
    at = 0
    for _ in range(_MOST_BOXES):
        if at + 8 > file.size:
            break
        header = head[at : at + 16] if at + 16 <= len(head) else file.read(at, 16)
        if len(header) < 8:  # it says that it is longer than it is
            break
        size, kind = struct.unpack(">I4s", header[:8])
        skip = 8
        if size == 1 and len(header) >= 16:
            size, skip = struct.unpack(">Q", header[8:16])[0], 16
        elif size == 0:
            size = file.size - at
        if size < skip:
            break
        if kind == b"moov":
            if at + size > file.size:
                break
            refuse_above("MOOV_BYTES", size, "Its moov has bytes:", VideoError, file=name)
            if at + size <= len(head):
                return head[at + skip : at + size]
            return file.read(at + skip, size - skip)
        at += size
    raise VideoError(
        "The video has no table of packets (moov): it was cut off, or never finished.",
        hint="restore the file from a copy, or record the episodes again",
        code="video-unfinished",
        file=name,
        size=f"{file.size} bytes",
    )


def _boxes(data: bytes, start: int = 0) -> Iterator[tuple[bytes, bytes]]:
    at, count = start, 0
    while at + 8 <= len(data):
        count += 1
        if count > _MOST_CHILDREN:
            raise ValueError("too many boxes in a box")
        size, kind = struct.unpack_from(">I4s", data, at)
        skip = 8
        if size == 1:
            size, skip = struct.unpack_from(">Q", data, at + 8)[0], 16
        elif size == 0:
            size = len(data) - at
        if size < skip or at + size > len(data):
            raise ValueError(f"box {kind!r} runs past its parent")
        yield kind, data[at + skip : at + size]
        at += size


def _child(data: bytes, *path: bytes) -> bytes | None:
    for kind in path:
        found = next((content for name, content in _boxes(data) if name == kind), None)
        if found is None:
            return None
        data = found
    return data


def _required(data: bytes, *path: bytes) -> bytes:
    found = _child(data, *path)
    if found is None:
        raise ValueError(f"no box {b'/'.join(path).decode('latin1')}")
    return found


def _index_from_moov(moov: bytes, file_size: int, name: str) -> PacketIndex:
    if _child(moov, b"mvex") is not None or _child(moov, b"cmov") is not None:
        raise _Unusual("fragments, or a compressed table")
    track = _video_track(moov)
    stbl = _required(track, b"mdia", b"minf", b"stbl")
    ticks = _timescale(_required(track, b"mdia", b"mdhd"))
    movie_ticks = _timescale(_required(moov, b"mvhd"))
    codec = _codec(_required(stbl, b"stsd"))
    what = f"The video says that it is {codec.height} x {codec.width}: pixels"
    refuse_above("IMAGE_PIXELS", codec.width * codec.height, what, VideoError, file=name)
    size = _sample_sizes(stbl, file_size, name)
    offset = _sample_offsets(stbl, size)
    pts = _presentation_times(stbl, len(size))
    keyframe = _keyframes(stbl, len(size))
    edit = _edit(_child(track, b"edts", b"elst"), ticks, movie_ticks)
    shown = (pts >= edit.start) & (pts < edit.stop)
    # As in FFmpeg, the first frame that an edit shows is shown when the edit begins.
    origin = int(pts[shown].min(initial=_NEVER)) - edit.delay if edit.delay is not None else 0
    return index_packets(
        codec=codec,
        offset=offset,
        size=size,
        pts=pts,
        keyframe=keyframe,
        shown=shown,
        seconds_per_tick=1 / ticks,
        origin=origin,
    )


def _video_track(moov: bytes) -> bytes:
    for kind, content in _boxes(moov):
        if kind == b"trak":
            handler = _child(content, b"mdia", b"hdlr")
            if handler is not None and handler[8:12] == b"vide":
                return content
    raise _Unusual("no video track")


def _timescale(header: bytes) -> int:
    ticks = struct.unpack_from(">I", header, 20 if header[0] == 1 else 12)[0]
    if ticks == 0:
        raise ValueError("a clock with no ticks")
    return int(ticks)


def _codec(stsd: bytes) -> Codec:
    entries = struct.unpack_from(">I", stsd, 4)[0]
    if entries != 1:
        raise _Unusual("several sample descriptions")
    kind, entry = next(_boxes(stsd, 8), (b"", b""))
    decoder = _DECODERS.get(kind)
    if decoder is None:
        raise _Unusual(f"sample entry {kind!r}")
    width, height = struct.unpack_from(">HH", entry, 24)
    config = dict(_boxes(entry, 78))
    extradata = config.get(_CONFIGS[kind]) if kind in _CONFIGS else None
    if kind == b"mp4v":
        extradata = _mpeg4_header(config.get(b"esds", b""))
    return Codec(decoder, extradata, width, height, *_colour(entry))


def _colour(entry: bytes) -> tuple[int, int]:
    """Return colour range and matrix from a ``colr`` box, as FFmpeg numbers them."""
    color_range, matrix = 0, 2
    for kind, colr in _boxes(entry, 78):
        if kind == b"colr" and colr[:4] in (b"nclx", b"nclc"):
            matrix = struct.unpack_from(">H", colr, 8)[0]
            if colr[:4] == b"nclx":
                color_range = 2 if colr[10] & 0x80 else 1
    return color_range, matrix if matrix <= _LAST_MATRIX else 2


def _mpeg4_header(esds: bytes) -> bytes:
    """Return the decoder-specific info inside an ``esds`` box's nested descriptors."""
    at, end = 4, len(esds)
    while at < end:
        tag = esds[at]
        at, length = _descriptor_length(esds, at + 1)
        if tag == 0x03:  # ES descriptor: id, flags, then optional fields
            flags = esds[at + 2]
            at += 3 + (2 if flags & 0x80 else 0) + (2 if flags & 0x20 else 0)
            if flags & 0x40:
                at += 1 + esds[at]
        elif tag == 0x04:  # decoder config: object type first
            if esds[at] != _MPEG4_VISUAL:
                raise _Unusual("mp4v that is not MPEG-4 part 2")
            at += 13
        elif tag == 0x05:
            return esds[at : at + length]
        else:
            at += length
    raise _Unusual("mp4v without a header")


def _descriptor_length(data: bytes, at: int) -> tuple[int, int]:
    length = 0
    for _ in range(4):
        byte = data[at]
        at += 1
        length = length << 7 | byte & 0x7F
        if not byte & 0x80:
            break
    return at, length


def _table(box: bytes, columns: int, *, skip: int = 4) -> np.ndarray:
    """Return a counted table of big-endian 32-bit numbers as int64 rows."""
    count = struct.unpack_from(">I", box, skip)[0]
    numbers = np.frombuffer(box, ">u4", count * columns, skip + 4)
    return numbers.reshape(count, columns).astype(np.int64)


def _sample_sizes(stbl: bytes, file_size: int, name: str | None = None) -> np.ndarray:
    box = _child(stbl, b"stsz")
    if box is None:
        raise _Unusual("compact sample sizes")
    fixed, count = struct.unpack_from(">II", box, 4)
    refuse_above("VIDEO_PACKETS", count, "The video has packets:", VideoError, file=name)
    if fixed * count > file_size:
        raise ValueError(f"{count} packets of {fixed or 'any'} bytes in {file_size} bytes")
    if fixed:
        return np.full(count, fixed, dtype=np.int64)
    size = np.frombuffer(box, ">u4", count, 12).astype(np.int64)
    if not size.all():
        raise _Unusual("empty packets")
    return size


def _sample_offsets(stbl: bytes, size: np.ndarray) -> np.ndarray:
    chunks_box = _child(stbl, b"stco")
    if chunks_box is not None:
        chunks = _table(chunks_box, 1)[:, 0]
    else:
        co64 = _required(stbl, b"co64")
        chunks = np.frombuffer(co64, ">u8", struct.unpack_from(">I", co64, 4)[0], 8).astype(
            np.int64
        )
    runs = _table(_required(stbl, b"stsc"), 3)
    if len(size) == 0:
        return np.zeros(0, dtype=np.int64)
    first = runs[:, 0] - 1
    repeats = np.diff(np.append(first, len(chunks)))
    if len(runs) == 0 or first[0] != 0 or (repeats < 0).any():
        raise ValueError("chunks out of order")
    if len(set(runs[:, 2].tolist())) > 1:
        raise _Unusual("several sample descriptions")
    per_chunk = np.repeat(runs[:, 1], repeats)
    if per_chunk.sum() != len(size):
        raise ValueError(f"{len(size)} sizes for {per_chunk.sum()} packets")
    chunk_of = np.repeat(np.arange(len(chunks)), per_chunk)
    before = np.concatenate([[0], np.cumsum(size)[:-1]])
    first_in_chunk = np.concatenate([[0], np.cumsum(per_chunk)[:-1]])
    # An empty chunk at the end has no first packet; it is never looked up.
    start_of_chunk = before[np.minimum(first_in_chunk, len(size) - 1)]
    offsets: np.ndarray = chunks[chunk_of] + before - start_of_chunk[chunk_of]
    if int(offsets.min()) < 0:
        raise ValueError("packets before the file's beginning")
    return offsets


def _presentation_times(stbl: bytes, count: int) -> np.ndarray:
    runs = _table(_required(stbl, b"stts"), 2)
    if runs[:, 0].sum() != count:
        raise ValueError(f"times for {runs[:, 0].sum()} of {count} packets")
    deltas = np.repeat(runs[:, 1], runs[:, 0])
    times = np.concatenate([[0], np.cumsum(deltas)[:-1]]) if count else deltas
    shifts = _child(stbl, b"ctts")
    if shifts is not None:
        rows = _table(shifts, 2)
        signed = rows[:, 1].astype(np.uint32).view(np.int32).astype(np.int64)
        if rows[:, 0].sum() != count:  # one number wrong, and frames would change their places
            raise ValueError(f"composition shifts for {rows[:, 0].sum()} of {count} packets")
        times = times + np.repeat(signed, rows[:, 0])
    return times


def _keyframes(stbl: bytes, count: int) -> np.ndarray:
    box = _child(stbl, b"stss")
    if box is None:
        return np.ones(count, dtype=bool)
    flags = np.zeros(count, dtype=bool)
    numbers = _table(box, 1)[:, 0]
    if (numbers == 0).any():
        raise ValueError("keyframes are counted from 1")
    flags[numbers - 1] = True
    return flags


@dataclass(frozen=True, slots=True)
class _Edit:
    """The span of the track that is shown, and ticks before it begins (None: no edits)."""

    start: float
    stop: float
    delay: int | None


def _edit(elst: bytes | None, ticks: int, movie_ticks: int) -> _Edit:
    if elst is None:
        return _Edit(-np.inf, np.inf, None)
    wide = elst[0] == 1
    count = struct.unpack_from(">I", elst, 4)[0]
    if count > _MOST_EDITS:
        raise _Unusual("several edits")
    delay = 0
    edits: list[tuple[int, int]] = []
    for number in range(count):
        if wide:
            length, start, rate = struct.unpack_from(">Qqi", elst, 8 + 20 * number)
        else:
            length, start, rate = struct.unpack_from(">Iii", elst, 8 + 12 * number)
        ticks_long = (2 * length * ticks + movie_ticks) // (2 * movie_ticks)  # halves round up
        if start < -1:
            raise ValueError(f"an edit begins {-start} ticks before the video")
        if start == -1:
            delay += ticks_long
        else:
            edits.append((start, ticks_long))
            if rate != 1 << 16:
                raise _Unusual("an edit at another speed")
    if len(edits) != 1:
        raise _Unusual("several edits")
    start, length = edits[0]
    return _Edit(start, start + length if length else np.inf, delay)
