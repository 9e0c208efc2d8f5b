"""Checks whether a push would delete data that others have put on the Hub.

What this machine remembers decides first (``records``): if the dataset's files there are what this
folder was pushed to or pulled from, all that differs was done here. Else, and where nothing is
remembered, episodes decide: each of those on the Hub must be here, wherever it stands.
So a folder that was copied and grew, or was converted, may be pushed; one that
lacks what another machine has recorded may not.

Which episodes of one dataset are in another, whatever layout, order, codec or task number, is told
by statistics first: they are in the metadata. Programs calculate means in their own ways and
precision, so numbers are compared within a tolerance, and smallest and largest values more strictly
than means. Where statistics do not tell, rows do: the numbers of each frame, and its task's text.
Only features that both datasets have are compared, so one that was removed or added does not
matter.
"""

from __future__ import annotations

import hashlib
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from demoreel.edit.diff.pairs import alike
from demoreel.errors import (
    DemoreelError,
    MetadataError,
    NewerRemoteError,
    StoreError,
    count,
    refuse_shortage,
)
from demoreel.hub.plan import is_content, is_of_a_dataset
from demoreel.hub.records import KnownCommit
from demoreel.hub.repository import Repository, RepositoryState
from demoreel.layouts.base import Reader, episode_files
from demoreel.layouts.detect import open_reader
from demoreel.layouts.meta import listing_files
from demoreel.model import DEFAULT_FEATURES
from demoreel.storage.json_files import read_json, read_json_lines
from demoreel.storage.parquet import open_parquet
from demoreel.storage.scratch import scratch_folder

_SHOWN = 8
_MOST_BYTES = 512 << 20  # of tables that are fetched to compare rows
_MOST_METADATA = 8 << 30  # a million episodes have less
_FORCE = (
    "demoreel pull it beside this one and join them; or push with force, and what it has is lost"
)
_KINDS = ("min", "max", "mean")
_EXTREMES = 1e-5  # of the largest value: float32, perhaps written as text
_MEANS = 1e-4  # of the largest value: sums in float32
_DIGITS = 5


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
    with ExitStack() as open_there:
        try:
            theirs, folder = open_there.enter_context(_dataset_there(repository, state))
            if theirs is None:
                return
            described_there = described(theirs)
        except DemoreelError as error:
            refuse_shortage(error)
            if isinstance(error, StoreError):
                raise  # of the Hub, which does not answer now
            if changed is not None and not changed - alike:
                return
            raise NewerRemoteError(
                "The Hub holds a dataset whose episodes cannot be read, so it is not known what "
                "would be lost.",
                hint=_FORCE,
                **_where(root, repository, state, changed or there),
            ) from None
        lost = missing_episodes(
            described_there,
            described(reader),
            lambda positions: _fetch_rows(repository, state, theirs, folder, positions),
        )
        found = theirs.episodes
        numbers = [int(found.episode_index[position]) for position in lost]
    if changed is not None and not changed - alike and len(lost) < len(found):
        return  # what is gone was taken out here
    if not lost:
        return
    ours = reader.episodes
    raise NewerRemoteError(
        _what(len(lost), len(found), known),
        hint=_FORCE,
        lost=_listed([f"episode {number}" for number in numbers]),
        on_the_hub=f"{count(len(found), 'episode')}, {count(found.total_frames, 'frame')}",
        here=f"{count(len(ours), 'episode')}, {count(ours.total_frames, 'frame')}",
        **_where(root, repository, state, changed),
    )


def _what(lost: int, there: int, known: KnownCommit | None) -> str:
    several = f"{lost} episodes are" if lost > 1 else "An episode is"
    if lost == there:
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


@contextmanager
def _dataset_there(
    repository: Repository, state: RepositoryState
) -> Iterator[tuple[Reader | None, Path]]:
    """Yield the dataset on the Hub, of which only the metadata are here, and its folder.

    There is no reader where it has no episodes.
    """
    names = [
        name
        for name in state.files
        if name.startswith("meta/") and not name.startswith("meta/demoreel/")
    ]
    if "meta/info.json" not in names or state.head is None:
        raise MetadataError("There is no meta/info.json.")
    if sum(state.files[name].size for name in names) > _MOST_METADATA:
        raise MetadataError("There is more in meta/ than metadata.")
    with scratch_folder() as folder:
        repository.fetch(state, names, folder)
        info = read_json(folder / "meta" / "info.json")
        if isinstance(info, dict) and not info.get("total_episodes"):
            if any(map(is_content, state.files)):
                raise MetadataError("meta/info.json counts no episodes, and there are some.")
            yield None, folder
        else:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                yield open_reader(_as_plain(folder, info)), folder


def _fetch_rows(
    repository: Repository,
    state: RepositoryState,
    reader: Reader,
    folder: Path,
    positions: Sequence[int],
) -> bool:
    """Fetch the tables of episodes, unless they are many bytes or in Lance; say whether they are.

    Lance's tables hold videos and images, too.
    """
    if any(name.split("/")[0].endswith(".lance") for name in state.files):
        return False
    names = episode_files(reader, positions, cameras=())
    if any(name not in state.files for name in names):
        return False
    if sum(state.files[name].size for name in names) > _MOST_BYTES:
        return False
    repository.fetch(state, names, folder)
    return True


def _as_plain(folder: Path, info: Any) -> Path:
    """Let metadata of a Lance dataset be read without its tables: they are those of v3.0."""
    if isinstance(info, dict) and "storage_format" in info:
        import json

        plain = {key: value for key, value in info.items() if key != "storage_format"}
        (folder / "meta" / "info.json").write_text(json.dumps(plain))
    return folder


def _listed(names: list[str]) -> str:
    rest = len(names) - _SHOWN
    return ", ".join(names[:_SHOWN]) + (f" and {rest} more" if rest > 0 else "")


Values = Mapping[str, np.ndarray]
"""The statistics of an episode, by feature: smallest, largest and mean, one row each."""


@dataclass(frozen=True, slots=True)
class DescribedEpisodes:
    """A dataset's episodes, by position.

    Attributes:
        reader: The dataset.
        marks: Their lengths and tasks.
        stats: Their statistics, as far as the metadata have them.
    """

    reader: Reader
    marks: list[tuple[int, tuple[str, ...]]]
    stats: list[Values]


def described(reader: Reader) -> DescribedEpisodes:
    """Return a dataset's episodes as its metadata describe them."""
    said = _statistics(reader, _numeric(reader))
    return DescribedEpisodes(
        reader,
        [(episode.length, tuple(sorted(episode.tasks))) for episode in reader.episodes],
        [said.get(int(number), {}) for number in reader.episodes.episode_index],
    )


def missing_episodes(
    there: DescribedEpisodes, here: DescribedEpisodes, fetch_rows: Callable[[Sequence[int]], bool]
) -> list[int]:
    """Return the positions of their episodes that are not among ours.

    Args:
        there: Theirs.
        here: Ours.
        fetch_rows: Fetches the tables of their episodes at some positions; says whether it could.
    """
    keys = _common(there.reader, here.reader)
    if keys is None:
        return list(range(len(there.marks)))
    told = [key for key in keys if all(key in stats for stats in (*there.stats, *here.stats))]
    lost, unused = list(range(len(there.marks))), list(range(len(here.marks)))
    if told:
        lost, unused = _without_pairs(
            _rounded(there, lost, told), _rounded(here, unused, told), lost, unused
        )
        lost, unused = _without_close(there, here, lost, unused, told)
    if not lost:
        return []
    if unused and fetch_rows(lost):
        theirs = None
        with suppress(DemoreelError):  # tables that cannot be read tell nothing
            theirs = _rows(there, lost, keys)
        if theirs is not None:
            return _without_pairs(theirs, _rows(here, unused, keys), lost, unused)[0]
    if told:
        return lost
    # Then only lengths and tasks tell.
    marks = [there.marks[n] for n in lost], [here.marks[n] for n in unused]
    return _without_pairs(*marks, lost, unused)[0]


def _numeric(reader: Reader) -> list[str]:
    return [
        key
        for key, feature in reader.info.features.items()
        if key not in DEFAULT_FEATURES and feature.is_numeric and not feature.is_camera
    ]


def _common(a: Reader, b: Reader) -> list[str] | None:
    """Return the features of numbers that both have; None where they are not of one dataset.

    One that has another shape is no feature that was added or removed. Without one in common,
    lengths and tasks would have to tell: those of other recordings of a task are often the same.
    """
    mine, theirs = a.info.features, b.info.features
    numbers = _numeric(a), _numeric(b)
    keys = [key for key in numbers[0] if key in numbers[1]]
    if all(numbers) and not keys:
        return None
    if any(theirs[key].item_shape != mine[key].item_shape for key in keys):
        return None
    return keys


def _statistics(reader: Reader, keys: Sequence[str]) -> dict[int, Values]:
    """Return what the metadata say of each episode's numbers."""
    found: dict[int, Values] = {}
    if reader.info.version.startswith("v2"):
        path = reader.meta / "episodes_stats.jsonl"
        for line in read_json_lines(path) if path.exists() else []:
            stats = line.get("stats")
            given = {
                (key, kind): (stats.get(key) or {}).get(kind)
                for key in keys
                for kind in _KINDS
                if isinstance(stats, dict) and isinstance(stats.get(key) or {}, dict)
            }
            found[_number(line.get("episode_index"))] = _values(keys, given)
        return found
    for path in listing_files(reader.meta / "episodes"):
        with open_parquet(path, kind=MetadataError) as parquet:
            names = {f"stats/{key}/{kind}": (key, kind) for key in keys for kind in _KINDS}
            names = {n: pair for n, pair in names.items() if n in parquet.schema_arrow.names}
            for row in parquet.read(["episode_index", *names]).to_pylist():
                given = {pair: row[name] for name, pair in names.items()}
                found[_number(row["episode_index"])] = _values(keys, given)
    return found


def _number(value: Any) -> int:
    return value if isinstance(value, int) else -1


def _values(keys: Iterable[str], given: Mapping[tuple[str, str], Any]) -> Values:
    values = {}
    for key in keys:
        try:
            rows = [np.ravel(np.array(given[key, kind], np.float64)) for kind in _KINDS]
            values[key] = np.nan_to_num(np.stack(rows))
        except (KeyError, TypeError, ValueError, OverflowError):  # not said, or not numbers
            continue
    return values


def _without_pairs(
    theirs: Sequence[Any], ours: Sequence[Any], lost: Sequence[int], unused: Sequence[int]
) -> tuple[list[int], list[int]]:
    """Return what is left on both sides without those that are alike, each taken once."""
    pairs = alike(theirs, ours)
    found, used = {pair.a for pair in pairs}, {pair.b for pair in pairs}
    left = [position for place, position in enumerate(lost) if place not in found]
    return left, [position for place, position in enumerate(unused) if place not in used]


def _rounded(side: DescribedEpisodes, positions: Sequence[int], keys: Sequence[str]) -> list[Any]:
    """Return what most pairs have in common to the digit: found without comparing each with all."""
    return [
        (
            *side.marks[position],
            *(f"{x:.{_DIGITS}g}" for key in keys for x in side.stats[position][key].ravel()),
        )
        for position in positions
    ]


def _without_close(
    there: DescribedEpisodes,
    here: DescribedEpisodes,
    lost: Sequence[int],
    unused: Sequence[int],
    keys: Sequence[str],
) -> tuple[list[int], list[int]]:
    """Leave out those that are alike within the tolerance."""
    groups: dict[Any, list[int]] = defaultdict(list)
    for position in unused:
        shapes = tuple(here.stats[position][key].shape for key in keys)
        groups[here.marks[position], shapes].append(position)
    tables = {
        group: np.stack([_joined(here, position, keys) for position in positions])
        for group, positions in groups.items()
    }
    left = []
    for position in lost:
        group = there.marks[position], tuple(there.stats[position][key].shape for key in keys)
        values = _joined(there, position, keys)
        scale: np.ndarray = np.abs(values[:2]).max(axis=0)
        allowed = np.stack([_EXTREMES * scale, _EXTREMES * scale, _MEANS * scale]) + 1e-12
        table = tables.get(group, np.empty((0, *values.shape)))
        close = np.flatnonzero((np.abs(table - values) <= allowed).all(axis=(1, 2)))
        if len(close):
            table[close[0]] = np.inf  # taken
            groups[group][close[0]] = -1
        else:
            left.append(position)
    return left, sorted(p for positions in groups.values() for p in positions if p >= 0)


def _joined(side: DescribedEpisodes, position: int, keys: Sequence[str]) -> np.ndarray:
    return np.concatenate([side.stats[position][key] for key in keys], axis=1)


def _rows(side: DescribedEpisodes, positions: Sequence[int], keys: Sequence[str]) -> list[bytes]:
    """Return what stands for the rows of each episode: equal for equal ones."""
    texts = dict(side.reader.tasks)
    found = []
    for position in positions:
        columns = side.reader.rows_once(position, position + 1)
        tasks = [texts.get(int(number)) for number in np.asarray(columns["task_index"])]
        digest = hashlib.sha256(repr(tasks).encode())
        for key in keys:
            values = np.asarray(columns[key])
            # float32, which most layouts store; 0.0 is added to make one of two zeros.
            digest.update((values.astype(np.float32) + 0.0).tobytes())
        found.append(digest.digest())
    return found
