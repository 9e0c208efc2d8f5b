"""Checks of what ``meta/`` says: each file by itself, and one against the other."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from demoreel.check import look_info
from demoreel.check.declared import check_features, check_folders, check_splits
from demoreel.check.look import Look
from demoreel.check.look_episodes import FOLDER, LINES, LONGEST, Listing
from demoreel.check.recorded_stats import check_recorded_stats
from demoreel.storage.arrow import as_numpy


def check_metadata(look: Look) -> None:
    """Check info, features, tasks, episodes, splits and statistics. Reads no table of rows.

    Cost: a few seconds for a million episodes.
    """
    if look.is_pending:
        look.found(
            "commit-pending",
            "There is a commit that was begun and is not in place: look again when it is.",
            file=".demoreel/journal.json",
        )
    waiting = list(look.root.glob(".demoreel/encoding/*/sealed.json"))
    if waiting:
        look.found(
            "commit-pending",
            f"{len(waiting)} saved episodes wait for their encoders.",
            file=".demoreel/encoding",
        )
    if look.info is None:
        return
    _ = look.layout
    check_features(look)
    _check_tasks(look)
    listing = look.listing
    if listing is None:
        _report_no_list(look)
    else:
        _check_numbers(look, listing)
        _check_ranges(look, listing)
        _check_listed_where(look, listing)
        _check_episode_tasks(look)
        _check_totals(look, listing)
    check_splits(look)
    check_recorded_stats(look)
    check_folders(look)
    episodes = look.episodes
    look.facts["layout"] = look.layout
    look.facts["bytes"] = sum(size for size in look.files.values() if size > 0)
    look.facts["episodes"] = len(episodes) if episodes is not None else 0
    look.facts["frames"] = int(episodes.start[-1]) if episodes is not None else 0


def _report_no_list(look: Look) -> None:
    assert look.raw is not None
    if look.raw.get("total_episodes") == 0:
        look.found("episodes-empty", "info.json counts no episodes.", file=look_info.FILE)
        return
    name = LINES if look.is_v2 else FOLDER
    look.found("episodes-missing", f"There is nothing at {name}.", file=name)


def _check_numbers(look: Look, listing: Listing) -> None:
    """Indices: there once, all of them, in order. Lengths: possible."""
    index, length = listing.columns["episode_index"], listing.columns["length"]
    if len(index) == 0:
        if listing.is_whole:
            look.found("episodes-empty", "The list of episodes is empty.", file=listing.files[0])
        return
    impossible = np.flatnonzero(((length <= 0) | (length >= LONGEST)) & (length != -1))
    for place in impossible[:_NAMED].tolist():
        look.found(
            "episode-length",
            f"The length is {length[place]}.",
            count=_last_counts(place, impossible),
            episode=index[place],
            file=_file(listing, place),
        )
    known = index[index >= 0]
    numbers, counts = np.unique(known, return_counts=True)
    twice = numbers[counts > 1]
    for episode in twice[:_NAMED].tolist():
        look.found(
            "episode-twice",
            f"It is listed {counts[numbers == episode][0]} times.",
            count=_last_counts(episode, twice),
            episode=episode,
        )
    if len(numbers) and (numbers[0] != 0 or numbers[-1] != len(numbers) - 1):
        gaps = np.flatnonzero(np.diff(numbers) > 1)
        first = 0 if numbers[0] != 0 else int(numbers[gaps[0]]) + 1
        look.found(
            "episode-gap",
            f"{len(numbers)} episodes run from {numbers[0]} to {numbers[-1]}; "
            f"{first} is the first that is missing.",
            episode=first,
        )
    backwards = np.flatnonzero(np.diff(known) < 0)
    if len(backwards):
        place = int(backwards[0])
        look.found(
            "episode-order",
            f"Episode {known[place + 1]} is listed behind {known[place]}.",
            count=len(backwards),
            episode=known[place + 1],
        )


_NAMED = 20


def _last_counts(place: int, places: np.ndarray) -> int:
    """Return how many places a finding stands for: the last one that is named, all the others."""
    is_last = len(places) > _NAMED and place == places[_NAMED - 1]
    return len(places) - _NAMED + 1 if is_last else 1


def _file(listing: Listing, place: int) -> str:
    return listing.files[int(listing.file[place])]


def _check_ranges(look: Look, listing: Listing) -> None:
    """Ranges of rows: as long as their episodes, and one behind the other."""
    first = listing.columns.get("dataset_from_index")
    stop = listing.columns.get("dataset_to_index")
    if first is None or stop is None or len(first) == 0:
        return
    index, length = listing.columns["episode_index"], listing.columns["length"]
    sound = (first >= 0) & (stop >= 0) & (length > 0) & (length < LONGEST)
    wrong = np.flatnonzero(sound & (stop - first != length))
    for place in wrong[:_NAMED].tolist():
        look.found(
            "range-length",
            f"Rows {first[place]} to {stop[place]} are {stop[place] - first[place]}; the length "
            f"is {length[place]}.",
            count=_last_counts(place, wrong),
            episode=index[place],
            file=_file(listing, place),
        )
    order = np.argsort(index, kind="stable")
    begins, ends = first[order], stop[order]
    expected = np.concatenate([[0], ends[:-1]])
    apart = np.flatnonzero((begins != expected) & sound[order])
    for place in apart[:_NAMED].tolist():
        look.found(
            "range-gap",
            f"Its rows begin at {begins[place]}; those of the episode before end at "
            f"{expected[place]}.",
            count=_last_counts(place, apart),
            episode=index[order[place]],
            file=_file(listing, int(order[place])),
        )


def _check_listed_where(look: Look, listing: Listing) -> None:
    """``meta/episodes/chunk_index`` and ``file_index``: the file that the row lies in."""
    chunk = listing.columns.get("meta/episodes/chunk_index")
    file = listing.columns.get("meta/episodes/file_index")
    if chunk is None or file is None or len(chunk) == 0:
        return
    names = np.array(listing.files)
    known: dict[tuple[int, int], str] = {}
    for pair in {(int(c), int(f)) for c, f in np.unique(np.stack([chunk, file], 1), axis=0)}:
        known[pair] = f"{FOLDER}chunk-{pair[0]:03d}/file-{pair[1]:03d}.parquet"
    if len(known) == 1:
        said = np.full(len(chunk), next(iter(known.values())))
    else:
        said = np.array([known[int(c), int(f)] for c, f in zip(chunk, file, strict=True)])
    wrong = np.flatnonzero(said != names[listing.file])
    if len(wrong):
        place = int(wrong[0])
        look.found(
            "episodes-file-index",
            f"It says {said[place]}, and lies in {_file(listing, place)}.",
            count=len(wrong),
            episode=listing.columns["episode_index"][place],
            file=_file(listing, place),
        )


def _check_tasks(look: Look) -> None:
    tasks = look.tasks
    if tasks is None:
        return
    for values, what in ((tasks.indices, "task_index"), (tasks.texts, "text")):
        seen = Counter[object](values)
        twice = [value for value, times in seen.items() for _ in range(times - 1)]
        if twice:
            look.found(
                "task-twice",
                f"The {what} {str(twice[0])[:60]!r} is there twice.",
                count=len(twice),
                file=tasks.file,
            )
    off = [place for place, index in enumerate(tasks.indices) if index != place]
    if off:
        look.found(
            "task-order",
            f"The task in place {off[0]} has the index {tasks.indices[off[0]]}.",
            count=len(off),
            file=tasks.file,
        )
    empty = [i for i, text in zip(tasks.indices, tasks.texts, strict=True) if not text.strip()]
    if empty:
        look.found("task-empty", f"Task {empty[0]} has no text.", count=len(empty), file=tasks.file)


def _check_episode_tasks(look: Look) -> None:
    """The texts that episodes name: those of the file of tasks."""
    tasks, episodes = look.tasks, look.episodes
    if tasks is None or episodes is None or episodes.tasks is None or len(episodes) == 0:
        return
    lists = episodes.tasks.combine_chunks()
    named = lists.flatten()
    used = set(named.unique().to_pylist())
    unknown = [text for text in used - set(tasks.texts) if text is not None]
    if unknown:
        is_unknown = pc.is_in(named, pa.array(unknown, pa.string()))
        offsets = as_numpy(lists.offsets)
        at = np.flatnonzero(as_numpy(is_unknown.cast(pa.uint8())))
        owners = np.searchsorted(offsets - offsets[0], at, side="right") - 1
        look.found(
            "episode-task-unknown",
            f"It names the task {str(named[int(at[0])])[:60]!r}.",
            count=len(np.unique(owners)),
            episode=episodes.index[owners[0]],
        )
    idle = [text for text in tasks.texts if text not in used]
    if idle and episodes.is_whole and used:
        look.found(
            "task-unused",
            f"No episode names the task {idle[0][:60]!r}.",
            count=len(idle),
            file=tasks.file,
        )


def _check_totals(look: Look, listing: Listing) -> None:
    """The counts in ``info.json``; those that are no counts have findings of their own."""
    assert look.raw is not None
    if not listing.is_whole:
        return
    length = listing.columns["length"]
    sums = int(length[(length > 0) & (length < LONGEST)].sum())
    counted = [
        ("total-episodes", "total_episodes", len(listing), "episodes"),
        ("total-frames", "total_frames", sums, "frames"),
    ]
    if look.tasks is not None:
        counted.append(("total-tasks", "total_tasks", len(look.tasks.indices), "tasks"))
    if look.is_v2 and look.info is not None and len(listing):
        cameras = len(look.filmed)
        chunks = -(-int(listing.columns["episode_index"].max() + 1) // look.info.chunks_size)
        counted.append(("total-videos", "total_videos", cameras * len(listing), "videos"))
        counted.append(("total-videos", "total_chunks", chunks, "chunks"))
    for code, name, there, things in counted:
        said = look.raw.get(name)
        if isinstance(said, int) and not isinstance(said, bool) and said >= 0 and said != there:
            look.found(code, f"{name} is {said}; there are {there} {things}.", file=look_info.FILE)
