"""Assigns the pieces of clips to the videos of a result, before a byte is copied."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from demoreel.edit.exact import Divider, settings_beside, settings_like
from demoreel.edit.form import EncodePolicy
from demoreel.edit.video_plan import (
    Blank,
    CameraClip,
    CopiedRun,
    PacketTake,
    Piece,
    VideoOut,
    VideoPlan,
    audio_of,
)
from demoreel.errors import ArgumentError, FrameMismatchError, VideoError
from demoreel.layouts.base import Reader
from demoreel.media.audio import tracks_of
from demoreel.media.decode import begins_anew, with_lead_in
from demoreel.media.mp4 import Description, Tracks, read_description
from demoreel.media.mp4_write import PacketRun, signature
from demoreel.media.settings import VideoSettings, exact_rate
from demoreel.media.video import Video
from demoreel.media.video import VideoClip as Place
from demoreel.model import Feature, Info
from demoreel.storage.local import LocalFile

_MB = 1024 * 1024
_FRAMES_ENCODED = 4096
"""Of a video that is encoded: what one task does, and what is done again after a kill."""

_BYTES_OF_PIXEL = 0.08  # of an encoded frame; a guess
_LARGER = 8  # an exact frame may be so many times its packet


def plan_camera(
    feature: Feature,
    camera_clips: Sequence[CameraClip],
    readers: Sequence[Reader],
    keys: Sequence[str | None],
    info: Info,
    policy: EncodePolicy,
    *,
    drop_audio: bool = False,
    joined: bool = True,
) -> VideoPlan:
    """Plan one camera's videos.

    Cost: reads the table of packets of every source video.

    Args:
        feature: The camera as the result has it.
        camera_clips: Every clip, in order.
        readers: The sources.
        keys: The camera's key in each source; None where it has none.
        info: What the result will be; sizes of videos are kept to.
        policy: Whether frames are copied or encoded.
        drop_audio: Leave the audio of the sources' videos out.
        joined: Whether frames of several source videos may share one; else each begins another.
    """
    packer = _Packer(feature, info, policy, drop_audio=drop_audio)
    before: tuple[int, str] | None = None
    for number, camera_clip in enumerate(camera_clips):
        reader, key = readers[camera_clip.source], keys[camera_clip.source]
        if not joined and key is not None:
            file = camera_clip.source, reader.video_file(camera_clip.position, key)
            if file != before:
                packer.begin_file()
            before = file
        if key is None:
            packer.add_blank(
                number, camera_clip, _blank_settings(policy, camera_clips, readers, keys)
            )
        elif policy.settings is not None:
            packer.add_encoded(number, camera_clip, reader, key)
        else:
            packer.add(number, camera_clip, reader.clip(camera_clip.position, key), reader)
    return packer.finish(len(camera_clips))


def _blank_settings(
    policy: EncodePolicy,
    camera_clips: Sequence[CameraClip],
    readers: Sequence[Reader],
    keys: Sequence[str | None],
) -> VideoSettings:
    """Return how to encode black frames: like those of the first source that has the camera."""
    if policy.settings is not None:
        return policy.settings
    for camera_clip in camera_clips:
        key = keys[camera_clip.source]
        if key is not None:
            place = readers[camera_clip.source].clip(camera_clip.position, key)
            try:
                return settings_like(place.video, place.first)
            except VideoError:
                break  # such frames cannot be encoded here; black ones may be of another kind
    return VideoSettings(codec="h264", gop=32)


@dataclass(frozen=True, slots=True)
class _Placed:
    """A clip in the video that is being filled.

    Attributes:
        number: Which clip.
        piece: The first of the video's pieces that it is in.
        frame: The frame of the source's video that is its first; -1 if its piece begins with it.
        span: Frames of the video from its first to its last, both counted.
        camera_clip: The clip, as the camera sees it.
    """

    number: int
    piece: int
    frame: int
    span: int
    camera_clip: CameraClip


@dataclass(slots=True)
class _Open:
    """The video that is being filled."""

    chunk: int = 0
    file: int = 0
    kind: tuple[object, ...] = ()
    fps: float = 0.0
    alone: bool = False  # its first packets do not start again (``media/decode.py``)
    description: Description | None = None
    audio: tuple[object, ...] | None = None  # its kind
    pieces: list[Piece] = field(default_factory=list)
    videos: list[Video | None] = field(default_factory=list)
    bytes: int = 0
    encoded: int = 0
    clips: list[_Placed] = field(default_factory=list)

    def is_followed_by(self, video: Video, packet: int, frame: int) -> bool:
        """Whether packets from ``packet`` on follow the last run, or are in it already.

        Its frames must not be another clip's: every frame of a video belongs to one episode.
        """
        if not self.pieces or not self.clips or self.clips[-1].frame < 0:
            return False
        last, there = self.pieces[-1], self.videos[-1]
        if not isinstance(last, CopiedRun) or there is None or there.name != video.name:
            return False
        before = self.clips[-1]
        return last.first <= packet <= last.stop and frame >= before.frame + before.span

    def put(self, piece: Piece, video: Video | None, size: int) -> None:
        self.pieces.append(piece)
        self.videos.append(video)
        self.bytes += size
        if isinstance(piece, PacketTake):
            self.encoded += len(piece.frames)


@dataclass(frozen=True, slots=True)
class _Heard:
    """The audio of a video: its kind, None if it has none, and about how many bytes a second."""

    kind: tuple[object, ...] | None = None
    rate: float = 0.0


class _Packer:
    def __init__(
        self, feature: Feature, info: Info, policy: EncodePolicy, *, drop_audio: bool
    ) -> None:
        self._feature = feature
        self._drop_audio = drop_audio
        self._heard_in: dict[str, _Heard] = {}
        self._dropped: Counter[str] = Counter()
        self._info = info
        self._policy = policy
        self._limit = info.video_files_size_in_mb * _MB
        self._one_each = info.version.startswith("v2")
        self._open = _Open()
        self._videos: list[VideoOut] = []
        self._kinds: dict[str, tuple[Description, tuple[object, ...]]] = {}
        self._dividers: dict[str, Divider] = {}
        self._likes: dict[str, VideoSettings] = {}
        self._places: list[tuple[int, int, int, float]] = []
        self._encoded: dict[int, list[range]] = {}
        self._blank: set[int] = set()
        self._whole: set[int] = set()

    def begin_file(self) -> None:
        """Let the next clip begin another video."""
        if self._open.pieces:
            self._close()

    def add(self, number: int, camera_clip: CameraClip, place: Place, reader: Reader) -> None:
        """Take a clip's packets, or, if it is to be exact, some of its frames."""
        fps = self._clock_of(camera_clip, place, reader)
        assert isinstance(camera_clip.frames, range)
        frame = int(place.frames(np.array(camera_clip.frames[0])))
        span = place.step * camera_clip.frames.step * (len(camera_clip.frames) - 1) + 1
        if self._policy.exact:
            self._add_exact(number, camera_clip, place.video, frame, span, fps)
        else:
            self._add_carried(number, camera_clip, place.video, frame, span, fps, str(reader.root))

    def add_encoded(self, number: int, camera_clip: CameraClip, reader: Reader, key: str) -> None:
        """Take a clip's frames, to be encoded."""
        assert self._policy.settings is not None
        frames, video = camera_clip.frames, None
        if not reader.in_tables(key):
            place = reader.clip(camera_clip.position, key)
            video = place.video
            found = place.frames(np.array(frames))
            frames = (
                range(int(found[0]), int(found[-1]) + 1, place.step * frames.step)
                if isinstance(frames, range)
                else tuple(found.tolist())
            )
        settings, scaled = self._policy.settings, self._policy.size
        take = PacketTake(camera_clip.source, camera_clip.position, frames, settings, size=scaled)
        heard = self._heard(video)
        seconds = len(frames) / self._info.fps
        size = int(len(frames) * np.prod(self._size) * _BYTES_OF_PIXEL + heard.rate * seconds)
        self._begin(("encoded",), size, self._info.fps, more=len(frames), audio=heard.kind)
        self._open.clips.append(
            _Placed(number, len(self._open.pieces), -1, len(frames), camera_clip)
        )
        self._open.put(take, video, size)
        self._encoded[number] = [range(len(frames))]

    def add_blank(self, number: int, camera_clip: CameraClip, settings: VideoSettings) -> None:
        """Take black frames for a clip whose source has no such camera."""
        count = len(camera_clip.frames)
        kind = "encoded" if self._policy.settings is not None else "blank"
        self._begin((kind,), 0, self._info.fps)
        self._open.clips.append(_Placed(number, len(self._open.pieces), -1, count, camera_clip))
        self._open.put(Blank(count, self._size, settings), None, count * 64)
        self._blank.add(number)

    @property
    def _size(self) -> tuple[int, int]:
        return self._feature.image_shape[:2]

    def _clock_of(self, camera_clip: CameraClip, place: Place, reader: Reader) -> float:
        """Return the rate that a clip's video keeps, where packets can be copied at all."""
        rate = exact_rate(reader.info.fps) * place.step
        wanted = exact_rate(self._info.fps)
        regular = isinstance(camera_clip.frames, range) and rate / wanted == (
            place.step * camera_clip.frames.step
        )
        if regular and (rate == wanted or not self._one_each):
            return float(rate)
        because = "a video of v2.1 holds its episode's frames and no others"
        raise ArgumentError(
            f"Pictures at {float(rate):g} frames a second would have to be encoded to be shown at "
            f"{float(wanted):g}: {because if regular else 'one rate is no multiple of the other'}.",
            hint="ask for a codec: vcodec='h264' (--vcodec h264)",
            camera=self._feature.key,
            dataset=reader.root,
        )

    def _add_exact(
        self, number: int, camera_clip: CameraClip, video: Video, frame: int, span: int, fps: float
    ) -> None:
        stop = frame + span
        if video.name not in self._dividers:
            self._dividers = {video.name: Divider(video)}
        found = self._dividers[video.name].divide(frame, stop)
        sizes = video.index.size
        mean = int(sizes.mean()) * _LARGER
        copied = int(sizes[found.first : found.stop].sum())
        settings = None
        if len(found.head) or len(found.tail):
            like = self._like(video, frame)
            settings = settings_beside(like, video)
            if settings is None:
                self._add_whole(
                    number, camera_clip, video, range(frame, stop), fps, like, mean * span
                )
                return
        description, kind = self._described(video)
        size = copied + mean * (len(found.head) + len(found.tail))
        heard = self._heard(video)
        self._begin((kind, fps), size, fps, description=description, audio=heard.kind)
        now = self._open
        now.clips.append(_Placed(number, len(now.pieces), -1, span, camera_clip))
        encoded = []
        for part in (found.head, None, found.tail):
            if part is None:
                if found.stop > found.first:
                    run = CopiedRun(
                        camera_clip.source, camera_clip.position, found.first, found.stop
                    )
                    now.put(run, video, copied)
            elif len(part):
                assert settings is not None
                take = PacketTake(
                    camera_clip.source, camera_clip.position, part, settings, alike=True
                )
                now.put(take, video, mean * len(part))
                encoded.append(range(part[0] - frame, part[-1] + 1 - frame))
        if encoded:
            self._encoded[number] = encoded

    def _add_whole(
        self,
        number: int,
        camera_clip: CameraClip,
        video: Video,
        frames: range,
        fps: float,
        settings: VideoSettings,
        size: int,
    ) -> None:
        """Take all frames of a clip, to be encoded like its video: no copied packet fits beside."""
        kind, audio = ("like", fps, repr(settings)), self._heard(video).kind
        self._begin(kind, size, fps, more=len(frames), audio=audio)
        self._open.clips.append(
            _Placed(number, len(self._open.pieces), -1, len(frames), camera_clip)
        )
        self._open.put(
            PacketTake(camera_clip.source, camera_clip.position, frames, settings, alike=True),
            video,
            size,
        )
        self._encoded[number] = [range(len(frames))]
        self._whole.add(number)

    def _like(self, video: Video, frame: int) -> VideoSettings:
        if video.name not in self._likes:
            try:
                self._likes[video.name] = settings_like(video, frame)
            except VideoError as error:
                raise type(error)(
                    error.what, hint=error.hint, camera=self._feature.key, **error.where
                ) from error
        return self._likes[video.name]

    def _add_carried(
        self,
        number: int,
        camera_clip: CameraClip,
        video: Video,
        frame: int,
        span: int,
        fps: float,
        root: str,
    ) -> None:
        bare, stop = _needed(video, frame, span, root, camera_clip)
        anew = begins_anew(video, bare)
        first = bare if anew else with_lead_in(video.index, bare)
        description, kind = self._described(video)
        heard = self._heard(video)
        audio = int(heard.rate * (stop - first) / fps)
        size = int(video.index.size[first:stop].sum()) + audio
        now = self._open
        goes_on = now.is_followed_by(video, bare, frame) and not self._one_each
        fits = goes_on or (anew and not now.alone)
        before = now
        self._begin((kind, fps), size, fps, description=description, fits=fits, audio=heard.kind)
        now = self._open
        if not now.pieces:
            now.alone = not anew
        if goes_on and now is before:
            last = now.pieces[-1]
            assert isinstance(last, CopiedRun)
            stop = max(stop, last.stop)
            more = int(video.index.size[last.stop : stop].sum())
            now.bytes += more + int(heard.rate * (stop - last.stop) / fps) - size
            now.pieces[-1] = CopiedRun(last.source, last.position, last.first, stop)
        else:
            now.put(CopiedRun(camera_clip.source, camera_clip.position, first, stop), video, 0)
        now.bytes += size
        now.clips.append(_Placed(number, len(now.pieces) - 1, frame, span, camera_clip))

    def _begin(
        self,
        kind: tuple[object, ...],
        size: int,
        fps: float,
        *,
        description: Description | None = None,
        fits: bool = True,
        more: int = 0,
        audio: tuple[object, ...] | None = None,
    ) -> None:
        """Go on in the open video if a clip of this kind and size fits there, else in another."""
        now = self._open
        full = now.bytes + size > self._limit or now.encoded + more > _FRAMES_ENCODED
        other = None not in (now.audio, audio) and now.audio != audio  # none goes with any
        if now.pieces and (now.kind != kind or full or other or not fits or self._one_each):
            self._close()
            now = self._open
        if not now.pieces:
            now.kind, now.description, now.fps = kind, description, fps
        now.audio = now.audio or audio

    def _heard(self, video: Video | None) -> _Heard:
        """Return the audio of a video that is to be copied; note what is not."""
        if video is None:
            return _Heard()
        if video.name not in self._heard_in:
            try:
                tracks = tracks_of(video)
            except VideoError as error:
                if not self._drop_audio:
                    raise self._refused(error.what, video.name) from error
                tracks = Tracks(others=("tracks that cannot be read",))
            self._dropped.update(tracks.others)
            if tracks.has_audio and self._drop_audio:
                self._dropped["its audio"] += 1
            elif tracks.problem:
                raise self._refused(f"Its audio cannot be copied: {tracks.problem}.", video.name)
            found = _Heard()
            if tracks.audio is not None and len(tracks.audio.size) and not self._drop_audio:
                seconds = max(tracks.audio.seconds, 1e-3)
                found = _Heard(tracks.audio.kind, float(tracks.audio.size.sum()) / seconds)
            self._heard_in[video.name] = found
        return self._heard_in[video.name]

    def _refused(self, why: str, file: str) -> ArgumentError:
        return ArgumentError(
            f"The audio of a video of {self._feature.key!r} would be lost. {why}",
            hint="leave audio out: drop_audio=True (--drop-audio)",
            camera=self._feature.key,
            file=file,
        )

    def _refuse_drift(self, out: VideoOut, videos: Sequence[Video | None]) -> None:
        for span in audio_of(out, videos):
            if self._heard(span.video).kind is not None:
                try:
                    span.refuse_drift()
                except VideoError as error:
                    raise self._refused(error.what, span.video.name) from error

    def _described(self, video: Video) -> tuple[Description, tuple[object, ...]]:
        if video.name not in self._kinds:
            description = read_description(video.file, name=video.name)
            if description is None:
                raise VideoError(
                    "This video's packets cannot be copied as they are: it is no plain mp4.",
                    hint="bring it into one without loss: ffmpeg -i FILE -c copy NEW.mp4",
                    file=video.name,
                )
            self._kinds[video.name] = (description, signature(description))
        return self._kinds[video.name]

    def _close(self) -> None:
        now = self._open
        runs = [
            PacketRun(video, video.index.decoded_from(piece.first, piece.stop))
            if isinstance(piece, CopiedRun) and video is not None
            else None
            for piece, video in zip(now.pieces, now.videos, strict=True)
        ]
        counts = [
            len(run.packets) if run is not None else _count(piece)
            for run, piece in zip(runs, now.pieces, strict=True)
        ]
        before = np.concatenate([[0], np.cumsum(counts)]).tolist()
        shown = [run.shown() if run is not None else None for run in runs]
        for clip in now.clips:
            at = 0
            run, order = runs[clip.piece], shown[clip.piece]
            if clip.frame >= 0 and run is not None and order is not None:
                at = _first_shown(run, order, clip)
            self._places.append((now.chunk, now.file, before[clip.piece] + at, now.fps))
        out = VideoOut(
            camera=self._feature.key,
            chunk=now.chunk,
            file=now.file,
            runs=tuple(now.pieces),
            description=now.description,
            frames=before[-1],
            size=now.bytes,
            seen=tuple(_seen(video) for video in now.videos if video is not None),
            episode=len(self._places) - len(now.clips),
            fps=now.fps,
            audio=now.audio is not None,
        )
        if out.audio:
            self._refuse_drift(out, now.videos)
        if self._one_each:
            _refuse_more_frames(out, now.clips[0].camera_clip, now.videos[0])
        self._videos.append(out)
        chunk, file = now.chunk, now.file + 1
        if file == self._info.chunks_size:
            chunk, file = chunk + 1, 0
        self._open = _Open(chunk, file)

    def finish(self, clips: int) -> VideoPlan:
        self._close()
        assert len(self._places) == clips
        chunk, file, first, rate = np.array(self._places, np.float64).T
        return VideoPlan(
            self._videos,
            chunk=chunk.astype(np.int64),
            file=file.astype(np.int64),
            first=first.astype(np.int64),
            rate=rate,
            encoded=self._encoded,
            blank=frozenset(self._blank),
            whole=frozenset(self._whole),
            dropped=tuple(self._said(what, count) for what, count in self._dropped.items()),
        )

    def _said(self, what: str, count: int) -> str:
        videos = "1 video" if count == 1 else f"{count} videos"
        return f"{self._feature.key}: {what}, of {videos}"


def _count(piece: Piece) -> int:
    """Return how many frames a piece has that is no run."""
    assert not isinstance(piece, CopiedRun)
    return piece.count


def _needed(
    video: Video, frame: int, span: int, root: str, camera_clip: CameraClip
) -> tuple[int, int]:
    """Return the packets that the frames need: the first, and one past the last."""
    index = video.index
    packets = index.packet_of[frame : frame + span]
    first = int(index.start_of[packets].min())
    if first < 0:
        raise FrameMismatchError(
            "The clip's first frames depend on others that the video does not have.",
            hint="begin the clip a few frames later",
            dataset=root,
            file=video.name,
            frame=camera_clip.frames[0],
        )
    return first, int(packets.max()) + 1


def _first_shown(run: PacketRun, shown: np.ndarray, clip: _Placed) -> int:
    """Return which frame of a run is a clip's first; those after it must follow one by one."""
    packets = run.video.index.packet_of[clip.frame : clip.frame + clip.span]
    places = np.searchsorted(run.packets, packets)
    found = places < len(run.packets)
    if not found.all() or not np.array_equal(run.packets[places], packets):
        raise VideoError("A clip's packets cannot be cut out.", file=run.video.name)
    order = shown[places]
    if not np.array_equal(order, order[0] + np.arange(clip.span)):
        raise VideoError(
            "A clip's frames would not follow one another: the video hides frames between them.",
            hint="encode the video again",
            file=run.video.name,
            frame=clip.camera_clip.frames[0],
        )
    return int(order[0])


def _refuse_more_frames(out: VideoOut, camera_clip: CameraClip, video: Video | None) -> None:
    """Refuse a video that would hold more than its episode: there is no place to say so in v2."""
    more = out.frames - len(camera_clip.frames)
    if more and video is not None:
        raise FrameMismatchError(
            f"A clip cannot be cut out alone: its frames need {more} more, and v2.1 shows all.",
            hint="re-encode those of its first GOP: exact=True (--exact); or begin "
            "and end it with a GOP, or write v3.0",
            episode=out.episode,
            camera=out.camera,
            frames=f"{camera_clip.frames[0]} to {camera_clip.frames[-1]}",
            file=video.name,
        )


def _seen(video: Video) -> tuple[object, ...]:
    """Return what changes when a video does, and is the same on every machine that sees it."""
    changed = video.file.identity[3] if isinstance(video.file, LocalFile) else None
    return (video.file.size, changed, len(video.index.offset))
