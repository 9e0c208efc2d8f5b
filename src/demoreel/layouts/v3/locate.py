"""Which table holds which episode, where the metadata do not say: by the rows themselves."""

from __future__ import annotations

import re
import string
from pathlib import Path

import numpy as np

from demoreel.errors import MetadataError
from demoreel.layouts.arrow_in import as_counts
from demoreel.model import PathTemplate
from demoreel.storage.parquet import open_parquet

PLACES = ("data/chunk_index", "data/file_index")
"""The columns of ``meta/episodes`` that say in which table an episode lies."""

_FIELDS = ("chunk_index", "file_index")


def locate_tables(
    root: Path, template: PathTemplate, episodes: np.ndarray
) -> dict[str, np.ndarray]:
    """Return the columns ``PLACES`` for these episodes.

    lerobot does without them: it loads every table, and rows say what they belong to.

    Cost: reads one column of every table.

    Args:
        root: The dataset's folder.
        template: Where its tables lie.
        episodes: ``episode_index`` of each.

    Raises:
        MetadataError: An episode has rows in no table, or in several.
    """
    pattern = _pattern(template)
    found: dict[int, tuple[int, int]] = {}
    for path in sorted(root.glob("data/*/*.parquet")):
        match = pattern.fullmatch(path.relative_to(root).as_posix())
        if match is None:
            continue
        numbers = match.groupdict(default="0")
        place = (int(numbers.get("chunk_index", 0)), int(numbers.get("file_index", 0)))
        for episode in _episodes_in(path):
            if found.setdefault(episode, place) != place:
                raise _unknown(root, f"episode {episode} has rows in several tables", episode)
    absent = [int(episode) for episode in episodes.tolist() if episode not in found]
    if absent:
        raise _unknown(root, f"episode {absent[0]} has rows in none", absent[0])
    places = np.array([found[episode] for episode in episodes.tolist()], np.int64).reshape(-1, 2)
    return {name: places[:, at] for at, name in enumerate(PLACES)}


def _pattern(template: PathTemplate) -> re.Pattern[str]:
    parts, seen = [], set()
    for literal, field, _, _ in string.Formatter().parse(template.text):
        parts.append(re.escape(literal))
        if field in _FIELDS:
            parts.append(f"(?P={field})" if field in seen else rf"(?P<{field}>\d{{1,9}})")
            seen.add(field)
    return re.compile("".join(parts))


def _episodes_in(path: Path) -> list[int]:
    with open_parquet(path, kind=MetadataError) as parquet:
        if "episode_index" not in parquet.schema_arrow.names:
            return []
        numbers = as_counts(parquet.read(["episode_index"]).column("episode_index"))
    return [] if numbers is None else np.unique(numbers).tolist()


def _unknown(root: Path, why: str, episode: int) -> MetadataError:
    return MetadataError(
        f"The episodes' metadata lacks the columns {' and '.join(PLACES)}, and {why}.",
        hint="fetch or restore the tables, or mend the dataset with demoreel repair",
        dataset=root,
        episode=episode,
    )
