"""``demoreel push``: a dataset onto the Hub."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from demoreel.cli.options import DatasetPath
from demoreel.cli.output import Output, size
from demoreel.errors import count

if TYPE_CHECKING:
    from demoreel.hub.plan import PushReport


def push(
    out: Output,
    path: DatasetPath,
    repo_id: Annotated[str, typer.Argument(metavar="REPO", help="E.g. me/my_task.")],
    *,
    branch: Annotated[
        str | None, typer.Option("--branch", metavar="NAME", help="main if left out.")
    ] = None,
    private: Annotated[
        bool | None,
        typer.Option(
            "--private/--public",
            help="Who sees a repository that is made; left out, the Hub decides.",
        ),
    ] = None,
    tags: Annotated[
        list[str] | None,
        typer.Option("--tag", metavar="TAG", help="For the card; may be repeated."),
    ] = None,
    license: Annotated[
        str | None,
        typer.Option(
            "--license", metavar="NAME", help="For the card; left out, the card's, or apache-2.0."
        ),
    ] = None,
    tag_version: Annotated[
        bool | None,
        typer.Option(
            "--tag-version/--no-tag-version",
            help="Move the tag of the dataset's version, e.g. v3.0; left out, on main only.",
        ),
    ] = None,
    videos: Annotated[bool, typer.Option("--videos/--no-videos", help="Send videos/, too.")] = True,
    message: Annotated[
        str | None, typer.Option("--message", "-m", metavar="TEXT", help="Of the commit.")
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Push even where episodes on the Hub would be lost.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would be done, and do nothing.")
    ] = False,
) -> None:
    """Publish the dataset at PATH on the Hub, in one commit.

    Files that are there already are not sent; those that the dataset no longer has are deleted.
    After a kill the same command continues where it was. Hidden files never leave the machine.
    """
    import demoreel

    with out.progress("sending") as show:
        report = demoreel.push(
            path,
            repo_id,
            branch=branch,
            private=private,
            tags=tags or (),
            license=license,
            tag_version=tag_version,
            push_videos=videos,
            message=message,
            force=force,
            dry_run=dry_run,
            report=show,
        )
    if out.json:
        out.result(report.to_json())
    elif dry_run:
        _show_plan(out, report)
    else:
        tell_pushed(out, report)


def _show_plan(out: Output, report: PushReport) -> None:
    for name, bytes_ in report.sent.items():
        out.line(f"send    {size(bytes_):>8}  {name}")
    for name in report.deleted:
        out.line(f"delete  {'':>8}  {name}")
    if report.tag is not None:
        out.line(f"tag     {'':>8}  {report.tag}")
    tell_pushed(out, report)


def tell_pushed(out: Output, report: PushReport) -> None:
    """Say what a push did, or would do."""
    if report.created:
        out.note(f"{'would make' if report.dry_run else 'made'} {report.url}")
    if not report.sent and not report.deleted:
        out.note(f"{report.url} holds all {count(report.unchanged, 'file')} already")
    else:
        did = "would send" if report.dry_run else "sent"
        gone = f", deleted {len(report.deleted)}" if report.deleted else ""
        files = f"{count(len(report.sent), 'file')} ({size(report.bytes_sent)})"
        out.note(f"{did} {files}{gone}; {report.unchanged} unchanged")
    for note in report.notes:
        out.note(note)
    if not report.dry_run:
        named = f", {report.tag}" if report.tag else ""
        out.note(f"{report.url} ({report.branch}{named}, {(report.commit or '')[:7]})")
