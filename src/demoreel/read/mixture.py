"""Several datasets as one: what their features have in common, and batches of all of them.

Parts are made to agree before anything is read: what cannot be is an error that names both
datasets. A batch is planned by every part for itself, and decoded in one go, each image into
its place.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np

from demoreel.errors import ArgumentError, DemoreelError, UnknownKeyError, count, nearest
from demoreel.media.decode import Decoder, Job
from demoreel.media.settings import exact_rate
from demoreel.model import Feature, Tasks
from demoreel.model.depth import DepthUnit
from demoreel.model.feature import MASK, flat_names
from demoreel.read.batch import Batch, Begun, Recycler, Windows, frame_offsets
from demoreel.read.cameras import Allocate, Size
from demoreel.read.interleave import Weights, refuse_mixed_kinds, weights_of
from demoreel.read.part import OpenPart, Part

if TYPE_CHECKING:
    from demoreel.read.packets import PacketDecoder

Missing = Literal["mask", "drop", "error"]
"""What becomes of a feature that some parts lack: filled and masked, left out, or an error."""

DIMS_MASK = "{}_dim_is_pad"
"""The key that says which dimensions of another one were padded."""


@dataclass(frozen=True, slots=True)
class MixtureKey:
    """A feature as all samples of a mixture have it.

    Attributes:
        feature: What metadata say of it; of padded features, with all their dimensions.
        dtype: Of numbers and images in a sample.
        shape: Of one value in a sample; (channels, height, width) of images.
        missing: The parts that lack it.
        padded: The parts whose values are shorter, and their dimensions.
        offsets: Its window in frames, or None.
    """

    feature: Feature
    dtype: np.dtype[Any] | None
    shape: tuple[int, ...]
    missing: tuple[int, ...]
    padded: Mapping[int, int]
    offsets: np.ndarray | None


class MixtureReader:
    """Parts that agree, and their batches.

    Args:
        parts: The parts.
        weights: How likely a part is: by its frames (``length``, the default), the root of them
            (``sqrt``), all alike (``equal``), or numbers, a part each, relative to one another.
            Another kind than probabilities, ``repeat=`` or ``samples=`` of the parts.
        temperature: Frames to this power: 1 is ``length``, 0.5 ``sqrt``, 0 ``equal``.
        windows: By the mixture's names, in seconds or in frames of the mixture's rate.
        tolerance_s: How far seconds may be off the grid.
        cameras: Only these cameras.
        pad: By feature, how many dimensions it has in every sample.
        missing: What becomes of a feature that some parts lack.
        image_size: (height, width) to scale images to.
        depth_unit: Unit of depth images.
        samples_per_epoch: Samples of an epoch; None is what the weights say.
        decode_threads: How many decode.
    """

    def __init__(
        self,
        parts: Sequence[Part | str],
        *,
        weights: Weights | None = None,
        temperature: float | None = None,
        windows: Windows | None = None,
        tolerance_s: float = 1e-4,
        cameras: Iterable[str] | None = None,
        pad: Mapping[str, int] | None = None,
        missing: Missing = "mask",
        image_size: Size | None = None,
        depth_unit: DepthUnit = "mm",
        samples_per_epoch: int | None = None,
        decode_threads: int | None = None,
    ) -> None:
        if samples_per_epoch is not None and samples_per_epoch < 1:
            raise ArgumentError(f"samples_per_epoch must be positive, not {samples_per_epoch}.")
        if missing not in get_args(Missing):
            raise ArgumentError(f"missing must be one of {', '.join(get_args(Missing))}.")
        listed = [one if isinstance(one, Part) else Part(one) for one in parts]
        if not listed:
            raise ArgumentError("A mixture needs at least one part.")
        refuse_mixed_kinds(listed, weights, temperature)
        self.parts = [
            OpenPart(
                part,
                number,
                image_size=image_size,
                depth_unit=depth_unit,
                decode_threads=decode_threads,
            )
            for number, part in enumerate(listed)
        ]
        _name_apart(self.parts)
        self.missing = missing
        self.image_size = image_size
        self.weights, own = weights_of(listed, self.sizes, weights, temperature)
        self.epoch_samples = samples_per_epoch or own
        self.depth_unit = depth_unit
        self.notes: list[str] = []
        self.dropped: dict[str, tuple[int, ...]] = {}
        self.keys = self._agreed(windows or {}, tolerance_s, cameras, dict(pad or {}))
        self._open_windows()
        texts = [self._texts(part) for part in self.parts]
        self.tasks = Tasks.of(list(dict.fromkeys(t for own in texts for t in own.values())))
        self._task_numbers = [
            (
                np.array(list(own), np.int64),
                np.array([self.tasks.index_of(text) for text in own.values()], np.int64),
            )
            for own in texts
        ]
        self.memory = Recycler()

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in self.__dict__.items() if key != "memory"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.memory = Recycler()

    @property
    def sizes(self) -> list[int]:
        """Samples of an epoch of each part."""
        return [part.size for part in self.parts]

    @property
    def probabilities(self) -> list[float]:
        """How likely a sample is of each part."""
        total = sum(self.weights)
        return [weight / total for weight in self.weights]

    @property
    def features(self) -> dict[str, Feature]:
        """What metadata say of each feature of the samples."""
        return {key: found.feature for key, found in self.keys.items()}

    @property
    def cameras(self) -> list[str]:
        """The cameras of the samples."""
        return [key for key, found in self.keys.items() if found.feature.is_camera]

    def _texts(self, part: OpenPart) -> dict[int, str]:
        template = part.part.task
        own = sorted(part.dataset.tasks.items())
        return {n: t if template is None else template.replace("{task}", t) for n, t in own}

    def _open_windows(self) -> None:
        offsets = {key: k.offsets for key, k in self.keys.items() if k.offsets is not None}
        for part in self.parts:
            part.choose(self.cameras, offsets)

    # What parts have in common

    def _agreed(
        self,
        windows: Windows,
        tolerance_s: float,
        cameras: Iterable[str] | None,
        pad: dict[str, int],
    ) -> dict[str, MixtureKey]:
        every = list(dict.fromkeys(key for part in self.parts for key in part.features))
        wanted = None if cameras is None else list(cameras)
        for what, names in (("camera", wanted or ()), ("feature", pad), ("feature", windows)):
            for key in names:
                if key not in every:
                    raise UnknownKeyError(
                        f"No part has a {what} {key!r}.", hint=nearest(key, every)
                    )
        problems: list[str] = []
        rates = {exact_rate(part.fps): part for part in reversed(self.parts)}
        self.fps = self.parts[0].fps
        if len(rates) > 1:
            by_rate = sorted(rates.values(), key=lambda part: part.number)
            told = ", ".join(f"{part.fps:g} in {part.name}" for part in by_rate)
            problems.append(
                f"frames per second differ: {told}; fps= of a part resamples its windows"
            )
            offsets = {}
        else:
            offsets = frame_offsets(windows, known=every, fps=self.fps, tolerance_s=tolerance_s)
        masks = {MASK.format(key) for key in every}
        found: dict[str, MixtureKey] = {}
        for key in every:
            having = [part for part in self.parts if key in part.features]
            lacking = tuple(part.number for part in self.parts if key not in part.features)
            first = having[0].features[key]
            if key in masks or (first.is_camera and wanted is not None and key not in wanted):
                continue
            if lacking and self.missing == "drop":
                self.dropped[key] = lacking
                continue
            if lacking and self.missing == "error":
                without = self.parts[lacking[0]]
                problems.append(f"{without.name} lacks {key}, which {having[0].name} has")
            one = self._agreed_key(key, having, pad.get(key), problems)
            if one is not None:
                found[key] = replace(one, missing=lacking, offsets=offsets.get(key))
        if problems:
            told = "; ".join(f"({number}) {what}" for number, what in enumerate(problems, 1))
            raise ArgumentError(
                f"The parts of the mixture do not go together: {told}.",
                hint="rename=, dims=, pad=, fps=, image_size= and missing= reconcile parts",
            )
        return found

    def _agreed_key(
        self, key: str, having: list[OpenPart], size: int | None, problems: list[str]
    ) -> MixtureKey | None:
        first, before = having[0].features[key], len(problems)
        for part in having[1:]:
            other = part.features[key]
            both = f"{key} is {{}} in {having[0].name} and {{}} in {part.name}"
            if _kind(first) != _kind(other):
                problems.append(both.format(_kind(first), _kind(other)))
            elif first.is_camera and not self.image_size and _size(first) != _size(other):
                sizes = (f"{h}x{w}" for h, w in (_size(first), _size(other)))
                problems.append(both.format(*sizes) + " (image_size= scales both)")
            elif first.is_numeric and size is None and first.item_shape != other.item_shape:
                shapes = (str(list(one.shape)) for one in (first, other))
                problems.append(both.format(*shapes) + " (pad= or dims= makes them alike)")
            elif first.is_numeric and flat_names(first.names) != flat_names(other.names):
                self.notes.append(
                    f"the dimensions of {key} have other names in {part.name} than in "
                    f"{having[0].name}; dims= picks and reorders them"
                )
        if len(problems) > before:
            return None
        if first.is_camera:
            channels = 1 if first.is_depth else 3
            shape = (channels, *(self.image_size or _size(first)))
            dtype = np.dtype(np.float32 if first.is_depth else np.uint8)
            feature = replace(first, shape=(*shape[1:], channels), names=_IMAGE_NAMES)
            return MixtureKey(feature, dtype, shape, (), {}, None)
        if not first.is_numeric:
            return MixtureKey(first, None, (), (), {}, None)
        dtype = _common_dtype([part.features[key].numpy_dtype for part in having])
        if size is None:
            return MixtureKey(first, dtype, first.item_shape, (), {}, None)
        padded = {}
        for part in having:
            own = part.features[key].shape
            if len(own) != 1 or own[0] > size:
                problems.append(
                    f"{key} has the shape {list(own)} in {part.name}, which pad={size} cannot "
                    "hold (dims= picks dimensions)"
                )
                return None
            if own[0] < size:
                padded[part.number] = own[0]
        names = flat_names(max((p.features[key] for p in having), key=lambda f: f.shape[0]).names)
        more = [f"pad_{number}" for number in range(len(names), size)]
        feature = replace(first, shape=(size,), names=[*names, *more] if names else None)
        return MixtureKey(feature, dtype, (size,), (), padded, None)

    # Batches

    def batch(
        self,
        parts: np.ndarray,
        samples: np.ndarray,
        *,
        allocate: Allocate | None = None,
        decoder: PacketDecoder | None = None,
    ) -> Batch:
        """Return samples of several parts as one batch, in the order asked for.

        Cost: one plan for each part that occurs, and one round of decoding for all.

        Args:
            parts: The part of each sample.
            samples: Which of the part's samples.
            allocate: Makes the arrays that images are decoded into.
            decoder: A device that decodes video. Cameras have its images then, depth excepted; what
                it does not decode is decoded by the CPU and handed to it.
        """
        groups = [
            (self.parts[number], np.flatnonzero(parts == number))
            for number in np.unique(parts).tolist()
        ]
        try:
            found = self._read(groups, samples, allocate or self.memory, decoder)
        except DemoreelError as error:
            raise self._located(error, groups, samples) from error
        if decoder is not None:
            from demoreel.read.packets import decoded

            decoded(found, decoder)  # its errors say where
        return found

    def _read(
        self,
        groups: list[tuple[OpenPart, np.ndarray]],
        samples: np.ndarray,
        allocate: Allocate,
        decoder: PacketDecoder | None,
    ) -> Batch:
        # For a device, every part has images of its own: they become one array there.
        images = {} if decoder else self._room_for_images(len(samples), allocate)

        def begin(part: OpenPart, places: np.ndarray) -> Begun:
            into = allocate if decoder else self._into(part, places, images)
            return part.begin(samples[places], into, decoder)

        def read() -> list[Batch]:
            # Requests of all remote parts first; local ones are planned while the CPU decodes.
            begun = {
                part.number: begin(part, places)
                for part, places in groups
                if decoder or part.dataset.reader.is_remote
            }

            def jobs() -> Iterator[Job]:
                for part, places in groups:
                    if part.number not in begun:
                        begun[part.number] = begin(part, places)
                    yield from begun[part.number].jobs
                    yield partial(_read_rows, begun[part.number])

            groups[0][0].dataset.decode_pool.run(jobs())
            return [begun[part.number].finish() for part, _ in groups]

        following: Callable[[], list[Batch]] = read
        for part, _ in groups:  # each of them may find its files moved, and read again
            following = _followed(part, following)
        batches = [
            part.finished(batch) for (part, _), batch in zip(groups, following(), strict=True)
        ]
        return self._put_together(groups, batches, images, len(samples))

    def _room_for_images(self, size: int, allocate: Allocate) -> dict[str, np.ndarray]:
        room = {}
        for key in self.cameras:
            found = self.keys[key]
            steps = () if found.offsets is None else (len(found.offsets),)
            assert found.dtype is not None
            room[key] = allocate((size, *steps, *found.shape), found.dtype)
        return room

    def _into(
        self, part: OpenPart, places: np.ndarray, images: Mapping[str, np.ndarray]
    ) -> Allocate:
        """Return what hands out the places of a part's images, camera by camera."""
        names = {key: name for name, key in part.source_of.items()}
        wanted = iter([names[key] for key in part.dataset.cameras])

        def hand_out(shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray:
            name = next(wanted)
            room = images[name]
            form = self.keys[name].shape
            self._refuse_form(part, name, shape[1:], dtype)
            steps = room.size // (len(room) * math.prod(form))
            flat = room.reshape(len(room) * steps, *form)
            if len(places) == len(room):
                return flat
            where = (places[:, None] * steps + np.arange(steps)).reshape(-1)
            scattered: Any = _ScatteredImages(flat, where)
            return scattered  # type: ignore[no-any-return]

        return hand_out

    def _refuse_form(
        self, part: OpenPart, name: str, shape: tuple[int, ...], dtype: np.dtype[Any]
    ) -> None:
        """Refuse images of another form than the metadata of their part declare."""
        known = self.keys[name]
        if tuple(shape) != known.shape or dtype != known.dtype:
            raise ArgumentError(
                f"Images of {name} are {list(shape)} in {part.name}, where its metadata "
                f"declare {list(known.shape)}.",
                hint="image_size= scales all images",
                dataset=part.source,
            )

    def _images_of_parts(
        self, key: str, every: Sequence[tuple[tuple[OpenPart, np.ndarray], Batch]], size: int
    ) -> Any:
        """Return the images of a camera that parts have read each for itself, for a device."""
        from demoreel.read.packets import PacketImages, Piece, put_together

        known = self.keys[key]
        steps = () if known.offsets is None else (len(known.offsets),)
        shape = (size, *steps, *known.shape)
        pieces: list[Piece] = []
        for (part, places), own in every:
            images = own.get(key)
            if isinstance(images, PacketImages):
                pieces += [(places[inside], packets) for inside, packets in images.pieces]
            elif images is not None:
                self._refuse_form(part, key, images.shape[1 + len(steps) :], images.dtype)
                pieces.append((places, images))
        if not known.feature.is_depth:
            return put_together(pieces, shape)
        whole = np.zeros(shape, known.dtype)  # depth is not decoded by a device
        for places, images in pieces:
            whole[places] = images
        return whole

    def _put_together(
        self,
        groups: list[tuple[OpenPart, np.ndarray]],
        batches: list[Batch],
        images: Mapping[str, np.ndarray],
        size: int,
    ) -> Batch:
        whole: Batch = {}
        every = list(zip(groups, batches, strict=True))
        for key, found in self.keys.items():
            steps = () if found.offsets is None else (len(found.offsets),)
            column: Any
            if found.feature.is_camera and key not in images:
                column = self._images_of_parts(key, every, size)
            elif found.feature.is_camera:
                column = images[key]
                for (_, places), own in every:
                    if key not in own:
                        column[places] = 0
            elif found.dtype is None:
                column = [[] if found.feature.is_language else ""] * size
                for (_, places), own in every:
                    for place, value in zip(places.tolist(), own.get(key, ()), strict=False):
                        column[place] = value
            else:
                is_whole = not found.missing and not found.padded
                make = np.empty if is_whole else np.zeros
                column = make((size, *steps, *found.shape), found.dtype)
                for (part, places), own in every:
                    if key in own:
                        values = self.numbers(part, key, own[key])
                        if part.number in found.padded:
                            column[places, ..., : values.shape[-1]] = values
                        else:
                            column[places] = values.reshape(len(places), *steps, *found.shape)
            whole[key] = column
        whole.update(self._masks(every, size))
        texts: list[str] = [""] * size
        keys: list[str] = [""] * size
        numbers = np.empty(size, np.int64)
        for (part, places), own in every:
            numbers[places] = part.number
            for place, text in zip(places.tolist(), own["task"], strict=True):
                texts[place], keys[place] = text, part.normalization_key
        whole["task"] = texts
        whole["dataset_index"] = numbers
        whole["normalization_key"] = keys
        return whole

    def numbers(self, part: OpenPart, key: str, column: np.ndarray) -> np.ndarray:
        """Return a column of a part with the mixture's numbers of tasks."""
        if part.source_of[key] != "task_index":
            return column
        own, mine = self._task_numbers[part.number]
        return np.asarray(mine[np.searchsorted(own, column)])

    def _masks(self, every: list[tuple[tuple[OpenPart, np.ndarray], Batch]], size: int) -> Batch:
        masks: Batch = {}
        for key, found in self.keys.items():
            if found.offsets is not None:
                pad = np.ones((size, len(found.offsets)), np.bool_)
                for (_, places), own in every:
                    if key in own:
                        pad[places] = own[f"{key}_is_pad"]
                masks[f"{key}_is_pad"] = pad
            name = MASK.format(key)
            if name in self.masks:
                gone = np.ones(size, np.bool_)
                for (_, places), own in every:
                    if key in own:
                        gone[places] = np.asarray(own.get(name, False), np.bool_)
                masks[name] = gone
            if found.feature.is_numeric and key in self.padded:
                dims = np.ones((size, *found.shape), np.bool_)
                for (part, places), own in every:
                    if key in own:
                        dims[places, : found.padded.get(part.number, found.shape[0])] = False
                masks[DIMS_MASK.format(key)] = dims
        return masks

    @cached_property
    def masks(self) -> list[str]:
        """The keys of samples that say whether another one is real: ``KEY_is_missing``."""
        every = {name for part in self.parts for name in part.features}
        return [
            MASK.format(key)
            for key, found in self.keys.items()
            if found.missing or MASK.format(key) in every
        ]

    @property
    def padded(self) -> list[str]:
        """Features that are padded in some part."""
        return [key for key, found in self.keys.items() if found.padded]

    def _located(
        self,
        error: DemoreelError,
        groups: list[tuple[OpenPart, np.ndarray]],
        samples: np.ndarray,
    ) -> DemoreelError:
        """Return an error with what failed added: each sample is tried by itself."""
        for part, places in groups:
            for sample in np.unique(samples[places]).tolist():
                try:
                    part.dataset.batch(part.frames(np.array([sample])))
                except DemoreelError as single:
                    return part.located(single, sample)
        return error

    def decoded_by(self, decoder: PacketDecoder | None) -> dict[str, dict[str, bool]]:
        """Return whether a device decodes a camera, as its first frame tells: by part and camera.

        Cost: the packet index of one video of each camera, and one frame.
        """
        from demoreel.read.packets import camera_form

        found: dict[str, dict[str, bool]] = {}
        for part in self.parts:
            mine = found[part.name] = {}
            for name in self.cameras:
                if name in part.source_of:
                    form = None
                    if decoder is not None:
                        form = camera_form(part.dataset.reader, part.source_of[name])
                    mine[name] = bool(decoder and form and decoder.is_decoded(form))
        return found

    # The table

    def table(self) -> list[dict[str, Any]]:
        """Return what the mixture is, a row a part."""
        rows = []
        for part, share in zip(self.parts, self.probabilities, strict=True):
            mine = part.number
            rows.append(
                {
                    "part": mine,
                    "name": part.name,
                    "source": part.source,
                    "layout": part.dataset.layout,
                    "episodes": len(part.dataset.episodes),
                    "frames": part.size,
                    "probability": share,
                    "epochs": share * self.epoch_samples / part.size,
                    "fps": part.dataset.fps,
                    "resampled": f"{part.part.resample} at {part.fps:g} fps"
                    if part.is_resampled
                    else None,
                    "padded": {
                        key: [found.padded[mine], found.shape[0]]
                        for key, found in self.keys.items()
                        if mine in found.padded
                    },
                    "missing": [k for k, found in self.keys.items() if mine in found.missing],
                    "normalization_key": part.normalization_key,
                }
            )
        return rows

    @staticmethod
    def changes(row: Mapping[str, Any]) -> str:
        """Return in words what is done to the samples of a part, of which this is the row."""
        said = [f"{key} padded from {a} to {b}" for key, (a, b) in row["padded"].items()]
        said += [f"{key} missing" for key in row["missing"]]
        return "; ".join([*said, *([f"windows {row['resampled']}"] if row["resampled"] else [])])

    def __str__(self) -> str:
        lines = [
            f"Mixture of {count(len(self.parts), 'part')}, {count(sum(self.sizes), 'frame')}; "
            f"an epoch is {count(self.epoch_samples, 'sample')}"
        ]
        head = ("part", "frames", "probability", "epochs", "changes")
        rows = [head, *((r["name"], f"{r['frames']:,}", f"{r['probability']:.6g}",
                         f"{r['epochs']:.4g}", self.changes(r)) for r in self.table())]  # fmt: skip
        widths = [max(len(row[place]) for row in rows) for place in range(4)]
        for row in rows:
            cells = [row[0].ljust(widths[0])]
            cells += [cell.rjust(width) for cell, width in zip(row[1:4], widths[1:], strict=True)]
            lines.append("  ".join([*cells, row[4]]).rstrip())
        for key, parts in self.dropped.items():
            names = ", ".join(self.parts[number].name for number in parts)
            lines.append(f"dropped: {key} (not in {names})")
        lines += [f"note: {note}" for note in self.notes]
        return "\n".join(lines)


_IMAGE_NAMES = ["height", "width", "channels"]


class _ScatteredImages:
    """Stands for an array of images that lie apart in a larger one: decoders write by number."""

    def __init__(self, whole: np.ndarray, places: np.ndarray) -> None:
        self._whole = whole
        self._places = places
        self.shape = (len(places), *whole.shape[1:])

    def __getitem__(self, number: int) -> np.ndarray:
        return np.asarray(self._whole[self._places[number]])

    def __setitem__(self, number: int, image: np.ndarray) -> None:
        self._whole[self._places[number]] = image

    def reshape(self, *_: int) -> _ScatteredImages:
        """Return itself: windows are only made of the larger array."""
        return self


def _followed(part: OpenPart, read: Callable[[], list[Batch]]) -> Callable[[], list[Batch]]:
    return lambda: part.dataset.following(read)


def _read_rows(begun: Begun, _: Decoder) -> None:
    begun.meanwhile()


def _kind(feature: Feature) -> str:
    if feature.is_camera:
        return "a depth camera" if feature.is_depth else "a camera"
    if feature.is_string or feature.is_language:
        return f"a column of {feature.dtype}"
    return "a column of numbers"


def _size(feature: Feature) -> tuple[int, int]:
    return feature.image_shape[:2]


def _common_dtype(kinds: list[np.dtype[Any]]) -> np.dtype[Any]:
    """Return the type of lerobot's items that holds them all: float32, int64 or bool."""
    letters = {"i" if kind.kind == "u" else kind.kind for kind in kinds}
    if letters == {"b"}:
        return np.dtype(np.bool_)
    return np.dtype(np.float32 if "f" in letters else np.int64)


def _name_apart(parts: list[OpenPart]) -> None:
    """Give parts of one name a number each."""
    names = [part.name for part in parts]
    for part in parts:
        if names.count(part.name) > 1:
            part.name = f"{part.name}[{part.number}]"
