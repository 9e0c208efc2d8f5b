"""Images of a batch: frames are deduplicated, grouped by GOP, and decoded once."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from demoreel.errors import (
    DemoreelError,
    FrameMismatchError,
    PictureError,
    StoreError,
    VideoError,
)
from demoreel.layouts.base import Reader
from demoreel.media.colour import depth_codes
from demoreel.media.decode import Decoder, GopSpan, Job, begin_loading, group_frames
from demoreel.media.images import (
    decode_depth_image,
    decode_image,
    has_colour,
    image_size,
    paint_image,
)
from demoreel.media.video import Video
from demoreel.model import Feature
from demoreel.model.depth import DepthUnit, depth_table

if TYPE_CHECKING:
    from demoreel.read.packets import EncodedFrames, FrameForm

Allocate = Callable[[tuple[int, ...], np.dtype[Any]], np.ndarray]
"""Makes an uninitialised array: plain memory, or memory that a torch tensor shares."""

Size = tuple[int, int]

_ZERO = np.zeros(1, np.int64)


@dataclass(frozen=True, slots=True)
class Prepared:
    """Images of one camera, located and ready to decode.

    Attributes:
        shape: Of the array for them: (rows, channels, height, width).
        dtype: Its type.
    """

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    _jobs: Iterator[_Images]
    _copies: dict[int, list[int]]

    def fill(self, allocate: Allocate) -> tuple[np.ndarray, Iterator[Job]]:
        """Return the array, and the jobs that fill it; for one use.

        Jobs are made as they are asked for, while others are already being done.
        """
        out = allocate(self.shape, self.dtype)
        return out, (_bind(job, out, self._copies) for job in self._jobs)

    def packets(
        self, is_decoded: Callable[[FrameForm], bool], allocate: Allocate
    ) -> EncodedFrames | Prepared:
        """Return the packets of the images, or these images where the device cannot decode them."""
        jobs = list(self._jobs)
        videos = [job for job in jobs if isinstance(job, _VideoImages)]
        if len(videos) == len(jobs) and jobs and self.shape[1] == 3:
            places = np.arange(self.shape[0])
            for first, others in self._copies.items():
                places[others] = first
            found = videos[0].packets(videos, places, is_decoded, allocate)
            if found is not None:
                return found
        return replace(self, _jobs=iter(jobs))


class Camera:
    """Plans and decodes the images of one camera.

    Args:
        reader: The dataset's layout.
        feature: The camera.
        size: Height and width to scale to; None keeps them.
        depth_unit: Unit of depth images.
    """

    def __init__(
        self, reader: Reader, feature: Feature, size: Size | None, depth_unit: DepthUnit
    ) -> None:
        self._reader = reader
        self.feature = feature
        self._size = size
        self._unit = depth_unit
        self.declared: Size = feature.image_shape[:2]
        self.in_tables = reader.in_tables(feature.key)
        self.root = reader.root
        self._channels = 1 if feature.is_depth else 3
        code = feature.depth_code
        self._depth = depth_table(code, unit=depth_unit) if code and feature.is_video else None

    def prepare(self, rows: np.ndarray) -> Prepared:
        """Locate the images of these rows, and start the requests for remote ones.

        An image that several rows share is decoded once.
        """
        if len(rows) == 1:  # of one of many parts of a mixture: sorting takes longest there
            unique, places, firsts = rows, _ZERO, _ZERO
        else:
            unique, places = np.unique(rows, return_inverse=True)
            firsts = np.full(len(unique), -1)
            firsts[places[::-1]] = np.arange(len(rows))[::-1]
        plan = self._image_jobs if self.in_tables else self._video_jobs
        channels, size, jobs = plan(unique, firsts)
        shape = (len(rows), channels, *(self._size or size))
        dtype = np.dtype(np.float32 if channels == 1 else np.uint8)
        return Prepared(shape, dtype, jobs, _copies(places, firsts))

    def plan(self, rows: np.ndarray, allocate: Allocate) -> tuple[np.ndarray, Iterator[Job]]:
        """Return the array for these rows' images, and the jobs that fill it."""
        return self.prepare(rows).fill(allocate)

    def _video_jobs(
        self, rows: np.ndarray, targets: np.ndarray
    ) -> tuple[int, Size, Iterator[_Images]]:
        episodes = self._reader.episodes
        positions = episodes.positions_of_rows(rows)
        videos: dict[str, tuple[Video, list[np.ndarray], list[np.ndarray]]] = {}
        cuts = np.flatnonzero(np.diff(positions)) + 1  # rows ascend, so episodes do too
        for begin, end in itertools.pairwise([0, *cuts.tolist(), len(rows)]):
            position, part = int(positions[begin]), rows[begin:end]
            clip = self._reader.clip(position, self.feature.key)
            codec = clip.video.index.codec
            self._refuse_size((codec.height, codec.width), clip.video.name, position=position)
            frames = clip.frames(part - int(episodes.start[position]))
            entry = videos.setdefault(clip.video.name, (clip.video, [], []))
            entry[1].append(frames)
            entry[2].append(targets[begin:end])
        parts = [
            (video, np.concatenate(frames), np.concatenate(places))
            for video, frames, places in videos.values()
        ]
        return self._channels, self.declared, self._spans(parts, self._begun(parts))

    def _refuse_size(self, found: Size, file: str, *, position: int) -> None:
        """Refuse a video of another size than declared, before memory is taken for its frames."""
        if found != self.declared:
            raise FrameMismatchError(
                wrong_size(found, self.declared),
                hint="restore the video, or leave its episodes out with episodes=",
                dataset=self._reader.root,
                episode=int(self._reader.episodes.episode_index[position]),
                camera=self.feature.key,
                file=file,
            )

    def _begun(
        self, parts: Sequence[tuple[Video, np.ndarray, np.ndarray]]
    ) -> dict[int, Sequence[GopSpan]]:
        """Start to fetch the spans of remote videos, all at the same time."""
        begun: dict[int, Sequence[GopSpan]] = {}
        try:
            for number, (video, wanted, _) in enumerate(parts):
                if video.file.waits:
                    begun[number] = begin_loading(video.file, list(_spans_of(video, wanted)))
        except (VideoError, StoreError) as error:
            raise self.located(error) from error
        return begun

    def _spans(
        self,
        parts: Sequence[tuple[Video, np.ndarray, np.ndarray]],
        begun: dict[int, Sequence[GopSpan]],
    ) -> Iterator[_Images]:
        for number, (video, wanted, targets) in enumerate(parts):
            target_of = dict(zip(wanted.tolist(), targets.tolist(), strict=True))
            for span in begun.get(number) or _spans_of(video, wanted):
                yield _VideoImages(self, span, target_of)

    def _image_jobs(
        self, rows: np.ndarray, targets: np.ndarray
    ) -> tuple[int, Size, Iterator[_Images]]:
        encoded = self._reader.encoded(rows, self.feature.key)
        channels, height, width = self.form_of(int(rows[0]), encoded[0])
        size = (height, width)
        jobs = (
            _EncodedImage(self, row, data, target, size)
            for row, data, target in zip(rows.tolist(), encoded, targets.tolist(), strict=True)
        )
        return channels, size, jobs

    def paint(self, decoder: Decoder, frame: Any, out: np.ndarray) -> None:
        """Write one decoded video frame into its place."""
        if self._depth is None:
            decoder.painter.paint(frame, out)
            return
        codes = depth_codes(frame)
        if codes.shape != out.shape[1:]:
            codes = _nearest(codes, out.shape[1], out.shape[2])
        np.take(self._depth, codes, out=out[0], mode="clip")

    def paint_encoded(self, row: int, data: bytes, out: np.ndarray, declared: Size) -> None:
        """Write one encoded image, which must have the declared size, into its place."""
        try:
            if len(out) != 1:
                paint_image(data, out, scale=self._size is not None, declared=declared)
                return
            depth = self._depth_of(data, declared)
        except PictureError as error:
            raise self._error(row, error.what) from error
        out[0] = depth

    def decoded(self, row: int, data: bytes) -> np.ndarray:
        """Decode an encoded image to (channels, height, width).

        It may be in memory that the calling thread's next image will use again.
        """
        try:
            if self.feature.is_depth:
                return self._depth_of(data, self.declared)[None]
            found = decode_image(data, size=self._size, on_desk=True, declared=self.declared)
            return found.transpose(2, 0, 1)
        except PictureError as error:
            raise self._error(row, error.what) from error

    def _depth_of(self, data: bytes, declared: Size) -> np.ndarray:
        depth = decode_depth_image(data, size=self._size, declared=declared)
        if depth.ndim != 2:
            raise PictureError("An image of a depth camera has colours, not distances.")
        if self._depth is not None:  # a depth video before: what the table holds is its codes
            return np.take(self._depth, depth.astype(np.intp), mode="clip")
        stored = self.feature.info.get("depth_unit")
        if stored is not None and stored != self._unit:
            depth *= np.float32(1000.0 if stored == "m" else 0.001)
        return depth

    def form_of(self, row: int, data: bytes) -> tuple[int, int, int]:
        """Return channels, height and width of an encoded image, from its header alone.

        If the sides were declared in the wrong order, those of the image count, as in lerobot:
        that takes no more memory. Any other size is an error. A colour image of a depth camera
        stays a colour image.
        """
        try:
            found = image_size(data)
            coloured = self.feature.is_depth and has_colour(data)
        except PictureError as error:
            raise self._error(row, error.what) from error
        if sorted(found) != sorted(self.declared):
            raise self._error(row, wrong_size(found, self.declared))
        return 3 if coloured else self._channels, *found

    def _error(self, row: int, what: str) -> PictureError:
        episodes = self._reader.episodes
        position = int(episodes.positions_of_rows(np.array([row]))[0])
        return PictureError(
            what,
            hint="restore the table from a copy, or leave the episode out with episodes=",
            dataset=self._reader.root,
            episode=int(episodes.episode_index[position]),
            frame=row - int(episodes.start[position]),
            camera=self.feature.key,
            file=self._reader.data_file(position),
        )

    def located(self, error: DemoreelError) -> DemoreelError:
        """Return the error with the dataset and the camera added."""
        where = {"dataset": self._reader.root, "camera": self.feature.key, **error.where}
        return type(error)(error.what, hint=error.hint, **where)


def wrong_size(found: Size, declared: Size) -> str:
    """Return what to say of an image of another size than ``info.json`` declares."""
    return f"An image is {found[0]}x{found[1]} where {declared[0]}x{declared[1]} was declared."


def _spans_of(video: Video, wanted: np.ndarray) -> Iterable[GopSpan]:
    groups = group_frames(video.index, wanted if len(wanted) == 1 else np.unique(wanted))
    return (GopSpan(video.index, video.file, video.name, group) for group in groups)


class _VideoImages:
    """A span of video to decode, and where its frames go."""

    __slots__ = ("_camera", "_span", "_targets")

    def __init__(self, camera: Camera, span: GopSpan, targets: dict[int, int]) -> None:
        self._camera = camera
        self._span = span
        self._targets = targets

    def fill(self, decoder: Decoder, out: np.ndarray) -> list[int]:
        filled = []
        try:
            for number, frame in decoder.frames(self._span):
                target = self._targets[number]
                if (frame.height, frame.width) != self._camera.declared:
                    raise FrameMismatchError(
                        wrong_size((frame.height, frame.width), self._camera.declared),
                        hint="restore the video, or leave its episodes out with episodes=",
                        file=self._span.name,
                        frame=number,
                    )
                self._camera.paint(decoder, frame, out[target])
                filled.append(target)
        except (VideoError, StoreError) as error:
            raise self._camera.located(error) from error
        return filled

    def packets(
        self,
        every: Sequence[_VideoImages],
        places: np.ndarray,
        is_decoded: Callable[[FrameForm], bool],
        allocate: Allocate,
    ) -> EncodedFrames | None:
        """Return the packets of all these spans, which are of one camera."""
        from demoreel.read.packets import encoded_frames

        camera = self._camera
        try:
            return encoded_frames(
                ((one._span, one._targets) for one in every),
                key=camera.feature.key,
                dataset=str(camera.root),
                places=places,
                # Frames of another size than declared are left to the CPU, which raises an error.
                is_decoded=lambda form: (
                    (form.height, form.width) == camera.declared and is_decoded(form)
                ),
                allocate=allocate,
            )
        except (VideoError, StoreError) as error:
            raise camera.located(error) from error


class _EncodedImage:
    """An encoded image from a table, and where it goes."""

    __slots__ = ("_camera", "_data", "_declared", "_row", "_target")

    def __init__(self, camera: Camera, row: int, data: bytes, target: int, declared: Size) -> None:
        self._camera = camera
        self._row = row
        self._data = data
        self._target = target
        self._declared = declared

    def fill(self, decoder: Decoder, out: np.ndarray) -> list[int]:
        self._camera.paint_encoded(self._row, self._data, out[self._target], self._declared)
        return [self._target]


_Images = _VideoImages | _EncodedImage


def _bind(job: _Images, out: np.ndarray, copies: dict[int, list[int]]) -> Job:
    def run(decoder: Decoder) -> None:
        for target in job.fill(decoder, out):
            for other in copies.get(target, ()):
                out[other] = out[target]

    return run


def _copies(places: np.ndarray, firsts: np.ndarray) -> dict[int, list[int]]:
    """Return, for the first place of each image, the other places that want it too."""
    copies: dict[int, list[int]] = {}
    if len(firsts) < len(places):
        for place, first in enumerate(firsts[places].tolist()):
            if place != first:
                copies.setdefault(first, []).append(place)
    return copies


def _nearest(codes: np.ndarray, height: int, width: int) -> np.ndarray:
    rows = (np.arange(height) + 0.5) * codes.shape[0] / height
    columns = (np.arange(width) + 0.5) * codes.shape[1] / width
    return np.asarray(codes[rows.astype(np.intp)[:, None], columns.astype(np.intp)])
