"""``demoreel pull``: a dataset from the Hub, or from an object store."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from demoreel.cli.options import episode_numbers
from demoreel.cli.output import Output, size
from demoreel.errors import count

if TYPE_CHECKING:
    from demoreel.hub.pull import Pulled


def pull(
    out: Output,
    source: Annotated[
        str, typer.Argument(metavar="REPO", help="E.g. me/my_task, or s3://bucket/name.")
    ],
    target: Annotated[
        Path,
        typer.Argument(metavar="TARGET", help="The folder to make, or one that was pulled before."),
    ],
    *,
    revision: Annotated[
        str | None,
        typer.Option(
            "--revision",
            metavar="NAME",
            help="A tag, a branch or a commit; left out, the newest version that can be read.",
        ),
    ] = None,
    episodes: Annotated[
        str | None,
        typer.Option(
            "--episodes",
            "-e",
            metavar="LIST",
            help="Make a dataset of these only, e.g. 3,40,77 or 0:10,90.",
        ),
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace the dataset at TARGET, whatever it is.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would be fetched, and write nothing.")
    ] = False,
) -> None:
    """Fetch a dataset from the Hub or an object store to a folder.

    TARGET appears whole and verified, or not at all. After a kill the same command continues where
    it was. A folder that was pulled before is updated, unless it was changed.
    """
    import demoreel

    chosen = None if episodes is None else episode_numbers(episodes)
    with out.progress("fetching") as show:
        done = demoreel.pull(
            source,
            target,
            revision=revision,
            episodes=chosen,
            overwrite=overwrite,
            dry_run=dry_run,
            report=show,
        )
    if out.json:
        out.result(done.to_json())
    else:
        _tell(out, done)


def _tell(out: Output, done: Pulled) -> None:
    commit = done.commit[:7]
    taken = commit if done.revision == done.commit else f"{done.revision} ({commit})"
    if done.was_up_to_date:
        out.note(f"{done.target} is {done.repo_id} at {taken} already")
        return
    of_it = "" if done.episodes is None else f"{count(len(done.episodes), 'episode')} of "
    did = "would pull" if done.dry_run else "pulled"
    out.note(f"{did} {of_it}{done.repo_id} at {taken} to {done.target}")
    fetched = f"{count(done.fetched_files, 'file')} ({size(done.fetched_bytes)})"
    rest = done.files - done.fetched_files
    here = f"; {count(rest, 'file')} had been here" if rest else ""
    out.note(f"{fetched} {'would be' if done.dry_run else 'were'} fetched{here}")
