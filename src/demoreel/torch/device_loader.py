"""Batches on a device: images that workers hand over as packets are decoded in this process."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch.utils.data._utils.collate import default_collate_fn_map

from demoreel.errors import ArgumentError
from demoreel.read.cameras import Size
from demoreel.read.packets import EncodedFrames, joined
from demoreel.torch.device import VideoDevice
from demoreel.torch.video_decoders import BATCHES_AT_ONCE, new_stream

_THREADS_AT_MOST = 64

_here = threading.local()

Mark = Callable[[torch.Tensor], torch.Tensor]


@dataclass(frozen=True, slots=True)
class EncodedImages:
    """Images of one camera that a worker has read as packets; ``to`` decodes them.

    ``demoreel.torch.to_device(loader)`` does that for all cameras, while the training computes.

    Attributes:
        encoded: The packets.
        video: Where they are to be decoded.
        dtype: Of the images: uint8, or float32 from 0 to 1.
        size: (height, width) to scale them to.
    """

    encoded: EncodedFrames
    video: VideoDevice
    dtype: torch.dtype
    size: Size | None

    def __len__(self) -> int:
        return len(self.encoded)

    def __iter__(self) -> Iterator[EncodedImage]:
        return (EncodedImage(self, place) for place in range(len(self)))

    def to(
        self, device: torch.device | str | None = None, *, non_blocking: bool = False
    ) -> torch.Tensor:
        """Return the images as a tensor on the device.

        Args:
            device: Where to move them once they are decoded; by default they stay on the device
                of ``decode_device=``.
            non_blocking: As in ``Tensor.to``.

        Raises:
            VideoError: A packet is damaged.
            ShortageError: The device's memory does not suffice.
        """
        images = self._decoded()
        return images if device is None else images.to(device, non_blocking=non_blocking)

    def _decoded(self) -> torch.Tensor:
        images = self.video.decoders.decode(self.encoded, dtype=self.dtype)
        if self.size is None or self.size == self.encoded.size:
            return images
        flat = images.reshape(-1, *images.shape[-3:])
        scaled = torch.nn.functional.interpolate(
            flat.float(), size=self.size, mode="bilinear", antialias=True
        )
        if self.dtype is torch.uint8:
            scaled = scaled.round_().clamp_(0, 255)
        return scaled.to(self.dtype).reshape(*images.shape[:-2], *self.size)

    def ready_to_travel(self, mark: Mark) -> EncodedImages:
        """Return the images as a worker sends them: packets in a block that is lent, not copied."""
        data: Any = mark(torch.from_numpy(self.encoded.data))
        return replace(self, encoded=replace(self.encoded, data=data))


@dataclass(frozen=True, slots=True)
class EncodedImage:
    """One sample's image, or window of images, of a batch of packets.

    Attributes:
        batch: The images of all samples.
        place: Which of them.
    """

    batch: EncodedImages
    place: int

    def to(
        self, device: torch.device | str | None = None, *, non_blocking: bool = False
    ) -> torch.Tensor:
        """Return the image as a tensor; see ``EncodedImages.to``."""
        return self._alone().to(device, non_blocking=non_blocking)[0]

    def _alone(self) -> EncodedImages:
        return replace(self.batch, encoded=self.batch.encoded.of(np.array([self.place])))

    def __reduce__(self) -> tuple[Any, ...]:
        # One that travels alone must not take its whole batch along.
        return EncodedImage, (self._alone(), 0)


def decodes_later() -> bool:
    """Whether images are to stay packets here: in a worker, and in a thread of ``to_device``."""
    return torch.utils.data.get_worker_info() is not None or getattr(_here, "decodes_later", False)


def _collated(images: Sequence[EncodedImage], *, collate_fn_map: object = None) -> EncodedImages:
    return replace(images[0].batch, encoded=joined([one._alone().encoded for one in images]))


default_collate_fn_map[EncodedImage] = _collated


Ready = tuple[Any, Any, BaseException | None]


class _Turns:
    """Batches that several threads take, and give back in the order in which they came.

    Args:
        batches: Where they come from.
        ahead: How many may be ready.
    """

    def __init__(self, batches: Iterator[Any], ahead: int) -> None:
        self.ready: queue.Queue[Ready] = queue.Queue()
        self._batches = batches
        self._room = threading.Semaphore(ahead)
        self._taking = threading.Lock()
        self._taken = self._given = 0
        self._turn = threading.Condition()
        self._ended = False

    def __iter__(self) -> Iterator[tuple[int, Any, BaseException | None]]:
        """Yield the number of a batch, and it or the error instead of it, which is the last."""
        while True:
            with self._taking:
                if self._ended:
                    return
                number, batch, error = self._taken, None, None
                self._taken += 1
                try:
                    batch = next(self._batches)
                except BaseException as raised:
                    self._ended, error = True, raised
            yield number, batch, error

    def give(self, number: int, found: Ready) -> None:
        with self._turn:
            self._turn.wait_for(lambda: self._given == number)
        self._room.acquire()
        with self._turn:
            self.ready.put(found)
            self._given += 1
            self._ended |= found[2] is not None
            self._turn.notify_all()

    def get(self) -> Ready:
        """Return the next one."""
        found = self.ready.get()
        self._room.release()
        return found

    def stop(self) -> None:
        """Let the threads end, which may wait for room."""
        self._ended = True
        self._room.release(_THREADS_AT_MOST)


class DeviceLoader:
    """The batches of a loader, on a device; see ``to_device``."""

    def __init__(
        self, loader: Iterable[Any], device: torch.device | None, *, ahead: int, at_once: int
    ) -> None:
        self.loader = loader
        self.device = device
        self._ahead = ahead
        self._at_once = at_once

    def __len__(self) -> int:
        return len(self.loader)  # type: ignore[arg-type]

    def __getattr__(self, name: str) -> Any:
        return getattr(self.loader, name)  # set_epoch, state_dict, dataset, ...

    def __iter__(self) -> Iterator[Any]:
        turns = _Turns(iter(self.loader), self._ahead)
        threads = [
            threading.Thread(
                target=self._read, args=(turns,), name=f"demoreel-device-{number}", daemon=True
            )
            for number in range(self._at_once)
        ]
        for thread in threads:
            thread.start()
        try:
            while True:
                batch, event, error = turns.get()
                if error is not None:
                    if isinstance(error, StopIteration):
                        return
                    raise error
                if event is not None:
                    stream = torch.cuda.current_stream(self.device)
                    event.wait(stream)
                    _used_in(batch, stream)
                yield batch
        finally:
            turns.stop()
            for thread in threads:
                thread.join()

    def _read(self, turns: _Turns) -> None:
        stream = new_stream(self.device)
        _here.decodes_later = True
        with torch.cuda.stream(stream):  # None is no other stream
            for number, batch, error in turns:
                found, event = None, None
                if error is None:
                    try:
                        found = self.moved(batch)
                        event = None if stream is None else stream.record_event()
                    except BaseException as raised:
                        error = raised
                turns.give(number, (found, event, error))

    def moved(self, batch: Any) -> Any:
        """Return a batch with its images decoded, and all tensors on the device."""
        if isinstance(batch, (EncodedImages, EncodedImage)):
            return batch.to(self.device)
        if isinstance(batch, torch.Tensor):
            return batch if self.device is None else batch.to(self.device, non_blocking=True)
        if isinstance(batch, dict):
            found = {key: self.moved(value) for key, value in batch.items()}
            self._transform(batch, found)
            return found
        if isinstance(batch, (list, tuple)) and not any(isinstance(v, str) for v in batch):
            return type(batch)(self.moved(value) for value in batch)
        return batch

    def _transform(self, batch: dict[str, Any], found: dict[str, Any]) -> None:
        """Apply the dataset's ``image_transforms``, which workers could not apply to packets."""
        transform = image_transforms_of(self.loader)
        if transform is None:
            return
        for key, value in batch.items():
            if isinstance(value, EncodedImages):
                found[key] = torch.stack([transform(image) for image in found[key]])
            elif isinstance(value, EncodedImage):
                found[key] = transform(found[key])


def _used_in(batch: Any, stream: torch.cuda.Stream) -> None:
    """Keep the memory of a batch from serving again before this stream is done with it."""
    if isinstance(batch, torch.Tensor):
        if batch.is_cuda:
            batch.record_stream(stream)
    elif isinstance(batch, (dict, list, tuple)):
        for value in batch.values() if isinstance(batch, dict) else batch:
            _used_in(value, stream)


def image_transforms_of(loader: Any) -> Callable[[torch.Tensor], torch.Tensor] | None:
    """Return the ``image_transforms`` of the dataset that a loader reads, through subsets."""
    inside = getattr(loader, "dataset", None)
    while inside is not None:
        found = getattr(inside, "image_transforms", None)
        if found is not None:
            transform: Callable[[torch.Tensor], torch.Tensor] = found
            return transform
        inside = getattr(inside, "dataset", None)
    return None


def to_device(
    loader: Iterable[Any],
    *,
    device: torch.device | str | None = None,
    ahead: int = 2,
    at_once: int = 2,
) -> DeviceLoader:
    """Return the batches of a ``DataLoader`` on a device, each ready before it is asked for.

    Workers of a dataset with ``decode_device="cuda"`` read packets; they are decoded here, in the
    training process, by threads that are ``ahead`` batches ahead of the training.

        loader = DataLoader(dataset, batch_size=32, num_workers=4)
        for batch in to_device(loader): ...

    Cost: memory of the device for ``ahead`` + 1 batches.

    Args:
        loader: Any iterable of batches: dicts of tensors.
        device: Where tensors are moved, and images that were decoded elsewhere; None is the device
            of ``decode_device=``, or leaves them where they are.
        ahead: How many batches to keep ready.
        at_once: How many batches to decode at once, 1 or 2: two keep the decoders busy, one takes
            fewer cores.

    Returns:
        An iterable with the length, and all attributes, of ``loader``.

    Raises:
        ArgumentError: ``ahead`` or ``at_once`` is out of range.
    """
    if ahead < 1:
        raise ArgumentError(f"ahead is {ahead}; it is 1 at least.")
    if not 1 <= at_once <= BATCHES_AT_ONCE:
        raise ArgumentError(f"at_once is {at_once}; it is 1 or {BATCHES_AT_ONCE}.")
    chosen = None if device is None else torch.device(device)
    if chosen is None:
        inside = getattr(loader, "dataset", None)
        while inside is not None and chosen is None:
            chosen = getattr(inside, "decode_device", None)
            inside = getattr(inside, "dataset", None)
    return DeviceLoader(loader, chosen, ahead=ahead, at_once=at_once)
