"""Reading the statistics as far as they go, whatever the version."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

import numpy as np

from demoreel.errors import MetadataError
from demoreel.model import Stats, combine_stats, stats_from_json
from demoreel.storage.local import refuse_special

if TYPE_CHECKING:
    from demoreel.check.look import Look

WHOLE, EACH = "meta/stats.json", "meta/episodes_stats.jsonl"
_LARGEST_WHOLE = 256 << 20
_MOST_OF_EACH = 128 << 20  # bytes of episodes' statistics that are looked at; Python parses them


def read(look: Look) -> Stats | None:
    """Return the statistics of the whole dataset."""
    if look.is_v2 and EACH in look.files:
        return _combined(look)
    if WHOLE in look.files:
        return _whole(look)
    look.found(
        "stats-missing", f"There is no {EACH if look.layout == 'v2.1' else WHOLE}.", file=WHOLE
    )
    return None


def _whole(look: Look) -> Stats | None:
    try:
        if look.files[WHOLE] > _LARGEST_WHOLE:
            raise ValueError(f"{look.files[WHOLE]} bytes are more than statistics need")
        refuse_special(look.root / WHOLE)
        raw = json.loads((look.root / WHOLE).read_bytes())
    except (ValueError, OSError, RecursionError) as error:
        look.found("stats-unreadable", f"It cannot be read: {error}.", file=WHOLE)
        return None
    if not isinstance(raw, dict):
        look.found("stats-unreadable", "It does not hold an object.", file=WHOLE)
        return None
    return _of_features(look, raw, WHOLE)


def _of_features(look: Look, raw: dict[str, object], file: str, **where: Any) -> Stats:
    """Return the features' statistics that are numbers; the others are findings."""
    good: Stats = {}
    for key, kinds in raw.items():
        try:
            good |= stats_from_json({key: kinds}, where=file)
        except (MetadataError, RecursionError) as error:
            what = error.what if isinstance(error, MetadataError) else "They are nested too deep."
            look.found("stats-unreadable", what, feature=key[:60], file=file, **where)
    return good


def _combined(look: Look) -> Stats | None:
    """Combine the statistics of v2.1's episodes; of huge files, those at the beginning."""
    parts: list[Stats] = []
    seen: list[int] = []
    read = 0
    try:
        refuse_special(look.root / EACH)
        with open(look.root / EACH, "rb") as file:
            for number, line in enumerate(file, 1):
                read += len(line)
                if read > _MOST_OF_EACH:
                    break
                if line.strip():
                    _add_line(look, line, number, parts, seen)
    except OSError as error:
        look.found("stats-unreadable", f"It cannot be read: {error.strerror}.", file=EACH)
        return None
    if read >= os.path.getsize(look.root / EACH):
        _report_missing(look, seen)
    try:
        look.episode_parts = list(zip(seen, parts, strict=True))
        return combine_stats(parts)
    except MetadataError as error:
        look.found("stats-unreadable", error.what, file=EACH)
        return None


def _add_line(look: Look, line: bytes, number: int, parts: list[Stats], seen: list[int]) -> None:
    try:
        entry = json.loads(line)
        episode, raw = entry["episode_index"], entry["stats"]
        if not isinstance(raw, dict) or not isinstance(episode, int):
            raise TypeError("it has no episode_index, or no stats")
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        look.found("stats-unreadable", f"Line {number} is not readable: {error}.", file=EACH)
        return
    seen.append(episode)
    parts.append(_of_features(look, raw, EACH, episode=episode))


def _report_missing(look: Look, seen: list[int]) -> None:
    if look.episodes is None:
        return
    missing = np.setdiff1d(look.episodes.index, np.array(seen, dtype=object).astype(np.int64))
    if len(missing):
        look.found(
            "episode-stats-missing",
            f"{len(missing)} of {len(look.episodes)} episodes have no statistics, "
            f"the first is {missing[0]}.",
            count=len(missing),
            episode=missing[0],
            file=EACH,
        )
