"""``demoreel versions``, ``tag`` and ``checkout``: going back in a Lance dataset."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from demoreel.cli.options import DatasetPath, only_here
from demoreel.cli.output import Output, TableColumn
from demoreel.errors import count

if TYPE_CHECKING:
    from demoreel.edit.in_place.versions import Version

_COLUMNS = [
    TableColumn("version", right=True),
    TableColumn("time"),
    TableColumn("episodes", right=True),
    TableColumn("frames", right=True),
    TableColumn("tags"),
    TableColumn("done"),
]


def versions(out: Output, path: DatasetPath) -> None:
    """List the versions of a Lance dataset, oldest first."""
    from demoreel.edit.in_place.versions import versions as listed

    only_here(path, "Listing versions")
    found = listed(path)
    if out.json:
        out.result({"path": path, "versions": [_facts(version) for version in found]})
        return
    out.table(_COLUMNS, [_row(version) for version in found])


def tag(
    out: Output,
    path: DatasetPath,
    name: Annotated[str, typer.Argument(metavar="NAME", help="E.g. before-trim.")],
    version: Annotated[
        int | None,
        typer.Option("--version", metavar="N", help="The version; by default the newest."),
    ] = None,
    delete: Annotated[bool, typer.Option("--delete", help="Remove the name.")] = False,
) -> None:
    """Give a version of a Lance dataset a name.

    A version with a name is not removed when old ones are.
    """
    from demoreel.edit.in_place.versions import tag as named

    only_here(path, "Naming a version")
    number = named(path, name, version=version, delete=delete)
    if out.json:
        out.result({"path": path, "tag": name, "version": number, "deleted": delete})
    elif not out.silent:
        out.line(f"version {number} is {'no longer ' if delete else ''}called {name}")


def checkout(
    out: Output,
    path: DatasetPath,
    version: Annotated[
        str, typer.Argument(metavar="VERSION|TAG", help="The version, or its name.")
    ],
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would change, and write nothing.")
    ] = False,
) -> None:
    """Restore an earlier version of a Lance dataset, as a new one.

    No version is removed.
    """
    from demoreel.edit.in_place.versions import checkout as go_back

    only_here(path, "Going back")
    found = go_back(path, version, dry_run=dry_run)
    if out.json:
        out.result({"path": path, "dry_run": dry_run, **_facts(found)})
    elif not out.silent:
        out.line(_said(path, found, dry_run))


def _said(path: str, version: Version, dry_run: bool) -> str:
    known = "" if version.episodes is None else f"{count(version.episodes, 'episode')}, "
    would = "would be" if dry_run else "is"
    frames = count(version.frames, "frame")
    return f"{path} {would} what it was in version {version.number}: {known}{frames}"


def _facts(version: Version) -> dict[str, Any]:
    return {
        "version": version.number,
        "time": version.time.isoformat(),
        "episodes": version.episodes,
        "frames": version.frames,
        "done": version.done,
        "tags": list(version.tags),
    }


def _row(version: Version) -> list[str]:
    return [
        str(version.number),
        version.time.strftime("%Y-%m-%d %H:%M:%S"),
        "?" if version.episodes is None else f"{version.episodes:,}",
        f"{version.frames:,}",
        ", ".join(version.tags) or "-",
        version.done,
    ]
