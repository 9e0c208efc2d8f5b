"""Which episodes can be kept, how much of each, and where their images lie."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from demoreel.check.look import Usable
from demoreel.errors import VideoError
from demoreel.layouts.spans import Spans, resolve_spans
from demoreel.media.video import open_video
from demoreel.repair.tables import FoundTable, RowRun
from demoreel.repair.videos import FoundVideo, Place, RepairVideos


@dataclass(frozen=True, slots=True)
class Spot:
    """Where images lie.

    Attributes:
        place: The video.
        first: Its frame that is the episode's first.
        step: From one of the episode's frames to the next.
        frames: How many of the episode's frames are there.
    """

    place: Place
    first: int
    step: int
    frames: int


class Placing:
    """Finds episodes in videos.

    Metadata hold where they agree with the video (``layouts/spans.py``). Where they say
    nothing, or something impossible, an episode is looked for where it must be: behind the one
    before it. It is taken only if a GOP begins there, as episodes are encoded one by
    one.

    Args:
        videos: The videos.
        listed: The episodes as the metadata know them.
        fps: Frames per second.
        is_v2: Whether every episode has videos of its own.
        rows: How many rows each episode has.
    """

    def __init__(
        self,
        videos: RepairVideos,
        listed: Usable | None,
        *,
        fps: float,
        is_v2: bool,
        rows: Mapping[int, int],
    ) -> None:
        self._videos = videos
        self._rows = rows
        self._listed = listed
        self._fps = fps
        self._is_v2 = is_v2
        self._known = {camera: self._from_metadata(camera) for camera in videos.of}
        self._next: dict[str, tuple[Place, int] | None] = dict.fromkeys(videos.of, ((0, 0), 0))
        self._follows = (0, 0)

    def spots_of(self, episode: int, length: int, index: int | None) -> dict[str, Spot | str]:
        """Return where an episode lies for each camera that has videos; why not, where it does not.

        Must be called for one episode after the other, in their order.

        Args:
            episode: Its ``episode_index``.
            length: How many rows it has.
            index: The ``index`` of its first row; None if that is not known. Where it does not
                follow on the episode before, rows are missing there, and nothing says how many
                images are theirs.
        """
        found: dict[str, Spot | str] = {}
        if index is None or (episode, index) != self._follows:
            self._next = dict.fromkeys(self._videos.of)
        self._follows = (episode + 1, -1 if index is None else index + length)
        for camera, videos in self._videos.of.items():
            if not videos:
                continue
            spot = self._spot(camera, videos, episode, length)
            found[camera] = spot
            is_whole = isinstance(spot, Spot) and spot.frames == length
            self._next[camera] = _end_of(spot) if isinstance(spot, Spot) and is_whole else None
        return found

    def _spot(
        self, camera: str, videos: Mapping[Place, FoundVideo], episode: int, length: int
    ) -> Spot | str:
        if self._is_v2:
            video = videos.get((0, episode))
            if video is None:
                return "it has no video that opens"
            return Spot((0, episode), 0, 1, min(length, video.frames))
        known, before = self._known[camera].get(episode), self._next[camera]
        if known is None:
            return self._behind(camera, videos, length)
        if before is not None and known.place == before[0] and known.first < before[1]:
            return self._behind(camera, videos, length)  # the one before has these frames already
        return known

    def _from_metadata(self, camera: str) -> dict[int, Spot]:
        """Return the episodes that the metadata and the videos agree on."""
        listed, videos = self._listed, self._videos.of[camera]
        names = [f"videos/{camera}/{n}" for n in ("chunk_index", "file_index", "from_timestamp")]
        if self._is_v2 or listed is None or any(name not in listed.columns for name in names):
            return {}
        chunk, file, begin = (listed.columns[name] for name in names)
        found: dict[int, Spot] = {}
        for place, video in videos.items():
            own = np.flatnonzero((chunk == place[0]) & (file == place[1]) & np.isfinite(begin))
            if not len(own):
                continue
            length, spans = self._best_spans(listed, own, begin[own], video)
            for number, position in enumerate(own.tolist()):
                first = int(spans.first[number])
                if first < 0:
                    first = self._cut_short(int(length[number]), float(begin[position]), video)
                if first < 0:
                    continue
                there = (video.frames - first + spans.step - 1) // spans.step
                frames = min(int(length[number]), there)
                if frames > 0:
                    spot = Spot(place, first, spans.step, frames)
                    found[int(listed.index[position])] = spot
        return found

    def _best_spans(
        self, listed: Usable, own: np.ndarray, begin: np.ndarray, video: FoundVideo
    ) -> tuple[np.ndarray, Spans]:
        """Return what lengths, the metadata's or the rows', fit the video better, and where to."""
        said = listed.length[own]
        counted = [
            self._rows.get(e, n) for e, n in zip(listed.index[own].tolist(), said, strict=True)
        ]
        tried = []
        for length in (said, np.array(counted, np.int64)):
            spans = resolve_spans(
                length=length,
                from_timestamp=begin,
                to_timestamp=None,
                seconds=video.seconds,
                fps=self._fps,
            )
            tried.append((length, spans))
        return min(tried, key=lambda pair: len(pair[1].problem))

    def _cut_short(self, length: int, begin: float, video: FoundVideo) -> int:
        """Return the first frame of an episode whose end alone is missing; -1 if that is not it."""
        at = int(np.argmin(np.abs(video.seconds - begin)))
        on_a_frame = abs(float(video.seconds[at]) - begin) < 0.25 / self._fps
        runs_out = at + length > video.frames
        return at if on_a_frame and runs_out and _is_keyframe(video, at) else -1

    def _behind(self, camera: str, videos: Mapping[Place, FoundVideo], length: int) -> Spot | str:
        """Return the frames behind those of the episode before."""
        before = self._next[camera]
        if before is None:
            return (
                "the metadata do not say where its images are, and those of the episode before "
                "are not known either"
            )
        (chunk, number), at = before
        for place, first in (before, ((chunk, number + 1), 0), ((chunk + 1, 0), 0)):
            video = videos.get(place)
            if video is None or (place == before[0] and at == video.frames):
                continue
            if not _is_keyframe(video, first):
                return "the metadata do not say where its images are, and none begin where it must"
            fits = first + length <= video.frames
            return Spot(place, first, 1, length) if fits else "its images are missing"
        return "its images are missing"


def _end_of(spot: Spot) -> tuple[Place, int]:
    return spot.place, spot.first + spot.step * spot.frames


def _is_keyframe(video: FoundVideo, frame: int) -> bool:
    try:
        index = open_video(video.path).index
    except VideoError:
        return False
    packet = int(index.packet_of[frame])
    return int(index.start_of[packet]) == packet


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
