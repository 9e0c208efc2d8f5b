"""``demoreel record``: episodes from a robot, saved as they end."""

from __future__ import annotations

import importlib
import os
import select
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from demoreel.cli.output import Output, console, duration, size
from demoreel.errors import ArgumentError, count

if TYPE_CHECKING:
    from demoreel.record.clock import EpisodeReport
    from demoreel.record.recorder import Recorder
    from demoreel.record.spec import RecordLayout

_REDRAW_S = 0.2
_KEYS = "right or s: save   left or r: discard and record again   escape or q: stop"

_ARROWS = {b"\x1b[C": "right", b"\x1b[D": "left", b"\x1b": "escape"}
_WAIT_S = 0.1


def record(
    out: Output,
    path: Annotated[Path, typer.Argument(metavar="PATH", help="The dataset's folder.")],
    robot: Annotated[
        str,
        typer.Option(
            "--robot",
            metavar="NAME",
            help="toy, or MODULE:FUNCTION that returns a robot and its teleoperator.",
        ),
    ] = "toy",
    episodes: Annotated[
        int, typer.Option("--episodes", "-n", min=1, metavar="N", help="Episodes to save.")
    ] = 1,
    episode_time: Annotated[
        float,
        typer.Option(
            "--episode-time",
            min=0.0,
            metavar="S",
            help="Seconds of an episode; 0: until a key is pressed.",
        ),
    ] = 5.0,
    reset_time: Annotated[
        float,
        typer.Option("--reset-time", min=0.0, metavar="S", help="Seconds between two episodes."),
    ] = 0.0,
    fps: Annotated[
        float, typer.Option("--fps", min=0.1, metavar="N", help="Frames per second.")
    ] = 30.0,
    task: Annotated[
        str | None, typer.Option("--task", metavar="TEXT", help="The task, as a text.")
    ] = None,
    layout: Annotated[
        Literal["v3.0", "lance-video", "lance-native"],
        typer.Option("--layout", help="The layout on disk."),
    ] = "v3.0",
    vcodec: Annotated[
        str,
        typer.Option(
            "--vcodec", metavar="NAME", help="auto, av1, h264, hevc, or an encoder such as libx264."
        ),
    ] = "auto",
    resume: Annotated[
        bool, typer.Option("--resume", help="Append to an existing dataset.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would be recorded, and write nothing.")
    ] = False,
) -> None:
    """Record episodes from a robot; each one is safe as soon as it is saved.

    Ctrl-C discards the episode that is being recorded and keeps the saved ones.
    """
    from demoreel.record import create, features_of
    from demoreel.record import resume as go_on

    machine, teleop = _robot_named(robot)
    task = task or getattr(machine, "task", None)
    if not task:
        raise ArgumentError("There is no task.", hint='--task "what the robot does"')
    if episode_time == 0 and not sys.stdin.isatty():
        raise ArgumentError("--episode-time 0 waits for a key, which needs a terminal.")
    features = features_of(machine)
    if dry_run:
        _show_plan(out, path, features, fps=fps, layout=layout, episodes=episodes)
        return
    rate = int(fps) if float(fps).is_integer() else fps
    with _connected(machine, teleop):  # what cannot be reached leaves no dataset behind
        if resume:
            recorder = go_on(path, fps=rate, features=features, task=task)
        else:
            recorder = create(
                path,
                fps=rate,
                features=features,
                robot_type=getattr(machine, "name", None),
                layout=layout,
                vcodec=vcodec,
                task=task,
            )
        with recorder, _first_ctrl_c() as interrupted:
            reports = _record(
                out,
                recorder,
                machine,
                teleop,
                interrupted,
                episodes=episodes,
                episode_time=episode_time or None,
                reset_time=reset_time,
            )
    if interrupted.is_set():
        raise KeyboardInterrupt
    _show_result(out, path, recorder, reports)


@contextmanager
def _connected(*devices: Any) -> Iterator[None]:
    """Connect what can be, as lerobot's robots and teleoperators; disconnect it at the end."""
    with ExitStack() as stack:
        for device in devices:
            if hasattr(device, "connect"):
                device.connect()
                stack.callback(getattr(device, "disconnect", lambda: None))
        yield


def _robot_named(name: str) -> tuple[Any, Any]:
    if name == "toy":
        from demoreel.testing.toy_robot import ToyLeader, ToyRobot

        toy = ToyRobot()
        return toy, ToyLeader(toy)
    module, _, function = name.partition(":")
    if not function:
        raise ArgumentError(
            f"There is no robot {name!r}.",
            hint="toy, or MODULE:FUNCTION where FUNCTION() returns (robot, teleoperator)",
        )
    try:
        made = getattr(importlib.import_module(module), function)()
        machine, teleop = made
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        raise ArgumentError(
            f"{name} did not return a robot and a teleoperator ({error}).",
            hint="FUNCTION() must return (robot, teleoperator)",
        ) from error
    return machine, teleop


def _record(
    out: Output,
    recorder: Recorder,
    machine: Any,
    teleop: Any,
    interrupted: threading.Event,
    *,
    episodes: int,
    episode_time: float | None,
    reset_time: float,
) -> list[EpisodeReport]:
    from demoreel.record.loop import EXIT_EARLY, RERECORD, STOP, record_episodes

    events = {EXIT_EARLY: False, RERECORD: False, STOP: False}

    def set_event(name: str) -> Any:
        return lambda: events.__setitem__(name, True)

    actions = dict.fromkeys(("right", "s"), set_event(EXIT_EARLY))
    actions |= dict.fromkeys(("left", "r"), set_event(RERECORD))
    actions |= dict.fromkeys(("escape", "q"), set_event(STOP))
    with pressed_keys(actions) as heard, _live_line(out) as show:
        if heard:
            out.note(_KEYS)
        line = _Line(recorder, show, episodes)

        def after_frame(turns: int) -> None:
            line.frame(turns)
            if interrupted.is_set():
                events[RERECORD] = events[STOP] = True  # the episode is not whole: discard it

        return record_episodes(
            machine,
            teleop,
            recorder,
            episodes=episodes,
            episode_time_s=episode_time,
            reset_time_s=reset_time,
            events=events,
            on_frame=after_frame,
            on_saved=lambda report: out.note(_sentence(report)),
            on_discarded=lambda frames: out.note(f"discarded {count(frames, 'frame')}"),
        )


@contextmanager
def _first_ctrl_c() -> Iterator[threading.Event]:
    """Yield an event that the first Ctrl-C sets; the second is an ordinary one.

    An exception in the middle of a commit leaves it to the next writer.
    """
    interrupted = threading.Event()
    before = signal.getsignal(signal.SIGINT)

    def handle(number: int, frame: Any) -> None:
        if interrupted.is_set():
            raise KeyboardInterrupt
        interrupted.set()

    signal.signal(signal.SIGINT, handle)
    try:
        yield interrupted
    finally:
        signal.signal(signal.SIGINT, before)


class _Line:
    """The live line: drawn a few times a second, from inside the loop, and cheap."""

    def __init__(self, recorder: Recorder, show: Any, episodes: int) -> None:
        self._recorder = recorder
        self._show = show
        self._last = recorder.num_episodes + episodes
        self._begin = self._drawn = time.perf_counter()
        self._late = 0
        self._before: float | None = None

    def frame(self, turns: int) -> None:
        now = time.perf_counter()
        fps = self._recorder.info.fps
        if turns == 1:
            self._begin, self._late, self._before = now, 0, None
        if self._before is not None and now - self._before > 1.5 / fps:
            self._late += 1
        self._before = now
        if now - self._drawn < _REDRAW_S:
            return
        self._drawn = now
        achieved = (turns - 1) / max(1e-6, now - self._begin)
        backlog = self._recorder.backlog
        waiting = backlog.frames_in_memory + backlog.frames_on_disk
        free = shutil.disk_usage(self._recorder.root).free
        self._show(
            f"episode {self._recorder.num_episodes + 1}/{self._last}   {turns:5d} frames   "
            f"{achieved:5.1f} fps   {self._late} late   {waiting} to encode   {size(free)} free"
        )


@contextmanager
def _live_line(out: Output) -> Iterator[Any]:
    """Yield a function that replaces one line on the terminal; silent elsewhere."""
    if out.silent or not sys.stderr.isatty():
        yield lambda text: None
        return
    from rich.live import Live
    from rich.text import Text

    with Live(console=console(sys.stderr), transient=True, auto_refresh=False) as live:
        yield lambda text: live.update(Text(text), refresh=True)


def _sentence(report: EpisodeReport) -> str:
    pace = "" if report.fps is None else f" at {report.fps:.2f} fps"
    late = f", {report.late_frames} late" if report.late_frames else ""
    return (
        f"saved episode {report.episode_index}: {count(report.frames, 'frame')} in "
        f"{duration(report.seconds)}{pace}{late}; saving took {1000 * report.save_seconds:.0f} ms"
    )


def _show_plan(
    out: Output,
    path: Path,
    features: dict[str, Any],
    *,
    fps: float,
    layout: RecordLayout,
    episodes: int,
) -> None:
    from demoreel.record.spec import describe

    info = describe(features, fps=fps, layout=layout)
    if out.json:
        out.result({"path": str(path), "layout": layout, "info": info.to_json()})
        return
    out.line(f"would record {count(episodes, 'episode')} into {path} as {layout}, at {fps:g} fps")
    for key, feature in info.features.items():
        out.line(f"  {key}: {feature.dtype} {list(feature.shape)}")


def _show_result(out: Output, path: Path, recorder: Recorder, reports: list[EpisodeReport]) -> None:
    if out.json:
        out.result(
            {
                "path": str(path),
                "episodes": recorder.num_episodes,
                "frames": recorder.num_frames,
                "saved": [report.to_json() for report in reports],
            }
        )
        return
    frames = sum(report.frames for report in reports)
    out.line(f"{count(len(reports), 'episode')} of {count(frames, 'frame')} saved in {path}")


@contextmanager
def pressed_keys(actions: Mapping[str, Callable[[], None]]) -> Iterator[bool]:
    """Call an action when its key is pressed, until the block ends; yield whether keys are heard.

    The terminal is as before when the block ends, however it ends. Ctrl-C stays Ctrl-C.

    Args:
        actions: By key: a letter, ``left``, ``right`` or ``escape``.
    """
    if not sys.stdin.isatty():
        yield False
        return
    try:
        import termios
        import tty
    except ImportError:  # not a POSIX system
        yield False
        return
    handle = sys.stdin.fileno()
    before = termios.tcgetattr(handle)
    over = threading.Event()
    listener = threading.Thread(target=_listen, args=(handle, actions, over), daemon=True)
    tty.setcbreak(handle)
    try:
        listener.start()
        yield True
    finally:
        over.set()
        listener.join()
        termios.tcsetattr(handle, termios.TCSADRAIN, before)


def _listen(handle: int, actions: Mapping[str, Callable[[], None]], over: threading.Event) -> None:
    while not over.is_set():
        ready, _, _ = select.select([handle], [], [], _WAIT_S)
        if not ready:
            continue
        data = os.read(handle, 8)
        if not data:
            return
        key = _ARROWS.get(data) or data[:1].decode("ascii", "replace").lower()
        if key in actions:
            actions[key]()
