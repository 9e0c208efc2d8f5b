"""The view that checks have of a dataset: what can be used of it, and findings for what cannot.

``layouts/meta.py`` reads the metadata, as it does for every reader. Nothing here raises on broken
data, and nothing is written.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from demoreel.check.codes import FETCH, REPAIR, code_for
from demoreel.check.report import Findings
from demoreel.errors import (
    DemoreelError,
    MetadataError,
    ShortageError,
    UnsafePathError,
    called,
    count,
    refuse_shortage,
)
from demoreel.layouts.base import Reader
from demoreel.layouts.detect import is_new, layout_and_table, open_reader
from demoreel.layouts.meta import (
    PLACE_OF_VIDEO,
    TEXTS,
    EpisodeList,
    TaskList,
    info_from,
    no_episodes,
    parse_tasks,
    read_episode_lines,
    read_episode_tables,
    read_raw_info,
    read_stats,
    read_v2_stats,
)
from demoreel.layouts.pending import Waiting, find_waiting
from demoreel.model import Info, Stats
from demoreel.model.episodes import usable_episodes
from demoreel.model.problems import Problem
from demoreel.storage.arrow import UNREADABLE as _UNREADABLE
from demoreel.storage.arrow import as_numpy, from_numpy
from demoreel.storage.commit.consistent import FolderState
from demoreel.storage.commit.journal import is_in_place, is_pending
from demoreel.storage.commit.writer_lock import HIDDEN, is_held
from demoreel.storage.json_files import read_json
from demoreel.storage.local import NOT_FETCHED, is_pointer_file

if TYPE_CHECKING:
    from demoreel.check.fingerprints import Fingerprints
INFO = "meta/info.json"
LINES, FOLDER = "meta/episodes.jsonl", "meta/episodes/"
WHOLE, EACH = "meta/stats.json", "meta/episodes_stats.jsonl"
UNREADABLE = (*_UNREADABLE, ValueError, OverflowError)
"""What reading a damaged parquet file may raise; names that are not UTF-8 are ValueErrors."""

_MOST_OF_EACH = 128 << 20  # bytes of episodes' statistics that are looked at; Python parses them
_LONGEST_KEY = 60

_REPOSITORY = re.compile(r"[\w.-]{1,96}/[\w.-]{1,96}")
_OF_EPISODE = re.compile(r"(?:.*/)?episode_(\d{1,9})\.(?:parquet|mp4)")
_VIDEOS = (".mp4", ".mkv", ".webm", ".avi", ".mov")
_KINDS_OF_FILES: Mapping[str, Callable[[str], bool]] = {
    "metadata file": lambda name: name.startswith("meta/"),
    "table": lambda name: name.endswith(".parquet") and not name.startswith("meta/"),
    "video": lambda name: name.endswith(_VIDEOS),
}

_DEEPEST = 12
_MOST_FILES = 8_000_000


@dataclass
class Usable:
    """The episodes that can be told apart and have a possible length, by ``episode_index``.

    Attributes:
        index: Their ``episode_index``, ascending.
        length: Frames of each.
        start: Where each one's rows begin in the dataset, and the end of the last.
        columns: The other columns, in the same order.
        tasks: Each episode's tasks.
        is_whole: Whether these are all the episodes there are.
        listed: Where each one stands in the listing.
    """

    index: np.ndarray
    length: np.ndarray
    columns: dict[str, np.ndarray]
    tasks: pa.ChunkedArray | None
    is_whole: bool
    listed: np.ndarray
    start: np.ndarray = field(init=False)

    def __post_init__(self) -> None:
        self.start = np.concatenate([[0], np.cumsum(self.length)])

    def __len__(self) -> int:
        return len(self.index)

    def positions_of(self, episodes: np.ndarray) -> np.ndarray:
        """Return where the episodes with these indices stand here; -1 for those that do not."""
        if len(self.index) == 0:
            return np.full(len(episodes), -1)
        places = np.minimum(np.searchsorted(self.index, episodes), len(self.index) - 1)
        return np.where(self.index[places] == episodes, places, -1)


class Look:
    """A dataset as the checks see it.

    Everything is read when it is first asked for, and read once; what goes wrong then is a finding.

    Args:
        root: The dataset's folder.
        thresholds: The numbers to decide by.
        assumed: What is taken for ``info.json`` where it cannot be used.
        also: Cameras with videos that ``info.json`` does not declare; their places are read, too.
    """

    def __init__(
        self,
        root: Path,
        thresholds: Mapping[str, float],
        *,
        assumed: Info | None = None,
        also: Sequence[str] = (),
    ) -> None:
        self.root = root
        self._assumed = assumed
        self._also = also
        self.thresholds = thresholds
        self.findings = Findings(str(root))
        self.facts: dict[str, Any] = {}
        self.progress: Callable[[float], None] = lambda share: None
        """Takes the share of its work that a family has done; for those that take long."""
        self.broken: set[str] = set()
        """Lance tables that cannot be scanned; what is wrong with them is a finding."""
        self.episode_parts: Sequence[tuple[int, Stats]] = ()
        """Statistics of v2.1's episodes, by index, once ``stats`` has been asked for."""
        self.misplaced: set[str | None] = set()
        """Cameras (None: the tables) whose files all lie elsewhere: one finding, not many."""
        self.unreadable: set[str] = set()
        """Tables that are no parquet files, which is a finding."""
        self.fingerprints: Fingerprints | None = None
        """The episodes' fingerprints, once all rows have been seen."""
        self.appearances: dict[str, dict[int, np.ndarray]] = {}
        """What episodes look like (camera, ``episode_index``), once frames were decoded."""
        self._state = FolderState(root)

    def load(self, *, everything: bool) -> None:
        """Read the metadata at once, so that they can be of one state; by ``settled``.

        Args:
            everything: Also what only the checks of the metadata ask for.
        """
        _ = self.raw, self.info, self.is_pending, self.layout, self.files, self.listing
        if everything:
            _ = self.waiting, self.tasks, self.stats
        self._report_pointers()

    @property
    def is_current(self) -> bool:
        """Whether the dataset has not changed since it was looked at."""
        return self._state.is_current() and self._state.is_same_folder()

    def found(self, code: str, what: str, *, count: int = 1, **where: Any) -> None:
        """Note a finding: see ``Findings.add``."""
        self.findings.add(code, what, count=count, **where)

    def _report_pointers(self) -> None:
        """Report what was not fetched, as one finding."""
        parts, first = [], ""
        for thing, is_of in _KINDS_OF_FILES.items():
            there = [name for name in self.files if is_of(name)]
            absent = [name for name in there if name in self.pointers]
            if absent:
                parts.append(f"{len(absent):,} of {count(len(there), thing)}")
                first = first or absent[0]
        if parts:
            what = f"{', '.join(parts)}, like {first}."
            self.found(NOT_FETCHED, what, count=len(self.pointers), file=first)

    def note(self, problem: Problem) -> None:
        """Make a finding of a problem of the metadata."""
        error = problem.error
        if isinstance(error, ShortageError):
            raise error  # of this machine, which says nothing of the dataset
        where = {n: v for n, v in error.where.items() if n in ("episode", "camera", "file")}
        where.update(problem.where)
        if "file" in where:
            where["file"] = str(where["file"]).removeprefix(f"{called(self.root)}/")
        if "feature" in where:
            where["feature"] = ascii(str(where["feature"])[:_LONGEST_KEY])[1:-1]
        line = f"Line {error.where['line']}: " if "line" in error.where else ""
        code = code_for(error, problem.code)
        if code == NOT_FETCHED:
            return  # one finding tells of all such files
        self.found(code, line + error.what, count=problem.count, **where)

    @cached_property
    def files(self) -> dict[str, int]:
        """Every file of the folder with its size, but for hidden ones and Lance tables."""
        return {n: size for n, size in self._every_file.items() if not _is_of_macos(n)}

    @property
    def macos_files(self) -> list[str]:
        """The files that macOS adds to others on disks of other systems."""
        return [name for name in self._every_file if _is_of_macos(name)]

    @cached_property
    def _every_file(self) -> dict[str, int]:
        return list_files(self.root)

    @cached_property
    def pointers(self) -> frozenset[str]:
        """The files that are Git LFS pointers: what they stand for was not fetched."""
        each = self.files.items()
        return frozenset(name for name, size in each if is_pointer_file(self.root / name, size))

    @cached_property
    def fetch(self) -> str:
        """The command that fetches the dataset, as far as the folder tells whence it came.

        What a remote dataset lacks cannot be fetched: it is to be repaired.
        """
        if called(self.root) != self.root:
            return REPAIR
        inside = re.search(r"/datasets--([^/]+?)--([^/]+)/snapshots/", f"{self.root.absolute()}/")
        name = f"{inside[1]}/{inside[2]}" if inside else ""
        try:
            record = read_json(self.root / HIDDEN / "pulled.json")
            name = str(record["repo_id"]) if isinstance(record, dict) else name
        except (DemoreelError, KeyError):
            pass  # it was not pulled
        return FETCH.replace("OWNER/NAME", name) if _REPOSITORY.fullmatch(name) else FETCH

    @cached_property
    def raw(self) -> dict[str, Any] | None:
        """``info.json`` as it is; None where it cannot be parsed."""
        return read_raw_info(self.root / INFO, self.note)

    @cached_property
    def info(self) -> Info | None:
        """What of ``info.json`` can be used; None if nothing. Its counts may be 0: see ``raw``."""
        if self.raw is None:
            return self._assumed
        return info_from(self.raw, self.root / INFO, self.note) or self._assumed

    @cached_property
    def is_pending(self) -> bool:
        """Whether a commit was begun and is not in place, or its writer ended too early to say."""
        if not is_pending(self.root):
            return False
        try:
            return not (is_held(self.root) and is_in_place(self.root))
        except MetadataError:
            return True

    @cached_property
    def waiting(self) -> Waiting:
        """Saved episodes that are not committed."""
        if self.info is None or self.layout is None:
            return Waiting()
        return find_waiting(self.root, self.info)

    @cached_property
    def is_first_waiting(self) -> bool:
        """Whether nothing is committed yet, but saved episodes wait: no list is missing."""
        return self.info is not None and is_new(self.root, self.info) and bool(self.waiting)

    @cached_property
    def is_empty(self) -> bool:
        """Whether nothing was recorded yet: no list of tasks or statistics is missing."""
        counted = self.raw is not None and self.raw.get("total_episodes") == 0
        return counted and not any(name.endswith((".parquet", ".jsonl")) for name in self.files)

    @cached_property
    def layout(self) -> str | None:
        """The layout's name; None where it cannot be told."""
        return self._layout_and_table[0] or None

    @cached_property
    def table(self) -> str | None:
        """The name of the Lance table of rows, without its ending; None outside Lance."""
        return self._layout_and_table[1] or None

    @cached_property
    def _layout_and_table(self) -> tuple[str, str]:
        if self.info is None:
            return "", ""
        return layout_and_table(self.root, self.info, self.note)

    @property
    def is_v2(self) -> bool:
        """Whether it is v2.0 or v2.1."""
        return self.info is not None and self.info.version.startswith("v2")

    @property
    def is_lance(self) -> bool:
        """Whether rows lie in a Lance table."""
        return self.layout is not None and self.layout.startswith("lance")

    @cached_property
    def video_cameras(self) -> tuple[str, ...]:
        """The cameras whose frames lie in videos."""
        if self.info is None or self.layout == "lance-frames":
            return ()
        return self.info.video_keys

    @cached_property
    def tasks(self) -> TaskList | None:
        """The tasks; None where they cannot be read."""
        if self.info is None or self.is_first_waiting or self.task_file in self.pointers:
            return None
        if self.is_empty:
            return None
        return parse_tasks(self.root / self.task_file, self.note)

    @property
    def task_file(self) -> str:
        """The file of the tasks."""
        return "meta/tasks.jsonl" if self.is_v2 else "meta/tasks.parquet"

    @cached_property
    def listing(self) -> EpisodeList | None:
        """The episodes as they are listed; None where there is no list."""
        place = LINES if self.is_v2 else FOLDER
        if self.is_v2:
            names = [LINES] if LINES in self.files else []
        else:
            in_folder = (name for name in self.files if name.startswith(FOLDER))
            names = [n for n in in_folder if n.endswith(".parquet") and n.count("/") == 3]
        if any(name in self.pointers for name in names) and self.is_v2:
            return None
        if not names:
            if self.is_first_waiting:
                return None
            if self.raw is not None and self.raw.get("total_episodes") == 0:
                self.found("episodes-empty", "info.json counts no episodes.", file=INFO)
            elif self.info is not None:
                self.note(no_episodes(self.root / place))
            return None
        if self.is_v2:
            return self._listed_in_lines()
        more = ["meta/episodes/chunk_index", "meta/episodes/file_index", "tasks"]
        more += [f"videos/{camera}/{name}" for camera in self._also for name in PLACE_OF_VIDEO]
        return read_episode_tables(self.root, names, self.video_cameras, self.note, more=more)

    def _listed_in_lines(self) -> EpisodeList:
        table, is_whole = read_episode_lines(self.root / LINES, self.note)
        columns = {
            n: as_numpy(table.column(n).cast(pa.int64())) for n in ("episode_index", "length")
        }
        has_tasks = "tasks" in table.column_names and table.schema.field("tasks").type == TEXTS
        tasks = table.column("tasks") if has_tasks else None
        return EpisodeList(columns, tasks, np.zeros(len(table), np.int64), (LINES,), is_whole)

    @cached_property
    def episodes(self) -> Usable | None:
        """The episodes that rows and videos can be compared with; None where there is no list."""
        listing = self.listing
        if listing is None:
            return None
        index, length = listing.columns["episode_index"], listing.columns["length"]
        chosen = usable_episodes(
            index, length, file_of=lambda place: listing.files[listing.file[place]], note=self.note
        )
        every = {name: column[chosen] for name, column in listing.columns.items()}
        tasks = listing.tasks
        if tasks is not None and not np.array_equal(chosen, np.arange(len(listing))):
            tasks = tasks.take(from_numpy(chosen))
        is_whole = listing.is_whole and len(chosen) == len(listing)
        return Usable(index[chosen], length[chosen], every, tasks, is_whole, chosen)

    @cached_property
    def added(self) -> Mapping[int, tuple[str, ...]]:
        """The files of v2's episodes that lie there with a table, and that no list names."""
        if not self.is_v2 or self.episodes is None or not self.episodes.is_whole:
            return {}
        found: dict[int, tuple[str, ...]] = {}
        for name in self.files:
            match = _OF_EPISODE.fullmatch(name)
            if match is not None and not name.startswith("meta/"):
                found[int(match[1])] = (*found.get(int(match[1]), ()), name)
        listed = set(self.episodes.index.tolist())
        return {
            number: names
            for number, names in found.items()
            if number not in listed and any(name.endswith(".parquet") for name in names)
        }

    @cached_property
    def stats(self) -> Stats | None:
        """The whole dataset's statistics, stored or combined; None if there are none to be read."""
        if self.info is None or self.is_first_waiting or self.is_empty:
            return None
        if (EACH if self.is_v2 and EACH in self.files else WHOLE) in self.pointers:
            return None
        if self.is_v2 and EACH in self.files:
            return self._combined_stats()
        if WHOLE in self.files:
            return read_stats(self.root / WHOLE, self.note)
        missing = EACH if self.layout == "v2.1" else WHOLE
        self.found("stats-missing", f"There is no {missing}.", file=missing)
        return None

    def _combined_stats(self) -> Stats | None:
        """Combine the statistics of v2.1's episodes; of huge files, those at the beginning."""
        lengths = None
        if self.episodes is not None:
            numbers = (self.episodes.index.tolist(), self.episodes.length.tolist())
            lengths = dict(zip(*numbers, strict=True))
        meta = self.root / "meta"
        found = read_v2_stats(meta, self.note, lengths=lengths, most_bytes=_MOST_OF_EACH)
        if found is None:
            return None
        self.episode_parts = found.parts
        if self.files[EACH] <= _MOST_OF_EACH and self.episodes is not None:
            seen = np.array([episode for episode, _ in found.parts], np.int64)
            missing = np.setdiff1d(self.episodes.index, seen)
            if len(missing):
                self.found(
                    "episode-stats-missing",
                    f"{len(missing)} of {len(self.episodes)} episodes have no statistics, "
                    f"the first is {missing[0]}.",
                    count=len(missing),
                    episode=missing[0],
                    file=EACH,
                )
        return found.whole

    @cached_property
    def reader(self) -> Reader | None:
        """A reader of the committed episodes; None where the dataset does not open."""
        if self.is_pending:
            return None
        try:
            return open_reader(self.root, pending=False)  # those that wait are in no file
        except (DemoreelError, OSError) as error:
            refuse_shortage(error)
            return None  # the reason is a finding of other checks

    def table_files(self) -> Iterator[tuple[str, np.ndarray]]:
        """Yield each parquet table that the metadata name, with the positions of its episodes."""
        yield from self._named_files("data", None)

    def video_files(self, camera: str) -> Iterator[tuple[str, np.ndarray]]:
        """Yield each video of a camera that the metadata name, with its episodes' positions.

        In Lance, the names are those that the videos would have in v3.0.
        """
        yield from self._named_files(f"videos/{camera}", camera)

    def _named_files(self, prefix: str, camera: str | None) -> Iterator[tuple[str, np.ndarray]]:
        info, episodes = self.info, self.episodes
        if info is None or episodes is None:
            return
        template = info.data_path if camera is None else info.video_path
        if template is None:
            return
        key = {} if camera is None else {"video_key": camera}
        try:
            if self.is_v2:
                for position, index in enumerate(episodes.index.tolist()):
                    numbers = {"episode_chunk": index // info.chunks_size, "episode_index": index}
                    yield template.format(**key, **numbers), np.array([position])
                return
            for (chunk, file), positions in self.sharing(prefix):
                yield template.format(**key, chunk_index=chunk, file_index=file), positions
        except UnsafePathError as error:
            self.found("template-unsafe", error.what, camera=camera, file=INFO)

    def sharing(self, prefix: str) -> list[tuple[tuple[int, int], np.ndarray]]:
        """Return the episodes' positions by the file (chunk, number) that they share."""
        assert self.episodes is not None
        columns = self.episodes.columns
        chunk, file = columns.get(f"{prefix}/chunk_index"), columns.get(f"{prefix}/file_index")
        if chunk is None or file is None or len(chunk) == 0:
            return []
        order = np.lexsort((file, chunk))
        differs = (np.diff(chunk[order]) != 0) | (np.diff(file[order]) != 0)
        parts = np.split(order, np.flatnonzero(differs) + 1)
        return [((int(chunk[p[0]]), int(file[p[0]])), np.sort(p)) for p in parts]


def report_missing(
    look: Look,
    code: str,
    thing: str,
    missing: Mapping[str, np.ndarray],
    named: int,
    **where: Any,
) -> None:
    """Report the files of a kind that are not there, as one finding.

    Args:
        look: The dataset.
        code: The finding.
        thing: What such a file is called.
        missing: The positions of the episodes of each file.
        named: How many such files the metadata name.
        **where: More of the place.
    """
    assert look.episodes is not None
    first, positions = next(iter(missing.items()))
    episodes = len({place for each in missing.values() for place in each.tolist()})
    if episodes == 1:
        where = {**where, "episode": look.episodes.index[positions[0]]}
    look.found(
        code,
        f"{len(missing):,} of {count(named, thing)}, with {count(episodes, 'episode')}, "
        f"like {first}.",
        count=len(missing),
        command=look.fetch,
        file=first,
        **where,
    )


def _is_of_macos(name: str) -> bool:
    return name.rpartition("/")[2].startswith("._")


def list_files(root: Path, *, hidden: bool = False) -> dict[str, int]:
    """Return every file below a folder by its relative path, with its size; -1 for what is none.

    Links are followed, as the Hub's cache is made of them; circles and endless depths are not. Dead
    links, pipes and devices are no files.
    Hidden folders and Lance tables are left out.

    Cost: one stat a file.

    Args:
        root: The folder.
        hidden: Whether hidden folders are looked into as well.
    """
    found: dict[str, int] = {}
    seen: set[tuple[int, int]] = set()
    waiting = [("", 0)]
    while waiting and len(found) < _MOST_FILES:
        folder, depth = waiting.pop()
        try:
            with os.scandir(root / folder) as entries:
                for entry in entries:
                    name = f"{folder}/{entry.name}" if folder else entry.name
                    if _is_folder(entry):
                        if (
                            (hidden or _is_ours(entry.name))
                            and depth < _DEEPEST
                            and _is_new(entry, seen)
                        ):
                            waiting.append((name, depth + 1))
                    else:
                        found[name] = _size(entry)
        except OSError as error:
            refuse_shortage(error)
            continue  # a folder that may not be read has no files for anyone
    return dict(sorted(found.items()))


def bytes_in_tables(root: Path) -> int:
    """Return how many bytes the Lance tables in a folder have.

    Cost: one stat a file.
    """
    tables = (place for place in root.glob("*.lance") if place.is_dir())
    return sum(
        size for table in tables for size in list_files(table, hidden=True).values() if size > 0
    )


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:
        return False


def _is_ours(name: str) -> bool:
    return not name.startswith(".") and not name.endswith(".lance")


def _is_new(entry: os.DirEntry[str], seen: set[tuple[int, int]]) -> bool:
    if not entry.is_symlink():
        return True  # only links make circles
    status = entry.stat()
    place = (status.st_dev, status.st_ino)
    is_new = place not in seen
    seen.add(place)
    return is_new


def _size(entry: os.DirEntry[str]) -> int:
    try:
        status = entry.stat()
    except OSError:
        return -1
    return status.st_size if stat.S_ISREG(status.st_mode) else -1
