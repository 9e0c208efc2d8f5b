"""Which episodes can be kept, how much of each, and where their images lie."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from demoreel.check.look import Usable
from demoreel.errors import VideoError
from demoreel.layouts.spans import Spans, resolve_spans
from demoreel.media.video import open_video
from demoreel.repair.report import Changes, Lost
from demoreel.repair.tables import FoundTable, RowRun, SameRows
from demoreel.repair.videos import FoundVideo, Place, RepairVideos

ABSENT = "its video is not there"
DAMAGED = "its video does not open"
NO_FRAMES = "its images are missing"


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
        places: Of v2, where each episode's table lies; its videos lie there, too. Else None.
        rows: How many rows each episode has.
    """

    def __init__(
        self,
        videos: RepairVideos,
        listed: Usable | None,
        *,
        fps: float,
        places: Mapping[int, Place] | None,
        rows: Mapping[int, int],
    ) -> None:
        self._videos = videos
        self._rows = rows
        self._listed = listed
        self._fps = fps
        self._places = places
        self._known = {camera: self._from_metadata(camera) for camera in videos.of}
        self._next: dict[str, tuple[Place, int] | None] = dict.fromkeys(videos.of, ((0, 0), 0))
        self._follows = (0, 0)
        self._used: dict[str, list[Spot]] = {camera: [] for camera in videos.of}

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
            if isinstance(spot, Spot):
                self._used[camera].append(spot)
        return found

    def _spot(
        self, camera: str, videos: Mapping[Place, FoundVideo], episode: int, length: int
    ) -> Spot | str:
        if self._places is not None:
            place = self._videos.episode_place(camera, self._places[episode])
            if place is None:
                is_damaged = self._places[episode] in self._videos.damaged.get(camera, {})
                return DAMAGED if is_damaged else ABSENT
            return Spot(place, 0, 1, min(length, videos[place].frames))
        known, before = self._known[camera].get(episode), self._next[camera]
        if known is None:
            named = self._named(camera, episode)
            if named is not None and named not in videos and before is None:
                return DAMAGED if named in self._videos.damaged.get(camera, {}) else ABSENT
            return self._behind(camera, videos, episode, length)
        if any(_share_frames(known, other) for other in self._used[camera]):
            return self._behind(camera, videos, episode, length)  # another has these frames already
        return known

    def _named(self, camera: str, episode: int) -> Place | None:
        """Return the video that the metadata name for an episode."""
        position = _position(self._listed, episode)
        places = _places(self._listed, camera, self._videos.of[camera])
        if places is None or position < 0:
            return None
        return int(places[0][position]), int(places[1][position])

    def _from_metadata(self, camera: str) -> dict[int, Spot]:
        """Return the episodes that the metadata and the videos agree on."""
        listed, videos = self._listed, self._videos.of[camera]
        places, start = _places(listed, camera, videos), f"videos/{camera}/from_timestamp"
        if self._places is not None or listed is None or places is None:
            return {}
        if start not in listed.columns:
            return {}
        (chunk, file), begin = places, listed.columns[start]
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

    def _behind(
        self, camera: str, videos: Mapping[Place, FoundVideo], episode: int, length: int
    ) -> Spot | str:
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
            if first + length > video.frames:
                return NO_FRAMES
            spot = Spot(place, first, 1, length)
            others = (other for n, other in self._known[camera].items() if n != episode)
            if any(_is_taken(spot, other) for other in others):
                return (
                    "the metadata do not say where its images are, and others begin where it must"
                )
            return spot
        damaged = self._videos.damaged.get(camera, {})
        if (chunk, number) in damaged or (chunk, number + 1) in damaged:
            return DAMAGED
        named = self._named(camera, episode)
        return ABSENT if named is not None and named not in videos else NO_FRAMES


def _is_taken(spot: Spot, other: Spot) -> bool:
    """Whether a spot begins among another's frames, or holds all of them.

    One that begins among this one's frames may be some frames off, and is looked for behind it.
    """
    end, other_end = _end_of(spot)[1], _end_of(other)[1]
    is_inside = other.first <= spot.first < other_end
    return spot.place == other.place and (is_inside or spot.first < other.first < other_end <= end)


def _share_frames(one: Spot, other: Spot) -> bool:
    """Whether two episodes have frames of one video that lie between one another."""
    return (
        one.place == other.place and one.first < _end_of(other)[1] and other.first < _end_of(one)[1]
    )


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


@dataclass
class Decision:
    """What becomes of a dataset's episodes.

    Attributes:
        kept: Those that can be kept, in the order of the tables.
        lost: Those that cannot.
        changes: Takes what was wrong with those that are kept.
        cut: Takes the rows and frames that episodes lose.
        renumbered: Episodes whose number other rows have, with the number that they had.
    """

    changes: Changes
    kept: list[Kept] = field(default_factory=list)
    lost: list[Lost] = field(default_factory=list)
    cut: Changes = field(default_factory=Changes)
    renumbered: dict[int, int] = field(default_factory=dict)


def decide(
    tables: Sequence[FoundTable],
    runs: Sequence[RowRun],
    listed: Usable | None,
    videos: RepairVideos,
    changes: Changes,
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
        changes: Takes what was wrong with episodes that are kept.
        fps: Frames per second.
        is_v2: Whether every episode has a table and videos of its own.
        undecodable: Episodes whose images cannot be decoded, and what is wrong with them.
        knows_all: Whether the metadata list every episode there is.
    """
    decision = Decision(changes)
    chosen = _chosen_runs(tables, runs, listed, decision, knows_all)
    rows = {run.episode: run.length for run in chosen}
    places = {run.episode: (tables[run.table].chunk, tables[run.table].number) for run in chosen}
    placing = Placing(videos, listed, fps=fps, places=places if is_v2 else None, rows=rows)
    in_order = sorted(chosen, key=lambda run: run.episode)
    added = {} if is_v2 else _added_with_videos(tables, chosen, listed, videos, decision)
    spots = {
        run.episode: added.get(run.episode)
        or placing.spots_of(run.episode, run.length, _first_index(run, tables))
        for run in in_order
    }
    if is_v2:
        _refuse_exchanged(spots, rows, videos)
    for run in sorted(chosen, key=lambda run: (run.table, run.first)):
        has_task = "task_index" in tables[run.table].numbers
        _settle(run, spots[run.episode], listed, undecodable, decision, has_task=has_task)
    _note_frames_without_rows(decision, spots, listed, videos, is_v2=is_v2)
    decision.lost = [_with_number(one, tables, chosen, decision) for one in decision.lost]
    seen = {run.episode for run in chosen}
    seen |= {lost.episode for lost in decision.lost}
    for episode in listed.index.tolist() if listed is not None else ():
        if episode not in seen:
            decision.lost.append(Lost(episode, "no table has its rows"))
    decision.lost.sort(key=lambda lost: lost.episode)
    return decision


def _note_frames_without_rows(
    decision: Decision,
    spots: Mapping[int, Mapping[str, Spot | str]],
    listed: Usable | None,
    videos: RepairVideos,
    *,
    is_v2: bool,
) -> None:
    """Note the frames behind episodes that have fewer rows than frames.

    Of v3, frames that no episode has may lie anywhere in a video; only where the metadata count
    more rows than there are, they are the episode's.
    """
    firsts: dict[tuple[str, Place], list[int]] = {}
    for own in spots.values():
        for camera, spot in own.items():
            if isinstance(spot, Spot):
                firsts.setdefault((camera, spot.place), []).append(spot.first)
    for kept in decision.kept:
        position = _position(listed, kept.episode)
        counted = int(listed.length[position]) if listed is not None and position >= 0 else 0
        if kept.length < kept.run.length or not (is_v2 or counted > kept.length):
            continue
        spare = 0
        for camera, spot in kept.spots.items():
            there = videos.of[camera][spot.place].frames
            behind = [n for n in firsts[camera, spot.place] if n > spot.first]
            spare = max(spare, min([there, *behind]) - spot.first - spot.step * kept.length)
        if spare > 0:
            said = "{n} frames at the end have no rows, and were left out"
            decision.cut.add(said, kept.episode, amount=spare)


def _refuse_exchanged(
    spots: Mapping[int, dict[str, Spot | str]], rows: Mapping[int, int], videos: RepairVideos
) -> None:
    """Give up videos of v2 that have another's length: they may lie in each other's places."""
    for camera, films in videos.of.items():
        found = {e: own[camera] for e, own in spots.items() if camera in own}
        frames = {e: films[at.place].frames for e, at in found.items() if isinstance(at, Spot)}
        off = {episode: n for episode, n in frames.items() if n != rows[episode]}
        fitting = {e: [o for o in off if o != e and rows[o] == n] for e, n in off.items()}
        mistaken = {episode: others for episode, others in fitting.items() if others}
        if len(mistaken) < 2:
            continue
        for episode, others in mistaken.items():
            spots[episode][camera] = (
                f"its video has {off[episode]} frames where it has {rows[episode]} rows, as if it "
                f"were the video of episode {others[0]}"
            )


def _with_number(
    lost: Lost, tables: Sequence[FoundTable], chosen: Sequence[RowRun], decision: Decision
) -> Lost:
    """Say of an episode that got another number which rows it is."""
    had = decision.renumbered.get(lost.episode)
    if had is None:
        return lost
    name = next(tables[run.table].name for run in chosen if run.episode == lost.episode)
    return Lost(lost.episode, f"rows of another episode {had}, in {name}: {lost.why}")


def _added_with_videos(
    tables: Sequence[FoundTable],
    chosen: Sequence[RowRun],
    listed: Usable | None,
    videos: RepairVideos,
    decision: Decision,
) -> dict[int, dict[str, Spot | str]]:
    """Return the spots of episodes that were added as a table and videos of the same number.

    All of the table's episodes have numbers that others have, the metadata name none of the videos,
    and each video has as many frames as the table has rows.
    """
    found: dict[int, dict[str, Spot | str]] = {}
    for number, table in enumerate(tables):
        own = sorted((run for run in chosen if run.table == number), key=lambda run: run.first)
        place = (table.chunk, table.number)
        films = {camera: of.get(place) for camera, of in videos.of.items()}
        rows = sum(run.length for run in own)
        if not films or not own or any(run.episode not in decision.renumbered for run in own):
            continue
        if any(film is None or film.frames != rows for film in films.values()):
            continue
        if any(_is_named(listed, camera, place, videos.of[camera]) for camera in films):
            continue
        first = 0
        for run in own:
            found[run.episode] = {c: Spot(place, first, 1, run.length) for c in films}
            first += run.length
    return found


def _is_named(
    listed: Usable | None, camera: str, place: Place, videos: Mapping[Place, FoundVideo]
) -> bool:
    """Whether the metadata of an episode name this video."""
    places = _places(listed, camera, videos)
    if places is None:
        return False
    return bool(((places[0] == place[0]) & (places[1] == place[1])).any())


def _places(
    listed: Usable | None, camera: str, videos: Mapping[Place, FoundVideo]
) -> tuple[np.ndarray, np.ndarray] | None:
    """Return the chunk and number of each listed episode's video; None where nothing tells.

    Where the metadata name no chunk, the number tells the video if only one has it.
    """
    if listed is None:
        return None
    chunk, number = (
        listed.columns.get(f"videos/{camera}/{name}") for name in ("chunk_index", "file_index")
    )
    if number is None and len(videos) == 1:
        number = np.full(len(listed), next(iter(videos))[1])
    if number is None:
        return None
    if chunk is None:
        chunks: dict[int, list[int]] = {}
        for place in videos:
            chunks.setdefault(place[1], []).append(place[0])
        if any(len(found) > 1 for found in chunks.values()):
            return None
        chunk = np.array([chunks.get(n, [-1])[0] for n in number.tolist()], np.int64)
    return chunk, number


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
    chosen: list[RowRun] = []
    more: list[RowRun] = []
    are_same = SameRows(tables)
    orphans = 0
    for episode, found in by_episode.items():
        whole = [run for run in found if run.begins]
        rows = sum(run.length for run in found)
        is_other = knows_all and _position(listed, episode) < 0
        if episode < 0 or not whole:
            if is_other:
                said = "not listed in the metadata; its {n} rows do not begin with its first"
                decision.cut.add(said, episode, amount=rows)
            else:
                decision.lost.append(Lost(episode, f"its {rows} rows do not begin with its first"))
            continue
        best = max(whole, key=lambda run: _likelihood(run, tables, listed))
        others = [run for run in whole if run is not best and _differ(are_same, run, best)]
        more += others
        rows -= sum(run.length for run in others)
        if is_other and any(run.episode != episode and are_same(run, best) for run in runs):
            orphans += rows
            continue
        behind = sum(run.length for run in found if _is_behind(run, best, tables))
        if behind:
            said = "{n} rows behind missing ones were left out"
            decision.cut.add(said, episode, amount=behind)
        orphans += rows - best.length - behind
        chosen.append(best)
    taken = [*by_episode, *(listed.index.tolist() if listed is not None else ()), -1]
    for number, run in enumerate(more, max(taken) + 1):
        decision.renumbered[number] = run.episode
        chosen.append(replace(run, episode=number))
    if orphans:
        decision.changes.add("{n} rows that no episode needs were left out", amount=orphans)
    return chosen


def _is_behind(run: RowRun, best: RowRun, tables: Sequence[FoundTable]) -> bool:
    """Whether rows are of an episode's end, of which some rows before them are missing."""
    frame = tables[run.table].numbers.get("frame_index")
    return (
        not run.begins
        and run.table == best.table
        and frame is not None
        and int(frame[run.first]) >= best.length
    )


def _differ(are_same: SameRows, run: RowRun, best: RowRun) -> bool:
    """Whether rows with an episode's number are another episode: in another table, others."""
    return run.table != best.table and not are_same(run, best)


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
    *,
    has_task: bool,
) -> None:
    episode = run.episode
    missing = {camera: spot for camera, spot in spots.items() if isinstance(spot, str)}
    if missing:
        reasons = "; ".join(f"{camera}: {why}" for camera, why in missing.items())
        decision.lost.append(Lost(episode, reasons))
        return
    if episode in undecodable:
        decision.lost.append(Lost(episode, undecodable[episode]))
        return
    places = {camera: spot for camera, spot in spots.items() if isinstance(spot, Spot)}
    length = min([run.length, *(spot.frames for spot in places.values())])
    if length < run.length:
        said = "{n} rows at the end have no images, and were left out"
        decision.cut.add(said, episode, amount=run.length - length)
    position = _position(listed, episode)
    if position < 0:
        said = "not listed in the metadata; added"
        decision.changes.add(
            f"{said}, with the task of its task_index" if has_task else said, episode
        )
    elif listed is not None and int(listed.length[position]) != run.length:
        decision.changes.add("the metadata had another length than the rows", episode)
    decision.kept.append(Kept(episode, run, length, places))


def _position(listed: Usable | None, episode: int) -> int:
    """Return where an episode stands in the list; -1 if it does not."""
    return -1 if listed is None else int(listed.positions_of(np.array([episode]))[0])
