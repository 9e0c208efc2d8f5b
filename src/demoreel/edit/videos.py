"""Making videos of the result: packets of its clips, copied or freshly encoded.

What is encoded goes into a video of its own, whose packets are then copied. It begins with a
keyframe, and has exactly as many frames as it should (``VideoEncoder`` counts). Memory: one frame,
and what a codec looks ahead.
"""

from __future__ import annotations

import itertools
import os
import shutil
import tempfile
import threading
from collections import deque
from collections.abc import Generator, Iterable, Iterator, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from demoreel.edit.clips import Frames, Source
from demoreel.edit.compare import compare_copy
from demoreel.edit.exact import joined_header
from demoreel.edit.sources import open_source
from demoreel.edit.video_plan import Blank, CopiedRun, PacketTake, VideoOut, audio_of, run_of
from demoreel.errors import VideoError
from demoreel.layouts.base import Reader
from demoreel.media.audio import AudioSpan
from demoreel.media.colour import depth_codes
from demoreel.media.decode import Decoder, GopSpan, group_frames
from demoreel.media.encode import VideoEncoder
from demoreel.media.images import decode_image
from demoreel.media.mp4 import Description, read_description
from demoreel.media.mp4_write import PacketRun, signature, write_packets
from demoreel.media.settings import VideoSettings
from demoreel.media.video import Video, open_video
from demoreel.storage.commit.files import write_whole
from demoreel.storage.local import copy_bytes

_BLACK_GOP = 128  # frames that are encoded once, and repeated
_IMAGES_AT_ONCE = 64
_reading = threading.Lock()  # readers serve one thread at a time


@dataclass(frozen=True, slots=True)
class VideoJob:
    """All that is needed to make some videos of one camera, in any process.

    Attributes:
        folder: The staging folder.
        sources: The cut list's sources.
        keys: The camera's key in each of them; None where it has none.
        videos: What they are made of, and where each goes, relative to the dataset.
        compare: Whether what is copied whole is compared with its source.
        threads: How many clips are encoded at a time.
    """

    folder: str
    sources: Sequence[Source]
    keys: Sequence[str | None]
    videos: Sequence[tuple[str, VideoOut]]
    compare: bool = False
    threads: int = 1


def write_videos(job: VideoJob) -> dict[str, Any]:
    """Write videos.

    Cost: a copy of their bytes; what is encoded takes the time of its codec, and lies on disk twice
    until its video is whole.
    """
    dataset = Path(job.folder) / "dataset"
    with closing(packets_of(job)) as packets:
        for name, video in job.videos:
            if video.whole is not None:
                write_whole(dataset / name, partial(_copy, job, video))
            else:
                runs, description = next(packets)
                write_whole(dataset / name, partial(_write, job, video, runs, description))
    return {"files": {f"dataset/{name}": os.path.getsize(dataset / name) for name, _ in job.videos}}


def _write(
    job: VideoJob, video: VideoOut, runs: list[PacketRun], description: Description, path: Path
) -> None:
    audio = heard_in(video, job)
    frames = write_packets(path, runs, description=description, fps=video.fps, audio=audio)
    refuse_other_length(video, frames)


def whole_video(job: VideoJob, video: VideoOut) -> Video:
    """Return the source of a video that stays as it is."""
    return open_source(job.sources[0]).clip(video.episode, video.camera).video


def _copy(job: VideoJob, video: VideoOut, path: Path) -> None:
    source = whole_video(job, video).file
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o644)
    try:
        copy_bytes(source, handle)
        if job.compare:  # while the disk is still writing
            compare_copy(source, handle, 0)
        os.fsync(handle)
    finally:
        os.close(handle)


def heard_in(video: VideoOut, job: VideoJob) -> list[AudioSpan]:
    """Return the audio that a video is to have."""
    if not video.audio:
        return []
    places: list[Video | None] = []
    for piece in video.runs:
        place = None
        if not isinstance(piece, Blank):
            reader, key = open_source(job.sources[piece.source]), str(job.keys[piece.source])
            if not reader.in_tables(key):
                place = reader.clip(piece.position, key).video
        places.append(place)
    return audio_of(video, places)


def refuse_other_length(video: VideoOut, frames: int) -> None:
    """Refuse a video that did not become as long as it was planned."""
    if frames != video.frames:
        raise VideoError(
            f"A video has {frames} frames; {video.frames} were planned.",
            hint="a source was changed in the meantime; run the command again",
            camera=video.camera,
        )


def packets_of(job: VideoJob) -> Generator[tuple[list[PacketRun], Description], None, None]:
    """Yield the packets that make each video, and their description; not of those that stay whole.

    Clips are encoded by threads, those of the next videos while one is written. They lie in the
    staging folder until the next video is asked for.
    """
    videos = [video for _, video in job.videos if video.whole is None]
    if all(video.is_copied for video in videos):
        for video in videos:
            assert video.description is not None
            yield _copied(video, job), video.description
        return
    with (
        tempfile.TemporaryDirectory(dir=job.folder, prefix=".encoding-") as scratch,
        ThreadPoolExecutor(job.threads, "demoreel-encode") as pool,
    ):
        begun: deque[_Clips] = deque()
        following = enumerate(videos)
        try:
            for number, video in enumerate(videos):
                while not begun or _undone(begun) < 2 * job.threads:
                    place, later = next(following, (0, None))
                    if later is None:
                        break
                    begun.append(_begun(later, job, Path(scratch) / str(place), pool))
                yield _made(video, job, Path(scratch) / str(number), begun.popleft())
                shutil.rmtree(Path(scratch) / str(number))
        finally:
            pool.shutdown(cancel_futures=True)


_Clips = dict[int, "Future[PacketRun]"]
"""The clips of a video that are encoded, by their places in it."""


def _undone(begun: Iterable[_Clips]) -> int:
    return sum(not clip.done() for clips in begun for clip in clips.values())


def _begun(video: VideoOut, job: VideoJob, folder: Path, pool: Executor) -> _Clips:
    """Begin to encode the clips of a video: by themselves, and in any order."""
    folder.mkdir()
    return {
        number: pool.submit(
            encode_take,
            piece,
            open_source(job.sources[piece.source]),
            str(job.keys[piece.source]),
            folder / f"{number}.mp4",
            fps=video.fps,
        )
        for number, piece in enumerate(video.runs)
        if isinstance(piece, PacketTake)
    }


def _copied(video: VideoOut, job: VideoJob) -> list[PacketRun]:
    return [
        run_of(piece, open_source(job.sources[piece.source]), str(job.keys[piece.source]))
        for piece in video.runs
        if isinstance(piece, CopiedRun)
    ]


def _made(
    video: VideoOut, job: VideoJob, folder: Path, clips: _Clips
) -> tuple[list[PacketRun], Description]:
    runs: list[PacketRun] = []
    description = video.description
    for number, piece in enumerate(video.runs):
        if isinstance(piece, CopiedRun):
            source = open_source(job.sources[piece.source])
            runs.append(run_of(piece, source, str(job.keys[piece.source])))
            continue
        if isinstance(piece, PacketTake):
            made = [clips[number].result()]
        else:
            assert isinstance(piece, Blank)
            made = encode_blank(piece, folder / f"{number}.mp4", fps=video.fps)
        if video.description is None:
            description = _same_header(video, description, made[0])
        else:
            assert description is not None
            description = joined_header(description, made[0])
        runs += made
    assert description is not None
    return runs, description


def _same_header(video: VideoOut, before: Description | None, made: PacketRun) -> Description:
    """Return the description of what was encoded; it must be that of what was before."""
    own = read_description(made.video.file, name=made.video.name)
    if own is None or (before is not None and signature(own) != signature(before)):
        raise VideoError(
            "The encoder gave two videos of one camera different headers.",
            hint="try another codec",
            camera=video.camera,
        )
    return before or own


def encode_take(take: PacketTake, reader: Reader, key: str, path: Path, *, fps: float) -> PacketRun:
    """Encode frames of an episode into a video, and return its packets."""
    images = _images(take, reader, key)
    first = next(images)
    width, height = _width_and_height(first)
    with VideoEncoder(path, fps=fps, width=width, height=height, settings=take.settings) as out:
        for image in itertools.chain([first], images):
            if isinstance(image, np.ndarray):
                out.add(image)
            else:
                out.add_frame(image)
    return _all_of(open_video(path))


def encode_blank(blank: Blank, path: Path, *, fps: float) -> list[PacketRun]:
    """Encode one group of black images into a video, and return its packets, repeated."""
    height, width = blank.size
    image = _black(blank.settings, blank.size)
    with VideoEncoder(path, fps=fps, width=width, height=height, settings=blank.settings) as out:
        for _ in range(min(blank.count, _BLACK_GOP)):
            out.add(image)
    run = _all_of(open_video(path))
    whole, rest = divmod(blank.count, len(run.packets))
    return [run] * whole + ([PacketRun(run.video, run.packets[:rest])] if rest else [])


def _black(settings: VideoSettings, size: tuple[int, int]) -> np.ndarray:
    """Return a black image as ``VideoEncoder.add`` takes it; of depth, zeros."""
    if not settings.pix_fmt.startswith("gray"):
        return np.zeros((*size, 3), np.uint8)
    return np.zeros(size, np.uint8 if settings.pix_fmt == "gray" else np.uint16)


def _all_of(video: Video) -> PacketRun:
    return PacketRun(video, np.arange(len(video.index.offset), dtype=np.int32))


def _width_and_height(image: Any) -> tuple[int, int]:
    if isinstance(image, np.ndarray):
        return image.shape[1], image.shape[0]
    return image.width, image.height


def _images(take: PacketTake, reader: Reader, key: str) -> Iterator[Any]:
    """Yield images as ``VideoEncoder`` takes them; as decoded where they must be alike."""
    if reader.in_tables(key):
        yield from _from_tables(take, reader, key)
        return
    with _reading:
        video = reader.clip(take.position, key).video
    decoder = Decoder()
    is_depth = take.settings.pix_fmt.startswith("gray")
    for frame, times in _decoded(video, take.frames, decoder):
        if take.alike and not is_depth:
            image: Any = frame
        else:
            image = depth_codes(frame) if is_depth else decoder.painter.packed(frame, take.size)
        yield from itertools.repeat(image, times)


def _decoded(video: Video, frames: Frames, decoder: Decoder) -> Iterator[tuple[Any, int]]:
    """Yield every frame once, in order, and how often it is wanted."""
    numbers, counts = np.unique(np.array(frames), return_counts=True)
    times = dict(zip(numbers.tolist(), counts.tolist(), strict=True))
    for group in group_frames(video.index, numbers):
        span = GopSpan(video.index, video.file, video.name, group)
        for number, frame in decoder.frames(span):
            yield frame, times[number]


def _from_tables(take: PacketTake, reader: Reader, key: str) -> Iterator[np.ndarray]:
    begin = int(reader.episodes.start[take.position])
    for some in _portions(take.frames):
        with _reading:
            held = reader.encoded(begin + np.array(some), key)
        for data in held:
            yield decode_image(data, size=take.size)


def _portions(frames: Frames) -> Iterator[Sequence[int]]:
    for at in range(0, len(frames), _IMAGES_AT_ONCE):
        yield frames[at : at + _IMAGES_AT_ONCE]
