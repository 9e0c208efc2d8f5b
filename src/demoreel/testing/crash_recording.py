"""A recording that is made to be killed: every episode follows from its number, as in ``crash``."""

from __future__ import annotations

import os
import random
import signal
from multiprocessing.connection import Connection
from pathlib import Path
from threading import Timer
from typing import Any

from demoreel.record import Recorder, create, resume
from demoreel.testing.crash import TASKS, columns_of, crash_info, length_of, pictures_of

_EPISODE_S = 0.05  # about as long as one takes


def begin_crash_recording(root: Path, *, cameras: int = 2) -> None:
    """Begin a dataset for ``record_for_ever``."""
    features = {
        key: feature.to_json()
        for key, feature in crash_info(cameras=cameras).features.items()
        if feature.is_camera or key in ("state", "noise")
    }
    create(root, fps=30, features=features, vcodec="h264", capture_times=False).finalize()


def record_for_ever(
    report: Connection,
    root: Path,
    seed: int | None = None,
    most: int = 500,
    encoder_kills: float = 0.2,
) -> None:
    """Record episodes, and report the number of each that is safe. To be killed.

    Now and then an episode is discarded and recorded again, and now and then an encoder is killed,
    at some instant while the episode is recorded or saved.

    Args:
        report: Where to report.
        root: The dataset's folder.
        seed: Decides what happens when.
        most: Most episodes.
        encoder_kills: In which share of the episodes an encoder is killed.
    """
    chance = random.Random(seed)
    recorder = resume(root)
    report.send("begun")
    for _ in range(most):
        episode = recorder.num_episodes
        if chance.random() < 0.3:
            _add_frames(recorder, episode + 1000)
            recorder.discard_episode()
        if chance.random() < encoder_kills:
            camera = chance.choice(recorder.info.video_keys)
            Timer(chance.uniform(0, _EPISODE_S), _kill_encoder, (recorder, camera)).start()
        _add_frames(recorder, episode)
        report.send(recorder.save_episode().episode_index)


def _kill_encoder(recorder: Recorder, camera: str) -> None:
    process = recorder.encoder_processes[camera]
    if process:  # else the one before it has just died, and the next is not there yet
        os.kill(process, signal.SIGKILL)


def _add_frames(recorder: Recorder, episode: int) -> None:
    columns, pictures = columns_of(episode), pictures_of(episode)
    for frame in range(length_of(episode)):
        values: dict[str, Any] = {key: column[frame] for key, column in columns.items()}
        values |= dict.fromkeys(recorder.info.video_keys, pictures[frame])
        recorder.add_frame(values, task=TASKS[episode % len(TASKS)])
