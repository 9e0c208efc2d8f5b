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

from demoreel.read.cameras import Size
from demoreel.read.packets import EncodedFrames, joined
from demoreel.torch.device import VideoDevice
from demoreel.torch.video_decoders import new_stream

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


def _collated(images: Sequence[EncodedImage], *, collate_fn_map: object = None) -> EncodedImages:
    return replace(images[0].batch, encoded=joined([one._alone().encoded for one in images]))


default_collate_fn_map[EncodedImage] = _collated


class DeviceLoader:
    """The batches of a loader, on a device; see ``to_device``."""

    def __init__(self, loader: Iterable[Any], device: torch.device | None, *, ahead: int) -> None:
        self.loader = loader
        self.device = device
        self._ahead = ahead

    def __len__(self) -> int:
        return len(self.loader)  # type: ignore[arg-type]

    def __getattr__(self, name: str) -> Any:
        return getattr(self.loader, name)  # set_epoch, state_dict, dataset, ...

    def __iter__(self) -> Iterator[Any]:
        ready: queue.Queue[tuple[Any, Any, BaseException | None]] = queue.Queue(self._ahead)
        stopped = threading.Event()
        thread = threading.Thread(
            target=self._read, args=(ready, stopped), name="demoreel-device", daemon=True
        )
        thread.start()
        try:
            while True:
                batch, event, error = ready.get()
                if error is not None:
                    if isinstance(error, StopIteration):
                        return
                    raise error
                if event is not None:
                    event.wait(torch.cuda.current_stream(self.device))
                yield batch
        finally:
            stopped.set()
            while thread.is_alive():  # it may wait for room
                try:
                    ready.get(timeout=0.05)
                except queue.Empty:
                    continue
            thread.join()

    def _read(
        self, ready: queue.Queue[tuple[Any, Any, BaseException | None]], stopped: threading.Event
    ) -> None:
        try:
            stream = new_stream(self.device)
            for batch in self.loader:
                if stopped.is_set():
                    return
                if stream is None:
                    ready.put((self.moved(batch), None, None))
                    continue
                with torch.cuda.stream(stream):
                    found = self.moved(batch)
                    ready.put((found, stream.record_event(), None))
            ready.put((None, None, StopIteration()))
        except BaseException as error:
            ready.put((None, None, error))

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
    loader: Iterable[Any], *, device: torch.device | str | None = None, ahead: int = 2
) -> DeviceLoader:
    """Return the batches of a ``DataLoader`` on a device, each ready before it is asked for.

    Workers of a dataset with ``decode_device="cuda"`` read packets; they are decoded here, in the
    training process, by a thread that is ``ahead`` batches ahead of the training.

        loader = DataLoader(dataset, batch_size=32, num_workers=4)
        for batch in to_device(loader): ...

    Cost: memory of the device for ``ahead`` + 1 batches.

    Args:
        loader: Any iterable of batches: dicts of tensors.
        device: Where tensors are moved, and images that were decoded elsewhere; None is the device
            of ``decode_device=``, or leaves them where they are.
        ahead: How many batches to keep ready.

    Returns:
        An iterable with the length, and all attributes, of ``loader``.
    """
    chosen = None if device is None else torch.device(device)
    if chosen is None:
        inside = getattr(loader, "dataset", None)
        while inside is not None and chosen is None:
            chosen = getattr(inside, "decode_device", None)
            inside = getattr(inside, "dataset", None)
    return DeviceLoader(loader, chosen, ahead=max(1, ahead))
