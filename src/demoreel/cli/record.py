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

from demoreel.cli.options import place
from demoreel.cli.output import Output, console, size
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
    path: Annotated[
        str,
        typer.Argument(metavar="PATH", help="The dataset's folder, on this machine.", parser=place),
    ],
    robot: Annotated[
        str,
        typer.Option(
            "--robot",
            metavar="NAME",
            help="toy, or MODULE:FUNCTION that returns a robot and its teleoperator; modules are "
            "found in the current folder, too.",
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
    capture_times: Annotated[
        Literal["beside", "column", "none"],
        typer.Option(
            "--capture-times",
            help="Where to keep when rows were captured: beside the data, or in a column.",
        ),
    ] = "beside",
    resume: Annotated[
        bool, typer.Option("--resume", help="Append to an existing dataset.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would be recorded, and write nothing.")
    ] = False,
) -> None:
    """Record episodes from a robot; each is safe once it is saved.

    Ctrl-C discards the episode that is being recorded and keeps the saved ones.
    """
    from demoreel.record import create, features_of
    from demoreel.record import resume as go_on
    from demoreel.record.start import folder_for_new, folder_to_resume

    # Before the robot moves, or is imported.
    folder = folder_to_resume(path) if resume else folder_for_new(path)
    if resume and layout != "v3.0":
        _refuse_another_layout(folder, layout)
    machine, teleop = _robot_named(robot)
    task = task or getattr(machine, "task", None)
    if not task:
        raise ArgumentError("There is no task.", hint='--task "what the robot does"')
    if episode_time == 0 and not sys.stdin.isatty():
        raise ArgumentError("--episode-time 0 waits for a key, which needs a terminal.")
    features = features_of(machine)
    if dry_run:
        _show_plan(out, folder, features, fps=fps, layout=layout, episodes=episodes)
        return
    rate = int(fps) if float(fps).is_integer() else fps
    with _connected(machine, teleop):  # what cannot be reached leaves no dataset behind
        if resume:
            recorder = go_on(
                folder,
                fps=rate,
                features=features,
                task=task,
                capture_times=capture_times != "none",
                vcodec=None if vcodec == "auto" else vcodec,
            )
        else:
            recorder = create(
                folder,
                fps=rate,
                features=features,
                robot_type=getattr(machine, "name", None),
                layout=layout,
                vcodec=vcodec,
                capture_times=capture_times,
                task=task,
            )
        with recorder, _first_ctrl_c() as interrupted:
            reports = _record(
                out,
                folder,
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
    _show_result(out, folder, recorder, reports)


def _refuse_another_layout(folder: Path, layout: str) -> None:
    from demoreel.layouts.detect import open_reader

    own = open_reader(folder).layout
    if layout != own:
        raise ArgumentError(
            f"The dataset has the layout {own}, not {layout}.",
            hint="leave --layout out",
            path=folder,
        )


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
    if not function or not all(part.isidentifier() for part in module.split(".")):
        raise ArgumentError(
            f"There is no robot {name!r}.",
            hint="toy, or MODULE:FUNCTION where FUNCTION() returns (robot, teleoperator)",
        )
    folder = os.getcwd()
    if folder not in sys.path:  # as `python -m` does; an installed command does not
        sys.path.insert(0, folder)
    try:
        make = getattr(importlib.import_module(module), function)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise _failed(name, error) from error
        raise ArgumentError(
            f"There is no module {error.name!r}, neither in this folder nor installed.",
            hint=f"run demoreel record in the folder of {error.name}.py, or set PYTHONPATH to it",
            folder=folder,
        ) from error
    except AttributeError as error:
        raise ArgumentError(
            f"The module {module!r} has no {function!r}.",
            hint="MODULE:FUNCTION, where FUNCTION() returns (robot, teleoperator)",
            file=getattr(sys.modules.get(module), "__file__", None),
        ) from error
    except Exception as error:
        raise _failed(name, error) from error
    try:
        made = make()
    except Exception as error:
        raise _failed(name, error) from error
    try:
        machine, teleop = made
    except (TypeError, ValueError):
        raise ArgumentError(
            f"{name} returned {type(made).__name__}, not a robot and a teleoperator.",
            hint=f"{function}() must return (robot, teleoperator)",
        ) from None
    return machine, teleop


def _failed(name: str, error: Exception) -> ArgumentError:
    return ArgumentError(
        f"{name} failed: {type(error).__name__}: {error}",
        hint="--debug shows the traceback",
    )


def _record(
    out: Output,
    folder: Path,
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
        line = _Line(out, recorder, show, episodes)

        def after_frame(turns: int) -> None:
            line.frame(turns)
            if interrupted.is_set():
                events[RERECORD] = events[STOP] = True  # the episode is not whole: discard it

        flagged = _to_record_again(folder)

        def saved(report: EpisodeReport) -> None:
            nonlocal flagged
            line.replace_by(str(report))
            before, flagged = flagged, _to_record_again(folder)
            if flagged != before:
                out.note(_flagged(flagged))

        return record_episodes(
            machine,
            teleop,
            recorder,
            episodes=episodes,
            episode_time_s=episode_time,
            reset_time_s=reset_time,
            events=events,
            on_frame=after_frame,
            on_saved=saved,
            on_discarded=lambda frames: line.replace_by(f"discarded {count(frames, 'frame')}"),
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

    def __init__(self, out: Output, recorder: Recorder, show: Any, episodes: int) -> None:
        self._out = out
        self._recorder = recorder
        self._show = show
        self._last = recorder.num_episodes + episodes
        self._begin = self._drawn = time.perf_counter()
        self._late = 0
        self._before: float | None = None

    def replace_by(self, text: str) -> None:
        """Take the line away, of an episode that is over, and say something instead."""
        self._show("")
        self._out.note(text)

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
    if not out.can_redraw:
        yield lambda text: None
        return
    from rich.live import Live
    from rich.text import Text

    with Live(console=console(sys.stderr), transient=True, auto_refresh=False) as live:
        # One line: a second would be left behind where the terminal is made narrower.
        yield lambda text: live.update(Text(text, no_wrap=True, overflow="ellipsis"), refresh=True)


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
    out.line(f"would record {count(episodes, 'episode')} to {path} as {layout}, at {fps:g} fps")
    for key, feature in info.features.items():
        out.line(f"  {key}: {feature.dtype} {list(feature.shape)}")


def _to_record_again(folder: Path) -> list[int]:
    """Return the episodes that were flagged in ``demoreel view`` to be recorded again."""
    import demoreel
    from demoreel.view.draft import to_record_again

    return to_record_again(os.path.abspath(folder), lambda: demoreel.open(folder).episodes)


def _flagged(episodes: list[int]) -> str:
    if not episodes:
        return "no episode is to be recorded again"
    return f"to be recorded again, by the viewer: {', '.join(map(str, episodes))}"


def _show_result(out: Output, path: Path, recorder: Recorder, reports: list[EpisodeReport]) -> None:
    flagged = _to_record_again(path)
    if out.json:
        out.result(
            {
                "path": str(path),
                "episodes": recorder.num_episodes,
                "frames": recorder.num_frames,
                "saved": [report.to_json() for report in reports],
                "record_again": flagged,
            }
        )
        return
    if flagged:
        out.note(_flagged(flagged))
    frames = sum(report.frames for report in reports)
    together = " together" if len(reports) > 1 else ""
    said = f"{count(len(reports), 'episode')}, {count(frames, 'frame')}{together}"
    out.line(f"{said}, saved in {path}")


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
