"""Checks of what ``meta/`` says: each file by itself, and one against the other."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from demoreel.check.look import EACH, FOLDER, INFO, LINES, Look, bytes_in_tables
from demoreel.check.recorded_stats import check_recorded_stats
from demoreel.errors import MetadataError, UnsafePathError, count
from demoreel.layouts.lance.schemas import column_names
from demoreel.layouts.meta import EpisodeList
from demoreel.layouts.persisted_files import WORKDIR
from demoreel.model import Feature, PathTemplate
from demoreel.model.episodes import LONGEST
from demoreel.model.feature import flat_names
from demoreel.packages import load_late
from demoreel.storage.arrow import as_numpy, from_texts
from demoreel.storage.folder import links_out

pc = load_late("pyarrow.compute")

_SPLIT = re.compile(r"\s*(\d{1,18})\s*:\s*(\d{1,18})\s*")
_SHOWN = 5


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
    for path, target in links_out(look.root):
        look.found(
            "link-outside", f"It leads to {target}.", file=path.relative_to(look.root).as_posix()
        )
    if look.info is None:
        return
    _check_waiting(look)
    _ = look.layout
    check_features(look)
    _check_tasks(look)
    listing = look.listing
    if listing is not None:
        _check_numbers(look, listing)
        _check_ranges(look, listing)
        _check_listed_where(look, listing)
        _check_columns(look, listing)
        _check_episode_tasks(look)
        _check_totals(look, listing)
    check_splits(look)
    check_recorded_stats(look)
    check_folders(look)
    _check_stray(look)
    episodes = look.episodes
    look.facts["layout"] = look.layout
    own = sum(size for size in look.files.values() if size > 0)
    look.facts["bytes"] = own + bytes_in_tables(look.root)
    waiting = look.waiting
    look.facts["episodes"] = len(episodes) if episodes is not None else 0
    look.facts["frames"] = int(episodes.start[-1]) if episodes is not None else 0
    if waiting:
        look.facts["waiting"] = len(waiting.episodes)
        look.facts["episodes"] += len(waiting.episodes)
        look.facts["frames"] += waiting.frames


def _check_waiting(look: Look) -> None:
    """Say which saved episodes are in no file of the dataset yet. The rest is of those that are."""
    found = look.waiting
    if found.episodes:
        look.found(
            "episodes-waiting",
            f"Saved episodes that are not committed yet: {len(found.episodes)}, with "
            f"{count(found.frames, 'frame')}.",
            count=len(found.episodes),
            file=WORKDIR.as_posix(),
        )
    for each in found.damaged:
        name = each.folder.relative_to(look.root).as_posix()
        look.found("episode-waiting-damaged", each.why, file=name)


def _check_numbers(look: Look, listing: EpisodeList) -> None:
    """Indices: all of them, in order. Whether they can be used says ``look.episodes``."""
    index = listing.columns["episode_index"]
    if len(index) == 0:
        if listing.is_whole:
            look.found("episodes-empty", "The list of episodes is empty.", file=listing.files[0])
        return
    known = index[index >= 0]
    numbers = np.unique(known)
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


def _file(listing: EpisodeList, place: int) -> str:
    return listing.files[int(listing.file[place])]


def _check_ranges(look: Look, listing: EpisodeList) -> None:
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


def _check_listed_where(look: Look, listing: EpisodeList) -> None:
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


_RANGE = ("dataset_from_index", "dataset_to_index")
_PLACE = ("meta/episodes/chunk_index", "meta/episodes/file_index")


def _check_columns(look: Look, listing: EpisodeList) -> None:
    """Report columns that a reader can do without, and lerobot cannot."""
    if look.is_v2 or len(listing) == 0:
        return
    lacking = [name for name in (*_RANGE, *_PLACE) if name not in listing.columns]
    lacking += ["tasks"] if listing.tasks is None else []
    for code, named in (("episodes-range-missing", _RANGE), ("episodes-place-missing", _PLACE)):
        names = [n for n in lacking if n in named or (n == "tasks" and named is _PLACE)]
        if names:
            look.found(code, f"There is no column {', '.join(names)}.", file=listing.files[0])


_OF_V2 = ("meta/tasks.jsonl", LINES, EACH)
_OF_V3 = ("meta/tasks.parquet",)


def _check_stray(look: Look) -> None:
    """Report metadata of another version than the dataset's."""
    stray = [
        name
        for name in look.files
        if name in (_OF_V3 if look.is_v2 else _OF_V2)
        or (look.is_v2 and name.startswith(FOLDER) and name.endswith(".parquet"))
    ]
    if stray:
        version = "v3.0" if look.is_v2 else "v2.x"
        shown = ", ".join(stray[:_SHOWN]) + (" and others" if len(stray) > _SHOWN else "")
        look.found(
            "metadata-stray",
            f"The dataset is {look.layout}; {shown}: such metadata are those of {version}.",
            count=len(stray),
            file=stray[0],
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
                file=look.task_file,
            )
    off = [place for place, index in enumerate(tasks.indices) if index != place]
    if off and not look.is_v2:  # of v2, lerobot finds tasks by their index
        look.found(
            "task-order",
            f"The task in place {off[0]} has the index {tasks.indices[off[0]]}.",
            count=len(off),
            file=look.task_file,
        )
    empty = [i for i, text in zip(tasks.indices, tasks.texts, strict=True) if not text.strip()]
    if empty:
        look.found(
            "task-empty", f"Task {empty[0]} has no text.", count=len(empty), file=look.task_file
        )


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
        is_unknown = pc.is_in(named, from_texts(unknown))
        offsets = as_numpy(lists.offsets)
        at = np.flatnonzero(as_numpy(is_unknown.cast(pa.uint8())))
        owners = np.searchsorted(offsets - offsets[0], at, side="right") - 1
        look.found(
            "episode-task-unknown",
            f"It names the task {str(named[int(at[0])])[:60]!r}.",
            count=len(np.unique(owners)),
            episode=episodes.index[owners[0]],
        )


def _check_totals(look: Look, listing: EpisodeList) -> None:
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
        cameras = len(look.video_cameras)
        chunks = -(-int(listing.columns["episode_index"].max() + 1) // look.info.chunks_size)
        counted.append(("total-videos", "total_videos", cameras * len(listing), "videos"))
        counted.append(("total-videos", "total_chunks", chunks, "chunks"))
    for code, name, there, things in counted:
        said = look.raw.get(name)
        if said is None and code == "total-videos":
            look.found(code, f"There is no {name}; it is {there}.", file=INFO)
        if isinstance(said, int) and not isinstance(said, bool) and said >= 0 and said != there:
            look.found(code, f"{name} is {said}; there are {there} {things}.", file=INFO)


def check_features(look: Look) -> None:
    """Check names, shapes and cameras' details as far as the declarations go."""
    assert look.info is not None
    for feature in look.info.features.values():
        if feature.is_camera:
            _check_camera(look, feature)
        elif feature.is_numeric:
            _check_names(look, feature)
    try:
        column_names(look.info)
    except MetadataError as error:
        look.found("feature-clash", error.what, file=INFO)
    for key in look.info.features:
        if "/" in key:
            look.found(
                "feature-clash",
                f"{key[:60]!r} holds a slash, which lerobot refuses.",
                feature=key,
                file=INFO,
            )


def _check_names(look: Look, feature: Feature) -> None:
    names = flat_names(feature.names)
    if not names or len(feature.shape) > 1:
        return  # of several dimensions, names say what each one is, or every cell: both are used
    if len(names) == 1:
        return  # many call the vector by its own name: it says nothing of its dimensions
    if len(names) != math.prod(feature.shape):
        look.found(
            "feature-names-count",
            f"{count(len(names), 'name')} for {count(math.prod(feature.shape), 'dimension')}.",
            feature=feature.key,
            file=INFO,
        )
    twice = sorted({name for name in names if names.count(name) > 1}) if len(names) < 4096 else []
    if twice:
        look.found(
            "feature-names-twice",
            f"{twice[0][:60]!r} is the name of {names.count(twice[0])} dimensions.",
            feature=feature.key,
            file=INFO,
        )


def _check_camera(look: Look, feature: Feature) -> None:
    height, width, channels = feature.image_shape
    said = {"video.height": height, "video.width": width, "video.channels": channels}
    for name, declared in said.items():
        value = feature.info.get(name)
        if isinstance(value, int) and value != declared:
            look.found(
                "camera-declared-twice",
                f"The shape says {declared}, {name} says {value}.",
                camera=feature.key,
                file=INFO,
            )


def check_splits(look: Look) -> None:
    """Check that splits are ranges of episodes that exist, and share none."""
    assert look.raw is not None
    splits = look.raw.get("splits")
    if not isinstance(splits, dict) or look.episodes is None or not look.episodes.is_whole:
        return
    count = len(look.episodes)
    ranges: list[tuple[int, int, str]] = []
    for name, text in splits.items():
        match = _SPLIT.fullmatch(text) if isinstance(text, str) else None
        if match is None or int(match[1]) > int(match[2]):
            look.found(
                "split-unreadable",
                f"The split {name[:40]!r} is {str(text)[:40]!r}; first:stop was expected.",
                file=INFO,
            )
            continue
        first, stop = int(match[1]), int(match[2])
        ranges.append((first, stop, name[:40]))
        if stop > count:
            look.found(
                "split-past-end",
                f"The split {name[:40]!r} is {first}:{stop}; there are {count} episodes.",
                file=INFO,
            )
    _check_disjoint(look, sorted(ranges), count)


def _check_disjoint(look: Look, ranges: Sequence[tuple[int, int, str]], count: int) -> None:
    covered, owner, missing = 0, "", 0
    for first, stop, name in ranges:
        if first < min(covered, stop):
            look.found(
                "split-overlap",
                f"The splits {owner!r} and {name!r} share {min(covered, stop) - first} episodes.",
                episode=first,
                file=INFO,
            )
        missing += max(0, min(first, count) - covered)
        if stop > covered:
            covered, owner = stop, name
    missing += max(0, count - covered)
    if ranges and missing:
        look.found(
            "split-left-out",
            f"{missing} of {count} episodes are in no split.",
            file=INFO,
        )


def check_folders(look: Look) -> None:
    """Check that tables and videos lie where the templates say, and what else lies around."""
    info = look.info
    if info is None or look.is_lance:
        return
    if info.data_path is not None:
        _check_template(look, info.data_path, ".parquet", look.table_files(), None)
    for camera in look.video_cameras:
        if info.video_path is not None:
            _check_template(look, info.video_path, ".mp4", look.video_files(camera), camera)
    added = [n for n in look.macos_files if n.startswith(("data/", FOLDER))]
    if added and not look.is_v2:  # of v2.x, readers ask for tables by their names
        shown = ", ".join(added[:_SHOWN]) + (" and others" if len(added) > _SHOWN else "")
        look.found("files-of-macos", f"{shown}.", count=len(added), file=added[0])
    strange = [
        name
        for name in look.files
        if name.endswith((".tmp", ".part", ".lock", ".incomplete"))
        or (name.startswith("images/") and name.endswith((".png", ".jpg", ".tiff")))
    ]
    if strange:
        look.found(
            "files-left-over",
            f"{', '.join(strange[:_SHOWN])}{' and others' if len(strange) > _SHOWN else ''}",
            count=len(strange),
            file=strange[0],
        )


def _check_template(
    look: Look,
    template: PathTemplate,
    ending: str,
    named: Iterator[tuple[str, Any]],
    camera: str | None,
) -> None:
    """Report files that lie in a folder of another name, where none lies in the right one."""
    wanted = []
    for name, _ in named:
        if name in look.files:
            return
        wanted.append(name)
        if len(wanted) >= 3:
            break
    if not wanted:
        return
    others = [
        name
        for name in look.files
        if name.endswith(ending) and not name.startswith("meta/") and _is_of(name, camera)
    ]
    try:
        known = {path for path, _ in _all_named(look)} if others else set()
    except UnsafePathError:
        return
    others = [name for name in others if name not in known]
    if others:
        look.misplaced.add(camera)
        look.found(
            "template-mismatch",
            f"{template.where} leads to {wanted[0]}, which is not there; "
            f"{count(len(others), 'such file')} {'lies' if len(others) == 1 else 'lie'} elsewhere, "
            f"like {others[0]}.",
            camera=camera,
            file=others[0],
        )


def _is_of(name: str, camera: str | None) -> bool:
    return camera is None or camera in name.split("/") or camera.rsplit(".", 1)[-1] in name


def _all_named(look: Look) -> Iterator[tuple[str, Any]]:
    yield from look.table_files()
    for camera in look.video_cameras:
        yield from look.video_files(camera)
