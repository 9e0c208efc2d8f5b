"""Checks of the tables: are the files there, whole, and do they hold the rows that they should."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np

from demoreel.check import lance_rows
from demoreel.check.look import Look
from demoreel.check.look_episodes import UNREADABLE, first_line
from demoreel.check.parquet_files import Unreadable, check_schema, open_parquet, portions
from demoreel.check.row_places import RowPlaces
from demoreel.check.rows import Portion, Portions, RowCheck, cores, scan_rows
from demoreel.model import Feature

_THREADS_FROM = 2  # files from which each has a thread of its own
_SMALLEST_PICTURE = 16


def check_tables(look: Look, checks: Sequence[RowCheck]) -> None:
    """Check every table, and show all of its numbers to the checks that want to see them.

    Cost: decodes every number once: 2 million rows of 26 numbers a second on two cores.

    Args:
        look: The dataset.
        checks: Who else wants to see the rows.
    """
    if look.info is None or look.layout is None:
        _check_files_only(look)
        return
    places = RowPlaces(look)
    if look.is_lance:
        if f"{look.table}.lance" in look.broken:
            return
        scan_rows(lance_rows.files(look), [places, *checks], 1, look.findings)
        return
    named = dict(look.table_files())
    present = [name for name in named if name in look.files]
    _report_missing(look, named)
    orphans = [name for name in _data_files(look) if name not in named]
    places.expect(named)
    files = _decoders(look, [*present, *orphans])
    threads = min(cores(), max(1, len(present)))
    scan_rows(files, [places, *checks], threads, look.findings)
    look.facts["tables"] = len(present)
    _report_orphans(look, orphans, places)


def _check_files_only(look: Look) -> None:
    """Without an info, all that can be told is whether files are whole."""
    for name in _data_files(look):
        try:
            open_parquet(look, name).close()
        except Unreadable:
            continue


def _data_files(look: Look) -> list[str]:
    return [
        name for name in look.files if name.endswith(".parquet") and not name.startswith("meta/")
    ]


def _report_missing(look: Look, named: dict[str, np.ndarray]) -> None:
    if None in look.misplaced:
        return
    assert look.episodes is not None or not named
    for name, positions in named.items():
        if name not in look.files and look.episodes is not None:
            look.found(
                "table-missing",
                f"It should hold {len(positions)} episodes.",
                episode=look.episodes.index[positions[0]],
                file=name,
            )


def _decoders(look: Look, names: list[str]) -> Iterator[Portions]:
    assert look.info is not None
    stored = {key: f for key, f in look.info.features.items() if not f.is_video}
    numeric = {key: feature for key, feature in stored.items() if feature.is_numeric}
    threads = len(names) < _THREADS_FROM
    for name in names:
        yield partial(_decode, look, name, stored, numeric, threads)


def _decode(
    look: Look,
    name: str,
    stored: dict[str, Feature],
    numeric: dict[str, Feature],
    threads: bool,
) -> Iterator[Portion]:
    try:
        with open_parquet(look, name) as parquet:
            check_schema(look, name, parquet.schema_arrow, stored)
            _check_others(look, name, parquet.metadata, stored)
    except Unreadable:
        return
    except UNREADABLE as error:
        look.found("table-damaged", f"Its footer is damaged: {first_line(error)}.", file=name)
        return
    yield from portions(look, name, numeric, threads)


def _check_others(look: Look, name: str, footer: Any, stored: dict[str, Feature]) -> None:
    """Check texts and pictures by what the footer says of them: none of their bytes is read."""
    for number in range(footer.num_row_groups):
        group = footer.row_group(number)
        for place in range(group.num_columns):
            chunk = group.column(place)
            feature = stored.get(chunk.path_in_schema.removesuffix(".bytes"))
            if feature is None:
                continue
            statistics = chunk.statistics
            missing = int(statistics.null_count or 0) if statistics is not None else 0
            if feature.is_image:
                small = chunk.total_uncompressed_size < _SMALLEST_PICTURE * group.num_rows
                _report_pictures(look, name, feature, missing or small * group.num_rows)
            elif feature.is_string and missing:
                look.found(
                    "value-missing",
                    f"{missing} values of {feature.key} are missing.",
                    count=missing,
                    feature=feature.key,
                    file=name,
                )


def _report_pictures(look: Look, name: str, feature: Feature, missing: int) -> None:
    if missing:
        look.found(
            "picture-missing",
            f"{missing} pictures of {feature.key} are missing or empty.",
            count=missing,
            camera=feature.key,
            file=name,
        )


def _report_orphans(look: Look, orphans: list[str], places: RowPlaces) -> None:
    """Report tables that no episode names, unless their rows are those of a known episode."""
    if None in look.misplaced or look.episodes is None or not look.episodes.is_whole:
        return
    for name in orphans:
        if name not in places.claimed:
            look.found("table-orphan", f"It has {look.files[name]} bytes.", file=name)
