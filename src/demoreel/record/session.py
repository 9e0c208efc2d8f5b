"""A session: episode after episode, with time to put the scene back between them."""

from __future__ import annotations

from collections.abc import Callable, MutableMapping
from typing import Any

from demoreel.record.clock import EpisodeReport
from demoreel.record.loop import EXIT_EARLY, RERECORD, STOP, Robot, Teleoperator, run_loop
from demoreel.record.recorder import Recorder


def record_episodes(
    robot: Robot,
    teleop: Teleoperator | Callable[[Any], Any],
    recorder: Recorder,
    *,
    episodes: int,
    episode_time_s: float | None,
    reset_time_s: float = 0.0,
    task: str | None = None,
    events: MutableMapping[str, bool] | None = None,
    on_frame: Callable[[int], None] | None = None,
    on_saved: Callable[[EpisodeReport], None] | None = None,
    on_discarded: Callable[[int], None] | None = None,
) -> list[EpisodeReport]:
    """Record episodes one after the other; each is saved when it ends.

    ``rerecord_episode`` discards the episode that is being recorded and begins it again;
    ``stop_recording`` saves what there is of it and ends the session. A robot that has ``begin()``
    is told to begin before each episode.

    Args:
        robot: What to observe and to move.
        teleop: Who says what to do.
        recorder: Where episodes go.
        episodes: How many to save.
        episode_time_s: How long one is; None until an event.
        reset_time_s: How long the robot runs unrecorded after each episode but the last.
        task: What the robot is doing.
        events: As for ``run_loop``.
        on_frame: Called after each turn.
        on_saved: Called with each episode's report.
        on_discarded: Called with the number of frames that were discarded.

    Returns:
        The reports of the saved episodes.
    """
    events = events if events is not None else {EXIT_EARLY: False, RERECORD: False, STOP: False}
    reports: list[EpisodeReport] = []
    while len(reports) < episodes and not events.get(STOP):
        getattr(robot, "begin", lambda: None)()
        run_loop(
            robot,
            teleop,
            recorder,
            control_time_s=episode_time_s,
            task=task,
            events=events,
            on_frame=on_frame,
        )
        if events.get(RERECORD):
            events[RERECORD] = False
            forgotten = recorder.discard_episode()
            if on_discarded is not None:
                on_discarded(forgotten)
            continue
        if recorder.pending_frames:
            reports.append(recorder.save_episode())
            if on_saved is not None:
                on_saved(reports[-1])
        if reset_time_s > 0 and len(reports) < episodes and not events.get(STOP):
            run_loop(
                robot,
                teleop,
                None,
                fps=recorder.info.fps,
                control_time_s=reset_time_s,
                events=events,
            )
    return reports
