"""``demoreel stats``: what the numbers and images of a dataset are like."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from demoreel.cli.options import DatasetPath, DryRun, name_of_place, only_here
from demoreel.cli.output import Output, TableColumn
from demoreel.errors import ArgumentError, MetadataError, UnfinishedError, count
from demoreel.storage.store import is_uri

if TYPE_CHECKING:
    from demoreel.layouts.base import Reader
    from demoreel.layouts.pending import PendingReader
    from demoreel.model import Feature
    from demoreel.stats.recompute import Recomputed

_SHOWN = ("min", "max", "mean", "std", "q01", "q50", "q99")
_CHANNELS = ("red", "green", "blue")


def stats(
    out: Output,
    path: DatasetPath,
    episode: Annotated[
        int | None, typer.Option("--episode", "-e", metavar="N", help="Of this one.")
    ] = None,
    recompute: Annotated[
        bool, typer.Option("--recompute", help="Compute all from the data, and keep them.")
    ] = False,
    pictures: Annotated[
        bool, typer.Option("--pictures/--no-pictures", help="Whether to decode images for that.")
    ] = True,
    missing: Annotated[
        bool, typer.Option("--missing", help="Decode only what was never counted before.")
    ] = False,
    jobs: Annotated[
        int | None,
        typer.Option(
            "--jobs",
            "-j",
            min=1,
            metavar="N",
            help="Threads that decode.",
            show_default="all cores",
        ),
    ] = None,
    dry_run: DryRun = False,
) -> None:
    """Show a dataset's statistics, or recompute them.

    Showing reads the metadata only; what is not exact is marked with ~. Computing reads all numbers
    and decodes all images, and replaces the statistics in one step.
    """
    if recompute:
        _recompute(
            out, path, "none" if not pictures else "missing" if missing else "all", jobs, dry_run
        )
        return
    if dry_run or missing or not pictures or jobs is not None:
        raise ArgumentError("These options go with --recompute.", hint="demoreel stats --help")
    import demoreel

    facts = describe(demoreel.open(path).reader, episode, path)
    if out.json:
        out.result(facts)
    else:
        _show(out, facts)


def describe(reader: Reader, episode: int | None, path: str) -> dict[str, Any]:
    """Return a dataset's statistics, or those of an episode, and which of them are approximate."""
    from demoreel.layouts.beside import approximate_stats
    from demoreel.layouts.pending import PendingReader
    from demoreel.model import stats_to_json
    from demoreel.stats.files import episode_approximate, episode_stats, quiet_stats

    waiting = 0
    if isinstance(reader, PendingReader):
        waiting = len(reader.waiting.episodes)
        _refuse_uncounted(reader, episode)
    if episode is None:
        found = quiet_stats(reader)
        approximate = approximate_stats(reader.meta, reader.info.features, found or {})
    else:
        position = reader.episodes.position_of(episode)
        found = episode_stats(reader, position)
        approximate = episode_approximate(reader, position, found or {})
    if found is None:
        raise MetadataError(
            "The dataset has no statistics."
            if episode is None
            else "The dataset has no statistics of single episodes.",
            hint=None if is_uri(path) else f"demoreel stats {path} --recompute",
            dataset=reader.root,
            episode=episode,
        )
    features = reader.info.features
    return {
        "path": path,
        "layout": reader.layout,
        "episode": episode,
        "episodes": len(reader.episodes),
        "frames": reader.episodes.total_frames,
        "stats": stats_to_json(found),
        "dimensions": {
            key: _dimensions(features.get(key), int(found[key]["mean"].size))
            for key in dict.fromkeys((*features, *found))
            if "mean" in found.get(key, {})
        },
        "approximate": approximate,
        "waiting": waiting,
    }


def _refuse_uncounted(reader: PendingReader, episode: int | None) -> None:
    """Refuse to show what is counted only when saved episodes are committed."""
    from demoreel.layouts.pending import finish_command

    position = 0 if episode is None else reader.episodes.position_of(episode)
    if position >= reader.committed:
        raise UnfinishedError(
            "The episode waits to be encoded; its statistics are made when it is committed."
            if episode is not None
            else "All episodes wait to be encoded; statistics are made when they are committed.",
            hint=finish_command(reader.root),
            dataset=reader.root,
            episode=episode,
        )


def _dimensions(feature: Feature | None, size: int) -> list[str]:
    """Return a name for each dimension; its number where it has none."""
    from demoreel.model.feature import flat_names

    if feature is not None and feature.is_camera:
        names = ["depth"] if feature.is_depth else list(_CHANNELS)
    else:
        names = flat_names(feature.names) if feature is not None and feature.names else []
    if len(names) != size:
        names = [str(number) for number in range(size)]
    return names if size > 1 or (feature is not None and feature.is_camera) else [""]


def _show(out: Output, facts: dict[str, Any]) -> None:
    size = f"{count(facts['episodes'], 'episode')}, {count(facts['frames'], 'frame')}"
    of = size if facts["episode"] is None else f"episode {facts['episode']}"
    out.line(f"{name_of_place(facts['path'])}: {of}", style="bold")
    columns = [
        TableColumn("feature"),
        TableColumn(""),
        *(TableColumn(kind, right=True) for kind in _SHOWN),
    ]
    out.table(columns, _rows(facts))
    if facts["waiting"] and facts["episode"] is None:
        saved = count(facts["waiting"], "saved episode")
        out.note(f"{saved} not counted before demoreel finish {facts['path']}")
    if facts["approximate"]:
        out.line()
        exact = f"; demoreel stats {facts['path']} --recompute makes it exact"
        out.line(f"~ approximate{'' if is_uri(facts['path']) else exact}")


def _rows(facts: dict[str, Any]) -> list[list[str]]:
    rows = []
    for key, names in facts["dimensions"].items():
        kinds = {kind: _flat(value) for kind, value in facts["stats"][key].items()}
        unsure = facts["approximate"].get(key, ())
        for number, name in enumerate(names):
            cells = [_cell(kinds.get(kind), number, approximate=kind in unsure) for kind in _SHOWN]
            rows.append([key if number == 0 else "", name, *cells])
    return rows


def _flat(value: Any) -> list[Any]:
    return (
        [number for part in value for number in _flat(part)] if isinstance(value, list) else [value]
    )


def _cell(values: list[Any] | None, number: int, *, approximate: bool) -> str:
    if values is None or number >= len(values):
        return ""
    return f"{'~' if approximate else ''}{float(values[number]):.6g}"


def _recompute(out: Output, path: str, pictures: Any, jobs: int | None, dry_run: bool) -> None:
    from demoreel.stats.recompute import recompute

    only_here(path, "Computing statistics in their place")
    with out.progress(f"computing statistics of {name_of_place(path)}") as report:
        done = recompute(path, pictures=pictures, threads=jobs, dry_run=dry_run, report=report)
    if out.json:
        out.result(_as_json(done))
        return
    would = "would be " if dry_run else ""
    out.line(f"statistics of {path} {would or 'are '}recomputed")
    out.line(f"  numbers   {count(len(done.features), 'feature')}, {count(done.frames, 'frame')}")
    for key, frames in done.cameras.items():
        out.line(f"  images  {key}: {count(frames, 'frame')} {would}decoded")
    for key in done.left_out:
        out.note(f"{key} stays as it was: depth in fractions cannot be counted by level")
    for name in done.files:
        out.line(f"  {'file' if dry_run else 'written':<9} {name}")


def _as_json(done: Recomputed) -> dict[str, Any]:
    return {
        "path": str(done.path),
        "layout": done.layout,
        "episodes": done.episodes,
        "frames": done.frames,
        "features": done.features,
        "cameras": done.cameras,
        "left_out": done.left_out,
        "files": done.files,
        "committed": done.committed,
    }
