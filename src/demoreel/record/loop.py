"""The recording loop: observe, act, record, on time; and episode after episode."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from demoreel.errors import ArgumentError
from demoreel.model import DEFAULT_FEATURES, Feature, Info
from demoreel.model.clocks import clock_of
from demoreel.record.clock import EpisodeReport
from demoreel.record.recorder import Recorder

_SPIN = 0.001  # seconds before a deadline from which waiting is not left to the scheduler

EXIT_EARLY, RERECORD, STOP = "exit_early", "rerecord_episode", "stop_recording"
"""The events of lerobot's keyboard listener; ``events[EXIT_EARLY] = True`` ends an episode."""

IMAGES = "observation.images."


class Robot(Protocol):
    """Anything that can be observed and told what to do; lerobot's ``Robot`` is one."""

    def get_observation(self) -> Mapping[str, Any]:
        """Return what the robot sees and feels."""
        ...

    def send_action(self, action: Any) -> Any:
        """Do something; return what was really done."""
        ...


class Teleoperator(Protocol):
    """Anything that says what to do; lerobot's ``Teleoperator`` is one."""

    def get_action(self) -> Any:
        """Return what is to be done."""
        ...


@dataclass(frozen=True, slots=True)
class LoopReport:
    """How one run of the loop went.

    Attributes:
        frames: Frames that were recorded.
        seconds: How long it ran.
        fps: Turns a second.
        late: Turns that began after their time.
        ended_by: ``time``, or the event that ended it.
    """

    frames: int
    seconds: float
    fps: float
    late: int
    ended_by: str


def run_loop(
    robot: Robot,
    teleop: Teleoperator | Callable[[Mapping[str, Any]], Any],
    recorder: Recorder | None,
    *,
    fps: float | None = None,
    control_time_s: float | None = None,
    task: str | None = None,
    events: MutableMapping[str, bool] | None = None,
    on_frame: Callable[[int], None] | None = None,
) -> LoopReport:
    """Run the robot for one episode and record every turn; the episode is not saved yet.

    Each turn: the robot is observed, the teleoperator (or a policy: a function of the observation)
    says what to do, the robot does it, the frame is recorded, and the loop waits for the next turn.
    A turn that is late is not made up for: the next one begins on the grid again.

    The keys of a robot's observation and action may be features of the dataset, or the names that
    the features list, as lerobot's robots give them: ``shoulder_pan.pos`` of ``observation.state``,
    ``front`` of ``observation.images.front``.

    Args:
        robot: What to observe and to move.
        teleop: Says what to do.
        recorder: Where frames go; None runs the robot without recording (to reset the scene).
        fps: Turns a second; None takes the recorder's.
        control_time_s: How long; None until an event.
        task: What the robot is doing.
        events: Checked every turn: ``exit_early`` ends the episode and is set back,
            ``rerecord_episode`` and ``stop_recording`` end it too and are left for the caller.
        on_frame: Called after each turn with the number of turns so far.
    """
    rate = fps if fps is not None else (recorder.info.fps if recorder is not None else None)
    if rate is None or not rate > 0:
        raise ArgumentError(f"fps must be positive, not {rate!r}.")
    if control_time_s is None and events is None:
        raise ArgumentError("The loop would never end: give control_time_s= or events=.")
    decide = teleop if callable(teleop) else lambda _: teleop.get_action()
    join = _Join(recorder.info) if recorder is not None else None
    begin = time.perf_counter()
    turns, frames, late, slot = 0, 0, 0, 0
    ended_by = "time"
    while True:
        event = _event(events)
        if event is not None:
            ended_by = event
            break
        if control_time_s is not None and slot / rate >= control_time_s - 1e-9:
            break
        observation = robot.get_observation()
        action = decide(observation)
        done = robot.send_action(action)
        if recorder is not None and join is not None:
            frame = join(observation, action if done is None else done)
            frames += recorder.add_frame(frame, task=task)
        turns += 1
        if on_frame is not None:
            on_frame(turns)
        slot, was_late = _wait_for_next(begin, slot, rate)
        late += was_late
    seconds = time.perf_counter() - begin
    return LoopReport(frames, seconds, turns / seconds if seconds else 0.0, late, ended_by)


def _event(events: MutableMapping[str, bool] | None) -> str | None:
    if events is None:
        return None
    for name in (STOP, RERECORD, EXIT_EARLY):
        if events.get(name):
            events[EXIT_EARLY] = False
            return name
    return None


def _wait_for_next(begin: float, slot: int, rate: float) -> tuple[int, bool]:
    """Wait for the next place on the grid that is not past; say whether one was missed."""
    behind = (time.perf_counter() - begin) * rate
    late = behind > slot + 1
    slot = max(slot + 1, int(np.ceil(behind)) if late else 0)
    deadline = begin + slot / rate
    rest = deadline - time.perf_counter()
    if rest > _SPIN:
        time.sleep(rest - _SPIN)
    while time.perf_counter() < deadline:
        time.sleep(0)  # gives the processor to other threads
    return slot, late


class _Join:
    """Makes a dataset's frame of a robot's observation and action."""

    def __init__(self, info: Info) -> None:
        self._features = {
            key: feature
            for key, feature in info.features.items()
            if key not in DEFAULT_FEATURES and clock_of(key) is None
        }

    def __call__(self, observation: Mapping[str, Any], action: Any) -> dict[str, Any]:
        acted = action if isinstance(action, Mapping) else {"action": action}
        frame: dict[str, Any] = {}
        for key, feature in self._features.items():
            source = acted if key == "action" or key.startswith("action.") else observation
            other = observation if source is acted else acted
            for values in (source, other):
                found, value = _value(key, feature, values)
                if found:
                    frame[key] = value
                    break
        for extra in observation:
            if clock_of(extra) is not None:
                frame[extra] = observation[extra]
        return frame


def _value(key: str, feature: Feature, values: Mapping[str, Any]) -> tuple[bool, Any]:
    if key in values:
        return True, values[key]
    if feature.is_camera:
        short = key.removeprefix(IMAGES)
        return short in values, values.get(short)
    names = feature.names
    if isinstance(names, Mapping) and len(names) == 1:  # {"motors": [...]}: an older habit
        names = next(iter(names.values()))
    if isinstance(names, (list, tuple)) and names and all(name in values for name in names):
        return True, [values[name] for name in names]
    return False, None


def features_of(robot: Any, *, use_videos: bool = True) -> dict[str, dict[str, Any]]:
    """Return the features of a robot that describes itself as lerobot's robots do.

    Args:
        robot: Has ``observation_features`` and ``action_features``: names to ``float`` (a joint) or
            to (height, width, channels) (a camera).
        use_videos: Store cameras as videos; else as images.
    """
    try:
        seen, done = dict(robot.observation_features), dict(robot.action_features)
    except AttributeError as error:
        raise ArgumentError(
            f"{type(robot).__name__} has no observation_features and action_features.",
            hint="pass features= yourself",
        ) from error
    features: dict[str, dict[str, Any]] = {}
    for key, names in (("observation.state", seen), ("action", done)):
        joints = [name for name, kind in names.items() if not isinstance(kind, tuple)]
        if joints:
            features[key] = {"dtype": "float32", "shape": (len(joints),), "names": joints}
    for name, kind in seen.items():
        if isinstance(kind, tuple):
            camera = name if name.startswith("observation.") else IMAGES + name
            features[camera] = {
                "dtype": "video" if use_videos else "image",
                "shape": kind,
                "names": ["height", "width", "channels"],
            }
    return features


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
        teleop: Says what to do.
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
