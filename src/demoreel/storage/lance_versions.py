"""Versions of a Lance table that come into place together with other files, or not at all.

Lance commits by putting a manifest into a table's ``_versions`` folder: one table, one commit. An
episode is a commit to two tables and some files beside them. So Lance commits to a stand-in: a
folder that begins with the table's newest manifest and nothing else. What it writes there, data
files and the next manifest, is moved into the table by ``storage/journal.py`` along with everything
else that belongs to the change. Until then the table holds nothing new, not even files that no
manifest names; after it, other programs find a version that Lance itself has made.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from demoreel.errors import TableError
from demoreel.storage.journal import Transaction
from demoreel.storage.lance_calls import import_lance
from demoreel.storage.lance_write import append_rows, write_rows, writing

_VERSIONS, _HINT = "_versions", "latest_version_hint.json"
_LATEST = 2**64 - 1
_DIGITS = 20  # names of this length count backwards, so that a listing begins with the newest


def versions_of(table: Path) -> dict[int, Path]:
    """Return the manifest of every version of a local table, without a look into them."""
    found = {}
    for path in (table / _VERSIONS).glob("*.manifest"):
        if path.stem.isdigit():
            number = int(path.stem)
            found[_LATEST - number if len(path.stem) == _DIGITS else number] = path
    return found


def newest_version(table: Path) -> int | None:
    """Return the newest version of a local table; None if there is none to be seen."""
    return max(versions_of(table), default=None)


class GrowingTable:
    """A Lance table that this process alone writes to.

    Args:
        path: The table's folder.
        keep: The version up to which all stay for good; those after it may be pruned.

    Raises:
        TableError: There is no such table.
    """

    def __init__(self, path: Path, *, keep: int | None = None) -> None:
        self.path = path
        there = versions_of(path)
        if not there:
            raise TableError("A Lance table has no version.", hint="restore it", table=path)
        self.version = max(there)
        self._backwards = len(there[self.version].stem) == _DIGITS
        self.keep = self.version if keep is None else keep
        self._left = {v: -math.inf for v in there if self.keep < v < self.version}

    def open(self, version: int | None = None) -> Any:
        """Return Lance's own object at a version; None is the newest that this process knows."""
        with writing(self.path):
            return import_lance().dataset(os.fspath(self.path), version=version or self.version)

    def stand_in(self, folder: Path, *, with_files: bool = False) -> StandIn:
        """Return a stand-in to make the next version in.

        Args:
            folder: Where; on the table's disk.
            with_files: Whether Lance must be able to read the table's rows there.

        Raises:
            TableError: Another program has written to the table.
        """
        if os.path.lexists(self.manifest(self.version + 1)):
            raise TableError(
                "Another program has written to a Lance table while demoreel appends to it.",
                hint="let one of them write at a time, then resume",
                table=self.path,
                version=newest_version(self.path),
                expected=self.version,
            )
        return StandIn(self, folder / self.path.name, with_files=with_files)

    def manifest(self, version: int) -> Path:
        """Return where the manifest of a version lies."""
        name = f"{_LATEST - version:0{_DIGITS}d}" if self._backwards else str(version)
        return self.path / _VERSIONS / f"{name}.manifest"

    def grow(self, version: int) -> None:
        """Take note that a newer version is in place."""
        now = time.monotonic()
        self._left |= dict.fromkeys(range(max(self.version, self.keep + 1), version), now)
        self.version = version

    def prune(self, before: float = math.inf) -> None:
        """Remove versions that nobody named, and the files that only they had.

        Those up to ``keep``, tagged ones and the newest stay. Readers that have a pruned version
        open are told that a file is missing.

        Args:
            before: Only versions that were the newest until before then (``time.monotonic``).
        """
        due = {version for version, since in self._left.items() if since <= before}
        if not due:
            return
        there = versions_of(self.path)
        with writing(self.path):
            tagged = {int(tag["version"]) for tag in self.open().tags.list().values()}
        gone = (due & there.keys()) - tagged
        kept = {max(there), self.version, self.keep, *tagged} & there.keys()
        if gone:
            # A version that has lost its files is still known as one to be removed.
            self._remove(self._files_of(gone) - self._files_of(kept))
        for version in gone:
            there[version].unlink(missing_ok=True)
            for path in (self.path / "_transactions").glob(f"{version - 1}-*.txn"):
                path.unlink(missing_ok=True)
        for version in due:
            del self._left[version]

    def _files_of(self, versions: set[int]) -> set[str]:
        found = set()
        with_indices = (self.path / "_indices").is_dir()
        for version in versions:
            table = self.open(version)
            for fragment in table.get_fragments():
                found |= {f"data/{file.path}" for file in fragment.metadata.files}
            if with_indices:
                segments = (part for index in table.describe_indices() for part in index.segments)
                found |= {f"_indices/{part.uuid}" for part in segments}
        return found

    def _remove(self, names: set[str]) -> None:
        """Remove data files, with the blobs beside them, and the folders of indices."""
        for name in names:
            path = self.path / name
            if name.endswith(".lance"):
                path.unlink(missing_ok=True)
            shutil.rmtree(path.with_suffix(""), ignore_errors=True)


class StandIn:
    """A folder in which Lance makes a table's next version, unseen.

    Args:
        table: The table.
        folder: The folder to make.
        with_files: Whether the table's files are to be seen in it.
    """

    def __init__(self, table: GrowingTable, folder: Path, *, with_files: bool) -> None:
        self.folder = folder
        self._table = table
        self._base = 0
        self.rebase()
        if with_files:
            for name in ("data", "_indices", "_deletions"):
                _link_tree(table.path / name, folder / name)

    @property
    def version(self) -> int:
        """The newest version that was made here."""
        return max(versions_of(self.folder))

    def rebase(self) -> None:
        """Begin with the version that is the table's newest now. Files written here stay."""
        if self._base == self._table.version:
            return
        shutil.rmtree(self.folder / _VERSIONS, ignore_errors=True)
        self._base = self._table.version
        (self.folder / _VERSIONS).mkdir(parents=True)
        self._link(self._table.manifest(self._base))

    def _link(self, manifest: Path) -> None:
        target = self.folder / _VERSIONS / manifest.name
        if target.exists():
            return
        try:
            os.link(manifest, target)
        except OSError:  # a disk without links
            shutil.copyfile(manifest, target)

    def append(self, fragments: Sequence[str]) -> int:
        """Add fragments behind the others; return the last one's number."""
        operation = import_lance().LanceOperation.Append(_parts(fragments))
        table = self.commit(operation)
        return int(max(fragment.fragment_id for fragment in table.get_fragments()))

    def rewrite(self, old: Sequence[int], fragments: Sequence[str]) -> None:
        """Put one fragment in the place of neighbours; no index may cover them."""
        operations = import_lance().LanceOperation
        (new,) = _parts(fragments)
        table = self.open()
        # Lance orders fragments by number, and gives one that has none (0) the highest.
        new.id = old[-1]
        parts = [table.get_fragment(number).metadata for number in old]
        self.commit(operations.Rewrite([operations.RewriteGroup(parts, [new])], []))

    def overwrite(self, rows: pa.Table) -> None:
        """Put these rows in the place of all."""
        schema = self.open().schema
        operation = import_lance().LanceOperation.Overwrite(
            schema, _parts(append_rows(self.folder, rows))
        )
        self.commit(operation)

    def replace_rows(self, schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> None:
        """Put these rows, which may have other columns, in the place of all."""
        written = write_rows(self.folder, schema, batches, replace=True)
        self.commit(import_lance().LanceOperation.Overwrite(schema, _parts(written)))

    def restore(self, version: int) -> None:
        """Make a version that is what an older one was; no row is written."""
        self._link(self._table.manifest(version))
        self.commit(import_lance().LanceOperation.Restore(version))

    def make_indices(self, kinds: Mapping[str, str]) -> None:
        """Make scalar indices (``BTREE`` or ``BITMAP``) of columns, in the place of older ones."""
        with writing(self.folder):
            for column, kind in kinds.items():
                self.open().create_scalar_index(column, kind)

    def renew_indices(self, missing: Mapping[str, str]) -> None:
        """Bring the scalar indices up to date, and make those that are missing.

        Args:
            missing: The kind of index (``BTREE`` or ``BITMAP``) of columns without one.
        """
        with writing(self.folder):
            table = self.open()
            if table.describe_indices():
                table.optimize.optimize_indices()
            for column, kind in missing.items():
                self.open().create_scalar_index(column, kind)

    def move_into(self, changes: Transaction, root: Path, *, since: int = 0) -> int:
        """Announce all that was made here, manifests last; return the newest version.

        Args:
            changes: What they come into place with.
            root: The dataset's folder.
            since: Versions before this one were steps on the way, and are left out.
        """
        name = self._table.path.relative_to(root).as_posix()
        version = self.version
        for path in self._made(since):
            os.rename(path, changes.new(f"{name}/{path.relative_to(self.folder).as_posix()}"))
        return version

    def _made(self, since: int) -> list[Path]:
        manifests = versions_of(self.folder)
        made = (version for version in sorted(manifests) if version > self._base)
        last = [manifests[version] for version in made if version >= since]
        skipped = {*manifests.values(), self.folder / _VERSIONS / _HINT}
        files = (path for path in _files_below(self.folder) if path not in skipped)
        return [*sorted(files), *last]

    def open(self) -> Any:
        """Return Lance's own object, at the newest version that was made here."""
        with writing(self.folder):
            return import_lance().dataset(os.fspath(self.folder))

    def commit(self, operation: Any) -> Any:
        """Let Lance make a version by one of its operations."""
        with writing(self.folder):
            lance = import_lance()
            table = lance.dataset(os.fspath(self.folder))
            return lance.LanceDataset.commit(table, operation, read_version=table.version)


def hint_of(version: int) -> bytes:
    """Return what Lance notes beside its manifests of the newest one."""
    return json.dumps({"version": version}, separators=(",", ":")).encode()


def hint_name(table: str) -> str:
    """Return where in a table's folder Lance notes the newest version."""
    return f"{table}/{_VERSIONS}/{_HINT}"


def _parts(fragments: Sequence[str]) -> list[Any]:
    from lance.fragment import FragmentMetadata

    return [FragmentMetadata.from_json(text) for text in fragments]


def _link_tree(source: Path, target: Path) -> None:
    for path in _files_below(source):
        link = target / path.relative_to(source)
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(path.resolve())


def _files_below(folder: Path) -> Iterator[Path]:
    for parent, _, names in os.walk(folder):
        for name in names:
            path = Path(parent) / name
            if not path.is_symlink():
                yield path


def indexed_fragments(table: Any) -> dict[str, set[int]]:
    """Return for each column with a scalar index the numbers of the fragments that it covers."""
    found: dict[str, set[int]] = {}
    for index in table.describe_indices():
        for part in index.segments:
            found.setdefault(index.field_names[0], set()).update(part.fragment_ids)
    return found
