"""``ds.writer``, and episodes that are given as a whole, under LeRobot's names."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from demoreel.errors import ArgumentError, FrameValueError, PictureError, count
from demoreel.media.images import decode_depth_image, decode_image, open_image
from demoreel.model import DEFAULT_FEATURES, Feature
from demoreel.model.clocks import clock_columns

if TYPE_CHECKING:
    from demoreel.record import Recorder
    from demoreel.torch.recording import RecordingDataset

_BESIDE = ("size", "task")
_SLACK_S = 1e-4  # of a timestamp; lerobot's own tolerance


class RecordingWriter:
    """``ds.writer``: what records, under the names that LeRobot users know.

    Frames are encoded while they come, so there is neither an image writer nor a batch of videos.

    Args:
        dataset: The dataset that is recorded.
        recorder: What records it; None until the first frame is added, where the dataset was
            opened to be read and written.
    """

    image_writer = None

    def __init__(self, dataset: RecordingDataset, recorder: Recorder | None) -> None:
        self.root = dataset.root
        self._dataset = dataset
        self._recorder = recorder

    @property
    def episode_buffer(self) -> dict[str, Any]:
        """The frames that are not saved: a list of values for each feature, ``task``, ``size``.

        Images are None, as lerobot's are where it encodes while it records. The dict is made anew
        each time: other values in it count when it is given to ``save_episode``.

        Cost: a small object for each value.
        """
        dataset, recorder = self._dataset, self._dataset._recorder
        features = dataset.meta.features
        size = 0 if recorder is None else recorder.pending_frames
        rows = {} if recorder is None else recorder.pending_rows
        made: dict[str, Any] = {"size": size, "task": rows.get("task", [])}
        for key, feature in features.items():
            if feature["dtype"] in ("image", "video"):
                made[key] = [None] * size
            elif isinstance(values := rows.get(key, []), np.ndarray):
                made[key] = list(values.reshape(-1, *feature["shape"]))
            else:
                made[key] = list(values)
        made["timestamp"] = [number / dataset.meta.fps for number in range(size)]
        made["frame_index"] = list(range(size))
        made["episode_index"] = dataset.meta.total_episodes
        return made

    def add_frame(self, frame: Mapping[str, Any]) -> None:
        """Take one frame; see the dataset's method."""
        self._dataset.add_frame(frame)

    def save_episode(
        self, episode_data: Mapping[str, Any] | None = None, parallel_encoding: bool = True
    ) -> None:
        """Commit the episode; see the dataset's method."""
        self._dataset.save_episode(episode_data, parallel_encoding)

    def clear_episode_buffer(self, delete_images: bool = True) -> None:
        """Forget the frames since the last episode."""
        self._dataset.clear_episode_buffer(delete_images)

    def cleanup_interrupted_episode(self, episode_index: int) -> None:
        """Forget the frames since the last episode."""
        self._dataset.clear_episode_buffer()

    def finalize(self) -> None:
        """Let go of the dataset; see the dataset's method."""
        self._dataset.finalize()

    close_writer = finalize

    def start_image_writer(self, num_processes: int = 0, num_threads: int = 4) -> None:
        """Do nothing: images are encoded by processes that run already."""

    def stop_image_writer(self) -> None:
        """Do nothing: every saved episode is on disk."""

    def flush_pending_videos(self) -> None:
        """Do nothing: every saved episode is on disk."""

    def cancel_pending_videos(self) -> None:
        """Do nothing: every saved episode is on disk."""


def take_episode(recorder: Recorder, data: Mapping[str, Any]) -> None:
    """Let the frames that are not saved be those of a whole episode."""
    features = recorder.info.features
    size = _checked_size(recorder, data)
    own = {k: f for k, f in features.items() if k in data and k not in DEFAULT_FEATURES}
    added = recorder.pending_frames
    if added:
        own = {key: feature for key, feature in own.items() if not feature.is_camera}
    if added and added != size:
        raise ArgumentError(
            f"episode_data has {count(size, 'frame')}, and {added:,} were added.",
            hint="clear_episode_buffer() forgets those that were added",
        )
    columns = {key: _column(feature, data[key], size) for key, feature in own.items()}
    columns["task"] = list(_sized("task", data["task"], size))
    frames = [{key: column[number] for key, column in columns.items()} for number in range(size)]
    if added:
        recorder.replace_rows(frames)
        return
    try:
        for frame in frames:
            images = {key: _image(own[key], frame[key]) for key in own if own[key].is_camera}
            recorder.add_frame({**frame, **images})
    except BaseException:
        recorder.discard_episode()
        raise


def _checked_size(recorder: Recorder, data: Mapping[str, Any]) -> int:
    """Return the size of an episode that has lerobot's fields and the recorder's features."""
    for name in _BESIDE:
        if name not in data:
            raise ArgumentError(f"{name} key not found in episode_data.")
    size, features = data["size"], recorder.info.features
    if not isinstance(size, int) or size < 1:
        raise ArgumentError(
            "episode_data has no frames: add one or several with add_frame() before saving."
        )
    if np.any(np.asarray(data.get("episode_index", -1)) != recorder.num_episodes):
        raise ArgumentError(
            f"episode_data is episode {data.get('episode_index')!r}; the next one is "
            f"{recorder.num_episodes}."
        )
    given = set(data) - set(_BESIDE)
    other = given ^ (set(features) - (set(clock_columns(features).values()) - given))
    if other:
        raise ArgumentError(
            "episode_data does not have the dataset's features: "
            f"it lacks {sorted(other - given)}, and has besides {sorted(other & given)}."
        )
    number = np.arange(size)
    for key, expected, slack in (
        ("frame_index", number, 0.0),
        ("timestamp", number / recorder.info.fps, _SLACK_S),
    ):
        values = np.asarray(_sized(key, data[key], size), np.float64).reshape(-1)
        if not np.all(np.abs(values - expected) <= slack):
            raise ArgumentError(
                f"{key} of episode_data is not that of frames at {recorder.info.fps:g} per second.",
                hint="leave it as writer.episode_buffer has it",
            )
    return size


def _sized(key: str, values: Any, size: int) -> Any:
    if not hasattr(values, "__len__") or isinstance(values, str) or len(values) != size:
        raise ArgumentError(f"{key} of episode_data is no list of {count(size, 'value')}.")
    return values


def _column(feature: Feature, values: Any, size: int) -> Any:
    """Return the values of a feature, one for each frame, in a form that the recorder takes."""
    listed = _sized(feature.key, values, size)
    if not feature.is_numeric:
        return listed
    try:
        return np.stack([np.asarray(one).reshape(feature.shape) for one in listed])
    except (TypeError, ValueError) as error:
        raise FrameValueError(
            f"The feature {feature.key!r} of episode_data does not have the shape "
            f"{feature.shape} in each frame: {error}."
        ) from error


def _image(feature: Feature, value: Any) -> Any:
    """Return an image of an episode that is given as a whole; a path is that of a file."""
    if value is None:
        raise FrameValueError(
            f"episode_data has no images of {feature.key!r}, and no frame was added.",
            hint="give arrays, PIL images or paths; or add the frames with add_frame()",
        )
    if not isinstance(value, (str, os.PathLike)):
        return value
    try:
        data = Path(value).read_bytes()
        if not feature.is_depth:
            return decode_image(data)
        depth = decode_depth_image(data)
        with open_image(data) as image:  # floats are metres, whole numbers millimetres
            return depth if image.mode == "F" else depth.astype(np.int32)
    except (OSError, PictureError) as error:
        raise FrameValueError(
            f"The image {os.fspath(value)!r} of {feature.key!r} cannot be read: {error}"
        ) from error
