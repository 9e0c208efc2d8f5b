"""``meta/demoreel.json``: which statistics are not exactly those of the data.

LeRobot's files have no place to say so. The note names the file of statistics that it is about by a
check sum: once another program has written that file anew, nothing is known any more.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from demoreel.errors import DemoreelError
from demoreel.layouts.writing import write_json
from demoreel.model import Feature, Stats
from demoreel.storage.json_files import read_json

NOTE = "demoreel.json"
"""The note's name, in the folder of metadata."""

Approximate = dict[str, list[str]]
"""Feature key -> kinds of its statistics that are approximate; exact ones are left out."""

_STATS = ("episodes_stats.jsonl", "stats.json")


def write_note(path: Path, approximate: Mapping[str, Sequence[str]], *, stats: Path) -> None:
    """Write a note.

    Args:
        path: The file to make.
        approximate: Kinds of statistics that are approximate, by feature.
        stats: The file of statistics that it is about.
    """
    listed = {key: list(kinds) for key, kinds in approximate.items() if kinds}
    write_json(path, {"approximate_stats": listed, "of_stats": _check_sum(stats)})


def noted(meta: Path) -> Approximate | None:
    """Return which statistics are approximate; None where nothing is known.

    Cost: reads the file of statistics.

    Args:
        meta: The folder of metadata.
    """
    stats = next((meta / name for name in _STATS if (meta / name).is_file()), None)
    if stats is None or not (meta / NOTE).is_file():
        return None
    try:
        raw: Any = read_json(meta / NOTE)
        if raw["of_stats"] != _check_sum(stats):
            return None
        return {
            str(key): [str(k) for k in kinds] for key, kinds in raw["approximate_stats"].items()
        }
    except (DemoreelError, KeyError, TypeError, AttributeError):
        return None


def approximate_stats(meta: Path, features: Mapping[str, Feature], stats: Stats) -> Approximate:
    """Return which of a dataset's statistics are, or may be, approximate.

    Where nothing is known, because another program wrote them, these are: quantiles of numbers,
    which are combined from those of episodes there, and all of frames, of which some are looked
    at.

    Args:
        meta: The folder of metadata.
        features: The dataset's features.
        stats: Its statistics.
    """
    known = noted(meta)
    if known is not None:
        return known
    found: Approximate = {}
    for key, kinds in stats.items():
        camera = key in features and features[key].is_camera
        listed = [kind for kind in kinds if camera or kind.startswith("q")]
        if listed:
            found[key] = listed
    return found


def _check_sum(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
