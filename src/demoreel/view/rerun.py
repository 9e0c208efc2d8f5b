"""An episode as a Rerun recording: ``.rrd`` files, or the Rerun viewer."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np

from demoreel.errors import ArgumentError, MissingExtraError, TargetExistsError
from demoreel.read.dataset import Dataset
from demoreel.storage.commit.files import sync_path, write_whole
from demoreel.view.frames import jpeg_of

_FRAME, _TIME = "frame", "time"
_INDICES = ("timestamp", "frame_index", "episode_index", "index", "task_index")


def write_recording(dataset: Dataset, episode: int, path: str | Path) -> Path:
    """Write an episode as a file that the Rerun viewer opens.

    Cost: decodes all images of the episode; they are kept as JPEG, depth as it is.

    Args:
        dataset: The dataset.
        episode: The episode's number.
        path: The file, ``NAME.rrd``; it must not be there yet.
    """
    rerun, target = _import_rerun(), checked_target(dataset, episode, path)

    def write(fresh: Path) -> None:
        stream = _stream(rerun, dataset, episode)
        stream.save(fresh)
        log_episode(rerun, stream, dataset, episode)
        sync_path(fresh)

    write_whole(target, write)
    return target


def checked_target(dataset: Dataset, episode: int, path: str | Path) -> Path:
    """Return where a recording would be written; nothing is."""
    target = Path(path)
    if target.suffix != ".rrd":
        raise ArgumentError("A Rerun recording's name ends in .rrd.", path=target)
    if target.exists():
        raise TargetExistsError("There is something already.", path=target)
    dataset.episode(episode)
    return target


def show_recording(dataset: Dataset, episode: int) -> None:
    """Open an episode in the Rerun viewer, which runs on when this process has ended."""
    rerun = _import_rerun()
    dataset.episode(episode)
    stream = _stream(rerun, dataset, episode)
    stream.spawn()
    log_episode(rerun, stream, dataset, episode)


def log_episode(rerun: Any, stream: Any, dataset: Dataset, episode: int) -> None:
    """Send an episode's frames, numbers and texts to a recording stream, and end it."""
    view, fps = dataset.episode(episode), dataset.fps
    frames = np.arange(len(view))
    times = [
        rerun.TimeColumn(_FRAME, sequence=frames),
        rerun.TimeColumn(_TIME, duration=frames / fps),
    ]
    stream.log("task", rerun.TextDocument("\n".join(map(str, view.meta.tasks))), static=True)
    for key, feature in dataset.features.items():
        if not feature.is_numeric or key in _INDICES:
            continue
        values = np.asarray(view.column(key), np.float64).reshape(len(frames), -1)
        names = _names(feature.names, values.shape[1])
        stream.log(key, rerun.SeriesLines(names=names), static=True)
        stream.send_columns(key, indexes=times, columns=rerun.Scalars.columns(scalars=values))
    for key, feature in dataset.features.items():
        if feature.is_numeric or feature.is_camera:
            continue
        before = ""
        for frame, text in enumerate(map(str, view.column(key))):
            if text != before:  # where it changes
                _at(stream, frame, fps)
                stream.log(key, rerun.TextLog(text))
            before = text
    for camera in dataset.cameras:
        is_depth = dataset.features[camera].is_depth
        for frame, image in enumerate(view.frames(camera)):
            _at(stream, frame, fps)
            if is_depth:
                shown = rerun.DepthImage(image.astype(np.float32), meter=1000.0)
            else:
                shown = rerun.EncodedImage(contents=jpeg_of(image), media_type="image/jpeg")
            stream.log(camera, shown)
    stream.flush()
    stream.disconnect()


def _at(stream: Any, frame: int, fps: float) -> None:
    stream.set_time(_FRAME, sequence=frame)
    stream.set_time(_TIME, duration=frame / fps)


def _names(names: object, size: int) -> list[str]:
    if isinstance(names, list | tuple) and len(names) == size:
        return [str(name) for name in names]
    return [f"[{place}]" for place in range(size)]


def _stream(rerun: Any, dataset: Dataset, episode: int) -> Any:
    name = str(dataset.uri or dataset.root).rstrip("/").rpartition("/")[2] or "dataset"
    plain = re.sub(r"[^A-Za-z0-9_]+", "_", name)[:80]  # a name of Rerun's catalogue
    return rerun.RecordingStream(f"demoreel_{plain}", recording_id=f"{plain}-episode-{episode}")


def _import_rerun() -> Any:
    try:
        import rerun
    except ImportError as error:
        raise MissingExtraError(
            "A Rerun recording needs rerun-sdk.", hint="pip install 'demoreel[rerun]'"
        ) from error
    return rerun
