"""Which episodes can be kept, how much of each, and where their images lie."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from demoreel.check.look import Usable
from demoreel.repair.places import Placing, Spot
from demoreel.repair.tables import FoundTable, RowRun
from demoreel.repair.videos import RepairVideos


@dataclass(frozen=True, slots=True)
class Kept:
    """An episode that can be kept.

    Attributes:
        episode: The ``episode_index`` that it had.
        run: Its rows.
        length: How many of them are kept, from the first on.
        spots: Where its images lie, by camera.
    """

    episode: int
    run: RowRun
    length: int
    spots: Mapping[str, Spot]


@dataclass(frozen=True, slots=True)
class Lost:
    """An episode that cannot be kept.

    Attributes:
        episode: Its ``episode_index``.
        why: Why not, in words.
    """

    episode: int
    why: str


@dataclass
class Decision:
    """What becomes of a dataset's episodes.

    Attributes:
        kept: Those that can be kept, in the order of the tables.
        lost: Those that cannot.
        mended: What was wrong with those that are kept.
    """

    kept: list[Kept] = field(default_factory=list)
    lost: list[Lost] = field(default_factory=list)
    mended: list[str] = field(default_factory=list)


def decide(
    tables: Sequence[FoundTable],
    runs: Sequence[RowRun],
    listed: Usable | None,
    videos: RepairVideos,
    *,
    fps: float,
    is_v2: bool,
    undecodable: Mapping[int, str],
    knows_all: bool,
) -> Decision:
    """Decide for every episode that rows or metadata speak of.

    Args:
        tables: The tables.
        runs: Their spans of rows.
        listed: What the metadata say of episodes, if they say anything.
        videos: The videos.
        fps: Frames per second.
        is_v2: Whether every episode has videos of its own.
        undecodable: Episodes whose images cannot be decoded, and what is wrong with them.
        knows_all: Whether the metadata list every episode there is, so that rows of others are
            leftovers.
    """
    decision = Decision()
    chosen = _chosen_runs(tables, runs, listed, decision, knows_all)
    rows = {run.episode: run.length for run in chosen}
    placing = Placing(videos, listed, fps=fps, is_v2=is_v2, rows=rows)
    in_order = sorted(chosen, key=lambda run: run.episode)
    spots = {
        run.episode: placing.spots_of(run.episode, run.length, _first_index(run, tables))
        for run in in_order
    }
    for run in sorted(chosen, key=lambda run: (run.table, run.first)):
        _settle(run, spots[run.episode], listed, undecodable, decision)
    seen = {run.episode for run in chosen}
    for episode in listed.index.tolist() if listed is not None else ():
        if episode not in seen:
            decision.lost.append(Lost(episode, "no table has its rows"))
    decision.lost.sort(key=lambda lost: lost.episode)
    return decision


def _first_index(run: RowRun, tables: Sequence[FoundTable]) -> int | None:
    index = tables[run.table].numbers.get("index")
    if index is None or not np.isfinite(index[run.first]):
        return None
    return int(index[run.first])


def _chosen_runs(
    tables: Sequence[FoundTable],
    runs: Sequence[RowRun],
    listed: Usable | None,
    decision: Decision,
    knows_all: bool,
) -> list[RowRun]:
    """Choose the rows of each episode: those that the metadata mean, where there are several."""
    by_episode: dict[int, list[RowRun]] = {}
    for run in runs:
        by_episode.setdefault(run.episode, []).append(run)
    chosen, orphans = [], 0
    for episode, found in by_episode.items():
        if knows_all and _position(listed, episode) < 0:
            orphans += sum(run.length for run in found)
            continue
        whole = [run for run in found if run.begins]
        if episode < 0 or not whole:
            rows = sum(run.length for run in found)
            decision.lost.append(Lost(episode, f"its {rows} rows do not begin with its first"))
            continue
        best = max(whole, key=lambda run: _likelihood(run, tables, listed))
        orphans += sum(run.length for run in found) - best.length
        chosen.append(best)
    if orphans:
        decision.mended.append(f"{orphans} rows that no episode needs were left out")
    return chosen


def _likelihood(
    run: RowRun, tables: Sequence[FoundTable], listed: Usable | None
) -> tuple[bool, bool, bool, int]:
    """Order an episode's runs: in the file that is meant, at the place, of the length, long."""
    position = _position(listed, run.episode)
    if listed is None or position < 0:
        return (False, False, False, run.length)
    table = tables[run.table]
    columns = listed.columns

    def said(name: str) -> int | None:
        return int(columns[name][position]) if name in columns else None

    meant = (said("data/chunk_index"), said("data/file_index")) == (table.chunk, table.number)
    begin = said("dataset_from_index")
    at = begin is not None and _first_index(run, tables) == begin
    return (meant, at, int(listed.length[position]) == run.length, run.length)


def _settle(
    run: RowRun,
    spots: Mapping[str, Spot | str],
    listed: Usable | None,
    undecodable: Mapping[int, str],
    decision: Decision,
) -> None:
    episode = run.episode
    missing = {camera: spot for camera, spot in spots.items() if isinstance(spot, str)}
    if missing:
        camera, why = next(iter(missing.items()))
        decision.lost.append(Lost(episode, f"{camera}: {why}"))
        return
    if episode in undecodable:
        decision.lost.append(Lost(episode, undecodable[episode]))
        return
    places = {camera: spot for camera, spot in spots.items() if isinstance(spot, Spot)}
    length = min([run.length, *(spot.frames for spot in places.values())])
    if length < run.length:
        decision.mended.append(
            f"episode {episode}: {run.length - length} rows at its end have no images, and were "
            "left out"
        )
    position = _position(listed, episode)
    if position < 0:
        decision.mended.append(f"episode {episode}: the metadata do not know it; it was added")
    elif listed is not None and int(listed.length[position]) != run.length:
        decision.mended.append(
            f"episode {episode}: it has {run.length} rows, not {int(listed.length[position])}"
        )
    decision.kept.append(Kept(episode, run, length, places))


def _position(listed: Usable | None, episode: int) -> int:
    """Return where an episode stands in the list; -1 if it does not."""
    return -1 if listed is None else int(listed.positions_of(np.array([episode]))[0])
