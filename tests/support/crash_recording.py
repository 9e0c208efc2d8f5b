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
from demoreel.record.spec import RecordLayout
from support.crash import TASKS, columns_of, crash_info, images_of, length_of

_EPISODE_S = 0.05  # about as long as one takes


def begin_crash_recording(
    root: Path, *, cameras: int = 2, fps: float = 30, layout: RecordLayout = "v3.0", **options: Any
) -> Recorder:
    """Begin a dataset for ``record_for_ever``, and return its recorder.

    Args:
        root: The dataset's folder.
        cameras: How many cameras it has.
        fps: Frames per second.
        layout: How it is to lie on disk.
        **options: As of ``demoreel.create``.
    """
    features = {
        key: feature.to_json()
        for key, feature in crash_info(cameras=cameras).features.items()
        if feature.is_camera or key in ("state", "noise")
    }
    return create(
        root,
        fps=fps,
        features=features,
        vcodec="h264",
        capture_times=False,
        layout=layout,
        **options,
    )


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
            add_crash_frames(recorder, episode + 1000)
            recorder.discard_episode()
        if recorder.info.video_keys and chance.random() < encoder_kills:
            camera = chance.choice(recorder.info.video_keys)
            Timer(chance.uniform(0, _EPISODE_S), _kill_encoder, (recorder, camera)).start()
        add_crash_frames(recorder, episode)
        report.send(recorder.save_episode().episode_index)


def record_behind_for_ever(report: Connection, root: Path, most: int = 500) -> None:
    """Record as ``record_for_ever`` does, with encoders that are always behind. To be killed.

    At one frame a second, every episode is saved before it is encoded.
    """
    recorder = resume(root)
    report.send("begun")
    for _ in range(most):
        _signal_encoders(recorder, signal.SIGSTOP)
        add_crash_frames(recorder, recorder.num_episodes)
        saved = recorder.save_episode()
        assert saved.pending
        report.send(saved.episode_index)
        _signal_encoders(recorder, signal.SIGCONT)


def _signal_encoders(recorder: Recorder, number: signal.Signals) -> None:
    for process in recorder.encoder_processes.values():
        os.kill(process, number)


def _kill_encoder(recorder: Recorder, camera: str) -> None:
    process = recorder.encoder_processes[camera]
    if process:  # else the one before it has just died, and the next is not there yet
        os.kill(process, signal.SIGKILL)


def add_crash_frames(recorder: Recorder, episode: int) -> None:
    """Add the frames of an episode, which follow from its number."""
    columns, images = columns_of(episode), images_of(episode)
    for frame in range(length_of(episode)):
        values: dict[str, Any] = {key: column[frame] for key, column in columns.items()}
        values |= dict.fromkeys(recorder.info.video_keys, images[frame])
        recorder.add_frame(values, task=TASKS[episode % len(TASKS)])
