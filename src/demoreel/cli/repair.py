"""``demoreel repair``: copy what is intact, repair what can be repaired, report the rest."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from demoreel.cli.options import DatasetPath, DryRun, Staging, TargetOrNone
from demoreel.cli.output import Output
from demoreel.errors import count

if TYPE_CHECKING:
    from demoreel.repair.report import Repaired

_SHOWN = 20


def repair(
    out: Output,
    path: DatasetPath,
    target: TargetOrNone = None,
    in_place: Annotated[
        bool,
        typer.Option("--in-place", help="Put the result in PATH's place, which becomes PATH_old."),
    ] = False,
    deep: Annotated[
        bool, typer.Option("--deep", help="Decode every frame; leave out what does not decode.")
    ] = False,
    picture_stats: Annotated[
        bool,
        typer.Option(
            "--picture-stats/--no-picture-stats",
            help="Decode frames to recompute statistics that are lost.",
        ),
    ] = True,
    drop_audio: Annotated[
        bool, typer.Option("--drop-audio", help="Leave out the audio of videos.")
    ] = False,
    drop_camera: Annotated[
        list[str] | None,
        typer.Option(
            "--drop-camera", metavar="NAME", help="Leave out this camera; may be repeated."
        ),
    ] = None,
    drop_episodes: Annotated[
        bool, typer.Option("--drop-episodes", help="Leave out episodes that cannot be kept.")
    ] = False,
    dry_run: DryRun = False,
    staging: Staging = None,
) -> None:
    """Repair a dataset: rebuild metadata, recover episodes, take in added files.

    PATH is only read unless --in-place. Nothing is left out unless asked for. Ends with 0 if the
    result passes `demoreel check` and has all episodes and cameras, else with 1.
    """
    import demoreel

    with out.progress("repairing") as report:
        done = demoreel.repair(
            path,
            target,
            deep=deep,
            picture_stats=picture_stats,
            drop_audio=drop_audio,
            drop_cameras=drop_camera or (),
            drop_episodes=drop_episodes,
            in_place=in_place,
            dry_run=dry_run,
            report=report,
        )
    if out.json:
        out.result(done.to_json())
    else:
        _show(out, done, target or path)
    is_well = done.target is None or done.is_clean
    raise typer.Exit(0 if is_well and done.is_whole else 1)


def _show(out: Output, done: Repaired, target: str) -> None:
    from demoreel.check.report import extent_of
    from demoreel.repair.report import examples, reasons

    kept = f"{count(done.episodes, 'episode')}, {count(done.frames, 'frame')}"
    if done.target is None:
        out.line(f"{kept} can be kept")
    elif done.copied:
        out.line(f"{target}: {kept}; {count(done.copied, 'file')} copied unchanged")
    else:
        out.line(f"{target}: {kept}; rows and video packets copied to new files")
    is_plan = done.target is None
    if not done.changes and done.is_whole and (is_plan or done.is_clean):
        out.line("  nothing needed repair")
    _list(out, "to repair" if is_plan else "repaired", list(done.changes))
    _list(out, "to lose" if is_plan else "lost", reasons(done.lost))
    if done.cameras_lost:
        _list(out, "to lose" if is_plan else "lost", [f"camera {c}" for c in done.cameras_lost])
    _list(out, "to lose" if is_plan else "lost", list(done.frames_lost))
    if done.absent:
        _list(out, "not there", [f"{count(len(done.absent), 'file')} ({examples(done.absent)})"])
    _list(out, "not readable", list(done.unreadable))
    _list(out, "dropped", list(done.dropped))
    if done.after is not None and not done.is_clean:
        wrong = [
            f"{group.code.name}: {group.code.title}" + (f" ({extent})" if extent else "")
            for group in done.after.groups()
            for extent in [extent_of(group, done.episodes)]
            if group.code.severity != "hint"
        ]
        _list(out, "still wrong", wrong)


def _list(out: Output, title: str, lines: list[str]) -> None:
    for line in lines[:_SHOWN]:
        out.line(f"  {title}: {line}")
    if len(lines) > _SHOWN:
        out.line(f"  {title}: and {len(lines) - _SHOWN} more")
