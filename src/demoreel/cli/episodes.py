"""``demoreel episodes``: a table of the episodes."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from demoreel.cli.options import DatasetPath
from demoreel.cli.output import Output, TableColumn
from demoreel.errors import json_text

if TYPE_CHECKING:
    from demoreel.model import Episode
    from demoreel.read.dataset import Dataset

_SHOWN_IN_A_TERMINAL = 40
_TASK_WIDTH = 40


def episodes(
    out: Output,
    path: DatasetPath,
    limit: Annotated[
        int | None,
        typer.Option(
            "--limit",
            "-n",
            min=0,
            metavar="N",
            help=f"Show N episodes, 0 for all. By default {_SHOWN_IN_A_TERMINAL} in a terminal, "
            "else all.",
        ),
    ] = None,
) -> None:
    """List the episodes: length, task and files of each.

    Those that the viewer's draft asks to be recorded again are named at the end. Rows are printed
    while they are read. A pipe gets cells separated by tabs.
    """
    import demoreel
    from demoreel.view.draft import to_record_again

    dataset = demoreel.open(path)
    again = to_record_again(dataset.uri or os.path.abspath(dataset.root), lambda: dataset.episodes)
    if limit is None and out.is_terminal and not out.json:
        limit = _SHOWN_IN_A_TERMINAL
    shown = itertools.islice(dataset.episodes, limit or None)
    if out.json:
        _print_json(dataset, shown, again)
        return
    out.stream(_columns(dataset), (_row(episode, dataset.fps) for episode in shown))
    hidden = len(dataset.episodes) - (limit or len(dataset.episodes))
    if hidden > 0:
        out.note(f"and {hidden:,} more; --limit 0 shows all")
    if again:
        out.note(f"to be recorded again: {', '.join(map(str, again))}")


def _columns(dataset: Dataset) -> list[TableColumn]:
    """Return columns as wide as their widest cell will be."""
    every = dataset.episodes
    longest = float(every.length.max()) / dataset.fps
    task = max((len(text) for text in dataset.tasks.values()), default=4)
    return [
        TableColumn("episode", right=True, width=max(7, len(str(every.episode_index.max())))),
        TableColumn("frames", right=True, width=max(6, len(str(every.length.max())))),
        TableColumn("seconds", right=True, width=max(7, len(f"{longest:.2f}"))),
        TableColumn("task", width=min(max(task, 4), _TASK_WIDTH)),
        TableColumn("files"),
    ]


def _row(episode: Episode, fps: float) -> tuple[str, ...]:
    files = [episode.data_file or "", *episode.video_files.values()]
    return (
        str(episode.index),
        str(episode.length),
        f"{episode.length / fps:.2f}",
        "; ".join(map(str, episode.tasks)),
        ", ".join(files),
    )


def _print_json(dataset: Dataset, shown: Iterator[Episode], again: list[int]) -> None:
    """Print one object, an episode at a time: the whole text may be larger than memory."""
    head = {"path": dataset.uri or str(dataset.root), "total": len(dataset.episodes)}
    print(json_text(head)[:-1] + ', "episodes": [', end="")
    separator = "\n  "
    for episode in shown:
        facts = json_text({**_facts(episode, dataset.fps), "record_again": episode.index in again})
        print(separator, facts, end="", sep="")
        separator = ",\n  "
    print("\n]}")


def _facts(episode: Episode, fps: float) -> dict[str, Any]:
    return {
        "episode": episode.index,
        "frames": episode.length,
        "seconds": episode.length / fps,
        "first_frame": episode.start,
        "tasks": list(episode.tasks),
        "data_file": episode.data_file,
        "video_files": dict(episode.video_files),
    }
