"""Changing some columns of a Lance table, and leaving out rows, without writing the rest again.

A row that goes is noted in a file of deletions; new values of a column go into data files of their
own, beside the old ones. Whatever else lies in the rows, pictures say, stays where it is.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from demoreel.storage.arrow import as_numpy
from demoreel.storage.lance_calls import import_lance
from demoreel.storage.lance_versions import StandIn
from demoreel.storage.lance_write import writing

_OFFSET = (1 << 32) - 1  # a row's id is its fragment, then its place in there
_INDEX_KINDS = {"BTree": "BTREE", "Bitmap": "BITMAP", "LabelList": "LABEL_LIST"}


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

    Raises:
        TableError: Lance refuses it.
        OSError: The disk is full or not writable.
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

    Raises:
        TableError: Lance refuses it.
        OSError: The disk is full or not writable.
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
