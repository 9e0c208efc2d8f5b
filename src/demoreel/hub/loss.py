"""Whether a push would delete something that others have put on the Hub.

What this machine remembers decides first (``records``): if the dataset's files there are what this
folder was pushed to or pulled from, all that differs was done here. Else, and where nothing is
remembered, episodes decide: each of those on the Hub must be here, by its length, its tasks and the
statistics of its numbers, wherever it stands. So a folder that was copied and grew, or was
converted, may be pushed; one that lacks what another machine has recorded may not.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from demoreel.errors import DemoreelError, MetadataError, NewerRemoteError, count, refuse_shortage
from demoreel.hub.plan import is_content, is_of_a_dataset
from demoreel.hub.records import KnownCommit
from demoreel.hub.repository import Repository, RepositoryState
from demoreel.layouts.base import Reader
from demoreel.layouts.detect import open_reader
from demoreel.storage.json_files import read_json, read_json_lines
from demoreel.storage.parquet import open_parquet
from demoreel.storage.scratch import scratch_folder

_SHOWN = 8
_DIGITS = 5  # of statistics, which programs round and store in their own ways
_FORCE = (
    "demoreel pull it beside this one and join them; or push with force, and what it has is lost"
)

Mark = tuple[Any, ...]
"""What an episode is known by."""


@dataclass(frozen=True, slots=True)
class EpisodeMarks:
    """The episodes of a dataset, by what each is known by, in their order."""

    marks: tuple[Mark, ...]
    numbers: tuple[int, ...]
    frames: int


def refuse_loss(
    root: Path,
    reader: Reader,
    repository: Repository,
    state: RepositoryState,
    same: Iterable[str],
    known: KnownCommit | None,
) -> None:
    """Refuse to push where something would be lost that is not known here.

    Cost: none where what is remembered tells. Else the metadata on the Hub are fetched.

    Args:
        root: The dataset's folder.
        reader: The dataset.
        repository: Where it is to go.
        state: What is there.
        same: Files that are there with the same bytes.
        known: What is remembered of the repository.
    """
    there = {name for name in state.files if is_of_a_dataset(name)}
    alike = set(same)
    if there <= alike:
        return
    changed = None if known is None else _changed_since(known, state)
    if changed is not None and not changed - alike and any(map(is_content, alike)):
        return
    found = _episodes_there(repository, state)
    if found is None:
        if changed is not None and not changed - alike:
            return
        raise NewerRemoteError(
            "The Hub holds a dataset whose episodes cannot be read, so it is not known what "
            "would be lost.",
            hint=_FORCE,
            **_where(root, repository, state, changed or there),
        )
    ours = _episodes_of(reader)
    lost, some_here = _lost(found, ours)
    if changed is not None and not changed - alike and some_here:
        return  # what is gone was taken out here
    if not lost:
        return
    raise NewerRemoteError(
        _what(lost, found, known),
        hint=_FORCE,
        lost=_listed([f"episode {number}" for number in lost]),
        on_the_hub=f"{count(len(found.marks), 'episode')}, {count(found.frames, 'frame')}",
        here=f"{count(len(ours.marks), 'episode')}, {count(ours.frames, 'frame')}",
        **_where(root, repository, state, changed),
    )


def _what(lost: list[int], found: EpisodeMarks, known: KnownCommit | None) -> str:
    several = f"{len(lost)} episodes are" if len(lost) > 1 else "An episode is"
    if len(lost) == len(found.marks):
        return "The repository holds another dataset: none of its episodes is in this folder."
    since = ", and came there after this folder was last pushed or pulled" if known else ""
    return f"{several} on the Hub and not in this folder{since}."


def _where(
    root: Path, repository: Repository, state: RepositoryState, files: Iterable[str] | None
) -> dict[str, object]:
    return {
        "repository": f"{repository.repo_id} ({repository.branch}, {(state.head or '')[:7]})",
        "changed_there": _listed(sorted(files)) if files else None,
        "dataset": root,
    }


def _changed_since(known: KnownCommit, state: RepositoryState) -> set[str]:
    """Return the dataset's files that are not what they were at the remembered commit."""
    before = {name: value for name, value in known.files.items() if is_of_a_dataset(name)}
    now = {name: file.digest for name, file in state.files.items() if is_of_a_dataset(name)}
    return {name for name in before.keys() | now.keys() if before.get(name) != now.get(name)}


def _lost(theirs: EpisodeMarks, ours: EpisodeMarks) -> tuple[list[int], bool]:
    """Return which of their episodes are not among ours, and whether any is."""
    if not all(mark[2:] for mark in (*theirs.marks, *ours.marks)):
        theirs, ours = _without_statistics(theirs), _without_statistics(ours)
    left = Counter(ours.marks)
    lost = []
    for mark, number in zip(theirs.marks, theirs.numbers, strict=True):
        if left[mark]:
            left[mark] -= 1
        else:
            lost.append(number)
    return lost, len(lost) < len(theirs.marks)


def _without_statistics(episodes: EpisodeMarks) -> EpisodeMarks:
    return EpisodeMarks(
        tuple(mark[:2] for mark in episodes.marks), episodes.numbers, episodes.frames
    )


def _episodes_there(repository: Repository, state: RepositoryState) -> EpisodeMarks | None:
    """Return the episodes of the dataset on the Hub; None where they cannot be read."""
    names = [
        name
        for name in state.files
        if name.startswith("meta/") and not name.startswith("meta/demoreel/")
    ]
    if "meta/info.json" not in names or state.head is None:
        return None
    with scratch_folder() as folder:
        repository.fetch(state, names, folder)
        try:
            info = read_json(folder / "meta" / "info.json")
            if isinstance(info, dict) and not info.get("total_episodes"):
                return EpisodeMarks((), (), 0)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                return _episodes_of(open_reader(_as_plain(folder, info)))
        except DemoreelError as error:
            refuse_shortage(error)
            return None


def _as_plain(folder: Path, info: Any) -> Path:
    """Let metadata of a Lance dataset be read without its tables: they are those of v3.0."""
    if isinstance(info, dict) and "storage_format" in info:
        import json

        plain = {key: value for key, value in info.items() if key != "storage_format"}
        (folder / "meta" / "info.json").write_text(json.dumps(plain))
    return folder


def _episodes_of(reader: Reader) -> EpisodeMarks:
    episodes = reader.episodes
    numbers = [int(number) for number in episodes.episode_index]
    said = _statistics(reader)
    marks = tuple(
        (episode.length, tuple(sorted(episode.tasks)), *said.get(episode.index, ()))
        for episode in episodes
    )
    return EpisodeMarks(marks, tuple(numbers), episodes.total_frames)


def _statistics(reader: Reader) -> dict[int, tuple[Any, ...]]:
    """Return for each episode what the metadata say of its numbers: means, by feature."""
    keys = [key for key in ("action", "observation.state") if key in reader.info.features]
    if reader.info.version.startswith("v2"):
        path = reader.meta / "episodes_stats.jsonl"
        lines = read_json_lines(path) if path.exists() else []
        return {
            int(line.get("episode_index", -1)): _rounded(
                [(line.get("stats") or {}).get(key, {}).get("mean") for key in keys]
            )
            for line in lines
        }
    found = {}
    for path in sorted((reader.meta / "episodes").glob("*/*.parquet")):
        with open_parquet(path, kind=MetadataError) as parquet:
            names = [f"stats/{key}/mean" for key in keys]
            names = [name for name in names if name in parquet.schema_arrow.names]
            for row in parquet.read(["episode_index", *names]).to_pylist():
                found[int(row["episode_index"])] = _rounded([row[name] for name in names])
    return found


def _rounded(values: list[Any]) -> tuple[Any, ...]:
    given = [np.ravel(np.array(value, np.float64)) for value in values if value is not None]
    return tuple(tuple(float(f"{x:.{_DIGITS}g}") for x in numbers) for numbers in given)


def _listed(names: list[str]) -> str:
    rest = len(names) - _SHOWN
    return ", ".join(names[:_SHOWN]) + (f" and {rest} more" if rest > 0 else "")
