"""A tolerant view of one dataset: what can be read of it, and findings for what cannot.

Nothing here raises on broken data, and nothing is written: not even an interrupted commit is
finished, as opening the dataset would do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from demoreel.check import look_episodes, look_info, look_stats, look_tasks
from demoreel.check.findings import Findings
from demoreel.check.folder import list_files
from demoreel.check.look_episodes import Listing, Usable
from demoreel.errors import DemoreelError, MetadataError, UnsafePathError
from demoreel.layouts.base import Reader
from demoreel.layouts.detect import layout_and_table, open_reader
from demoreel.model import Info, Stats
from demoreel.storage.journal import is_pending

if TYPE_CHECKING:
    from demoreel.check.fingerprints import Prints


class Look:
    """What can be seen of a dataset.

    Everything is read when it is first asked for, and read once; what goes wrong then is a finding.

    Args:
        root: The dataset's folder.
        thresholds: The numbers to decide by.
    """

    def __init__(self, root: Path, thresholds: Mapping[str, float]) -> None:
        self.root = root
        self.thresholds = thresholds
        self.findings = Findings(str(root))
        self.facts: dict[str, Any] = {}
        self.progress: Callable[[float], None] = lambda share: None
        """Takes the share of its work that a family has done; for those that take long."""
        self.broken: set[str] = set()
        """Lance tables that cannot be scanned; what is wrong with them is a finding."""
        self.episode_parts: list[tuple[int, Stats]] = []
        """Statistics of v2.1's episodes, by index, once ``stats`` has been asked for."""
        self.misplaced: set[str | None] = set()
        """Cameras (None: the tables) whose files all lie elsewhere: one finding, not many."""
        self.prints: Prints | None = None
        """The episodes' fingerprints, once all rows have been seen."""
        self.appearances: dict[str, dict[int, np.ndarray]] = {}
        """What episodes look like (camera, ``episode_index``), once pictures were decoded."""

    def found(self, code: str, what: str, *, count: int = 1, **where: Any) -> None:
        """Note a finding: see ``Findings.add``."""
        self.findings.add(code, what, count=count, **where)

    @cached_property
    def files(self) -> dict[str, int]:
        """Every file of the folder with its size, but for hidden ones and Lance tables."""
        return list_files(self.root)

    @cached_property
    def raw(self) -> dict[str, Any] | None:
        """``info.json`` as it is; None where it cannot be parsed."""
        return look_info.read_raw(self.root, self.found)

    @cached_property
    def info(self) -> Info | None:
        """What of ``info.json`` can be used (see ``look_info.salvaged``); None if nothing."""
        return look_info.salvaged(self.root, self.raw, self.found) if self.raw is not None else None

    @cached_property
    def is_pending(self) -> bool:
        """Whether a commit was begun and is not in place."""
        return is_pending(self.root)

    @cached_property
    def layout(self) -> str | None:
        """The layout's name; None where it cannot be told."""
        return self._layout_and_table[0]

    @cached_property
    def table(self) -> str | None:
        """The name of the Lance table of rows, without its ending; None outside Lance."""
        return self._layout_and_table[1] or None

    @cached_property
    def _layout_and_table(self) -> tuple[str | None, str]:
        if self.info is None:
            return None, ""
        try:
            return layout_and_table(self.root, self.info)
        except MetadataError as error:
            several = "several datasets" in error.what
            code = "lance-tables-several" if several else "storage-unknown"
            self.found(code, error.what, file=look_info.FILE)
            return None, ""

    @property
    def is_v2(self) -> bool:
        """Whether it is v2.0 or v2.1."""
        return self.info is not None and self.info.version.startswith("v2")

    @property
    def is_lance(self) -> bool:
        """Whether rows lie in a Lance table."""
        return self.layout is not None and self.layout.startswith("lance")

    @cached_property
    def filmed(self) -> tuple[str, ...]:
        """The cameras whose pictures lie in videos."""
        if self.info is None or self.layout == "lance-frames":
            return ()
        return self.info.video_keys

    @cached_property
    def tasks(self) -> look_tasks.TaskList | None:
        """The tasks; None where they cannot be read."""
        if self.info is None:
            return None
        return look_tasks.read(self.root, self.files, is_v2=self.is_v2, found=self.found)

    @cached_property
    def listing(self) -> Listing | None:
        """The episodes as they are listed; None where there is no list."""
        if self.is_v2:
            return look_episodes.read_lines(self.root, self.files, self.found)
        return look_episodes.read_tables(self.root, self.files, self.filmed, self.found)

    @cached_property
    def episodes(self) -> Usable | None:
        """The episodes that rows and videos can be compared with; None where there is no list."""
        return look_episodes.usable(self.listing) if self.listing is not None else None

    @cached_property
    def stats(self) -> Stats | None:
        """The whole dataset's statistics, stored or combined; None if there are none to be read."""
        return look_stats.read(self) if self.info is not None else None

    @cached_property
    def reader(self) -> Reader | None:
        """The dataset as everybody else reads it; None where it does not open.

        Nor is it opened where a commit waits to be finished, as that would finish it.
        """
        if self.is_pending:
            return None
        try:
            return open_reader(self.root)
        except (DemoreelError, OSError):
            return None  # why is somebody else's finding

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
            self.found("template-unsafe", error.what, camera=camera, file=look_info.FILE)

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
