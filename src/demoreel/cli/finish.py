"""``demoreel finish``: put in place what writers that were killed have left."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import typer

from demoreel.cli.options import DatasetPath, DryRun, name_of_place, only_here
from demoreel.cli.output import Output
from demoreel.errors import count

if TYPE_CHECKING:
    from demoreel.record.finish import Finished


def finish(
    out: Output,
    path: DatasetPath,
    dry_run: DryRun = False,
) -> None:
    """Complete what a killed recorder has left: encode, commit.

    Saved episodes are encoded and committed, and a commit that was interrupted is completed.
    Recording again does the same; reading does not. Ends with 1 where a saved episode could not be
    committed: it is kept as it is.
    """
    import demoreel

    only_here(path, "Finishing a recording")
    with out.progress(f"finishing {name_of_place(path)}") as report:
        done = demoreel.finish(path, dry_run=dry_run, report=report)
    if out.json:
        out.result(_as_json(done))
    else:
        _show(out, done)
    raise typer.Exit(1 if done.kept else 0)


def _show(out: Output, done: Finished) -> None:
    would = "would be " if done.dry_run else ""
    if done.completed:
        out.line(f"a commit that was interrupted {would or 'is '}completed")
    for episode in done.episodes:
        out.line(
            f"episode {episode.episode_index}: {count(episode.frames, 'frame')} {would}"
            f"encoded and committed"
        )
    for each in done.kept:
        out.line(f"kept unchanged: {each.folder}: {each.why}")
    if not (done.completed or done.episodes or done.kept):
        out.line("nothing to finish")


def _as_json(done: Finished) -> dict[str, Any]:
    return {
        "path": str(done.path),
        "dry_run": done.dry_run,
        "completed": done.completed,
        "episodes": [
            {"episode_index": episode.episode_index, "frames": episode.frames}
            for episode in done.episodes
        ],
        "kept": [{"folder": str(each.folder), "why": each.why} for each in done.kept],
    }
