"""Commits versions of a Lance table together with other files, in one step.

Lance commits by putting a manifest into a table's ``_versions`` folder: one table, one commit. An
episode is a commit to two tables and some files beside them. So Lance commits to a stand-in: a
folder that begins with the table's newest manifest and nothing else. What it writes there, data
files and the next manifest, is moved into the table by ``storage/commit/journal.py`` along with
everything else that belongs to the change. Until then the table holds nothing new, not even files
that no manifest names; after it, other programs find a version that Lance itself has made.

Some columns of a table change, and rows are left out, without writing the rest again: a row that
goes is noted in a file of deletions; new values of a column go into data files of their own, beside
the old ones. Whatever else is in the rows, images say, stays where it is.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from demoreel.errors import ArgumentError, TableError
from demoreel.layouts.lance.calls import import_lance, open_to_write
from demoreel.layouts.lance.tables import DIGITS, LATEST, VERSIONS, newest_version, versions_of
from demoreel.layouts.lance.write import append_rows, write_rows, writing
from demoreel.storage.arrow import as_numpy
from demoreel.storage.commit.journal import Transaction

_HINT = "latest_version_hint.json"
_OFFSET = (1 << 32) - 1  # a row's id is its fragment, then its place in there
_INDEX_KINDS = {"BTree": "BTREE", "Bitmap": "BITMAP", "LabelList": "LABEL_LIST"}
_DONE = {
    "Append": "appended rows",
    "CreateIndex": "indexed",
    "Overwrite": "wrote all rows",
    "Rewrite": "merged files",
    "Restore": "went back",
}


class GrowingTable:
    """A Lance table that this process alone writes to.

    Args:
        path: The table's folder.
        keep: The version up to which all stay for good; those after it may be pruned.
    """

    def __init__(self, path: Path, *, keep: int | None = None) -> None:
        self.path = path
        there = versions_of(path)
        if not there:
            raise TableError("A Lance table has no version.", hint="restore it", table=path)
        self.version = max(there)
        self._backwards = len(there[self.version].stem) == DIGITS
        self.keep = self.version if keep is None else keep
        self._left = {v: -math.inf for v in there if self.keep < v < self.version}

    def open(self, version: int | None = None) -> Any:
        """Return Lance's own object at a version; None is the newest known here."""
        with writing(self.path):
            return open_to_write(self.path, version or self.version)

    def stand_in(self, folder: Path, *, with_files: bool = False) -> StandIn:
        """Return a stand-in to make the next version in.

        Args:
            folder: Where; on the table's disk.
            with_files: Whether Lance must be able to read the table's rows there.
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
        """Return where the manifest of a version is."""
        name = f"{LATEST - version:0{DIGITS}d}" if self._backwards else str(version)
        return self.path / VERSIONS / f"{name}.manifest"

    def grow(self, version: int) -> None:
        """Take note that a newer version is in place."""
        now = time.monotonic()
        self._left |= dict.fromkeys(range(max(self.version, self.keep + 1), version), now)
        self.version = version

    def prune(self, before: float = math.inf) -> None:
        """Remove versions without a name, and the files that only they had.

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
        shutil.rmtree(self.folder / VERSIONS, ignore_errors=True)
        self._base = self._table.version
        (self.folder / VERSIONS).mkdir(parents=True)
        self._link(self._table.manifest(self._base))

    def _link(self, manifest: Path) -> None:
        target = self.folder / VERSIONS / manifest.name
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
        self.make_indices(missing)

    def move_into(self, changes: Transaction, root: Path, *, since: int = 0) -> int:
        """Announce all that was made here, manifests last, and the hint of the newest version.

        Args:
            changes: What they come into place with.
            root: The dataset's folder.
            since: Versions before this one were steps on the way, and are left out.

        Returns:
            The newest version.
        """
        name = self._table.path.relative_to(root).as_posix()
        version = self.version
        for path in self._made(since):
            os.rename(path, changes.new(f"{name}/{path.relative_to(self.folder).as_posix()}"))
        hint = json.dumps({"version": version}, separators=(",", ":"))  # as Lance writes it
        changes.new(f"{name}/{VERSIONS}/{_HINT}").write_text(hint)
        return version

    def _made(self, since: int) -> list[Path]:
        manifests = versions_of(self.folder)
        made = (version for version in sorted(manifests) if version > self._base)
        last = [manifests[version] for version in made if version >= since]
        skipped = {*manifests.values(), self.folder / VERSIONS / _HINT}
        files = (path for path in _files_below(self.folder) if path not in skipped)
        return [*sorted(files), *last]

    def open(self) -> Any:
        """Return Lance's own object, at the newest version that was made here."""
        with writing(self.folder):
            return open_to_write(self.folder)

    def commit(self, operation: Any) -> Any:
        """Let Lance make a version by one of its operations."""
        with writing(self.folder):
            lance = import_lance()
            table = open_to_write(self.folder)
            return lance.LanceDataset.commit(table, operation, read_version=table.version)


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


def scan_ids(stand_in: StandIn, columns: Sequence[str]) -> tuple[np.ndarray, pa.Table]:
    """Return the ids of all rows that are not deleted, in their order, and some columns."""
    with writing(stand_in.folder):
        table = stand_in.open().scanner(columns=list(columns), with_row_id=True).to_table()
    return as_numpy(table.column("_rowid")), table.select(list(columns))


def keep_rows(stand_in: StandIn, ids: np.ndarray, values: pa.Table) -> None:
    """Leave out all rows but some, and give those other values in some columns; one version.

    Args:
        stand_in: The table, with its files.
        ids: The rows that stay, ascending.
        values: New values of columns that the table has, in their types, a row for each.
    """
    with writing(stand_in.folder):
        changed, gone, fields = [], [], set()
        for fragment in stand_in.open().get_fragments():
            own = np.flatnonzero(ids >> np.uint64(32) == fragment.fragment_id)
            if not len(own):
                gone.append(fragment.fragment_id)
                continue
            new = values.take(pa.array(own)).append_column("_rowid", pa.array(ids[own]))
            with_values, modified = fragment.update_columns(new)
            fields |= set(modified)
            changed.append(_without_others(fragment, with_values, ids[own]))
        operation = import_lance().LanceOperation.Update(
            removed_fragment_ids=gone, updated_fragments=changed, fields_modified=sorted(fields)
        )
        stand_in.commit(operation)


def _without_others(fragment: Any, changed: Any, ids: np.ndarray) -> Any:
    """Return a fragment's description with all rows but these deleted."""
    from lance.fragment import FragmentMetadata

    there = fragment.scanner(columns=[], with_row_id=True).to_table().column("_rowid")
    others = np.setdiff1d(as_numpy(there), ids) & np.uint64(_OFFSET)
    if not len(others):
        return changed
    left = fragment.delete_rows(others.tolist())
    described = {**changed.to_json(), "deletion_file": left.to_json()["deletion_file"]}
    return FragmentMetadata.from_json(json.dumps(described))


def change_columns(
    stand_in: StandIn,
    *,
    remove: Sequence[str],
    rename: Mapping[str, pa.Field],
    add: pa.Table,
) -> None:
    """Remove, rename and add columns; several versions.

    Args:
        stand_in: The table, with its files.
        remove: Columns to leave out; their values stay in the files that older versions have.
        rename: New names of columns, with their metadata, by the old ones.
        add: New columns, a row for each row of the table.
    """
    with writing(stand_in.folder):
        if remove:
            stand_in.open().drop_columns(list(remove))
        if rename:
            # In two steps: a new name may be another column's old one.
            between = {old: f"demoreel_renamed_{number}" for number, old in enumerate(rename)}
            changes = [{"path": old, "name": name} for old, name in between.items()]
            stand_in.open().alter_columns(*changes)
            changes = [{"path": between[old], "name": f.name} for old, f in rename.items()]
            stand_in.open().alter_columns(*changes)
            stand_in.open().update_field_metadata(
                {
                    field.name: {
                        key.decode(): text.decode() for key, text in field.metadata.items()
                    }
                    for field in rename.values()
                }
            )
        if add.num_columns:
            stand_in.open().add_columns(add.to_reader())


def indices_of(table: Any) -> dict[str, str]:
    """Return the kind of scalar index (``BTREE``, ``BITMAP``) of each column that has one."""
    return {
        index.field_names[0]: _INDEX_KINDS[index.index_type]
        for index in table.describe_indices()
        if index.index_type in _INDEX_KINDS
    }


@dataclass(frozen=True, slots=True)
class TableVersion:
    """One version of a table.

    Attributes:
        number: Its number.
        time: When it was made.
        rows: How many rows it has.
        done: What Lance did to make it; empty where that is not known.
    """

    number: int
    time: datetime
    rows: int
    done: str


def list_versions(table: Path) -> list[TableVersion]:
    """Return all versions that are still there, oldest first.

    Cost: a read of every manifest.
    """
    with writing(table):
        opened = open_to_write(table)
        listed = opened.versions()
        done = {entry["version"]: _done(opened, entry["version"]) for entry in listed}
    return [
        TableVersion(
            number=entry["version"],
            time=entry["timestamp"].astimezone(),
            rows=int(entry["metadata"].get("total_rows", 0)),
            done=done[entry["version"]],
        )
        for entry in listed
    ]


def _done(table: Any, version: int) -> str:
    """Return what Lance noted of a version; it may not be there any more."""
    try:
        noted = table.read_transaction(version)
    except (OSError, ValueError):
        return ""
    return "" if noted is None else _DONE.get(type(noted.operation).__name__, "")


def list_tags(table: Path) -> dict[str, int]:
    """Return the version of each tag."""
    with writing(table):
        tags = open_to_write(table).tags.list()
    return {name: int(tag["version"]) for name, tag in tags.items()}


def add_tag(table: Path, name: str, version: int) -> None:
    """Give a version a name."""
    refuse_odd_name(name)
    taken = list_tags(table).get(name)
    if taken is not None:
        raise ArgumentError(
            f"Version {taken} has the tag {name!r} already.",
            hint="delete it first, or choose another name",
            table=table,
        )
    with writing(table):
        open_to_write(table).tags.create(name, version)


def remove_tag(table: Path, name: str) -> int:
    """Take a name away, and return the version that had it."""
    tags = list_tags(table)
    if name not in tags:
        known = f"there are: {', '.join(sorted(tags))}" if tags else "it has none"
        raise ArgumentError(f"The dataset has no tag {name!r}.", hint=known, table=table)
    with writing(table):
        open_to_write(table).tags.delete(name)
    return tags[name]


def refuse_odd_name(name: str) -> None:
    """Refuse what cannot be the name of a version."""
    plain = name.replace("-", "").replace("_", "").replace(".", "")
    if not plain.isalnum() or not name.isascii() or name.isdigit() or ".." in name:
        raise ArgumentError(
            f"A tag cannot be called {name!r}.",
            hint="letters, digits, '-', '_' and '.'; not a number alone",
        )
