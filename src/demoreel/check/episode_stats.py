"""The statistics that each episode has of its own, against its rows."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from demoreel.check.look import EACH, FOLDER, Look
from demoreel.check.rows import Portion
from demoreel.layouts.meta import read_episode_columns
from demoreel.model import DEFAULT_FEATURES, Feature
from demoreel.model.problems import ignore
from demoreel.storage.arrow import as_numpy, is_number

_KINDS = ("min", "max", "mean")
_MOST_NUMBERS = 1 << 25  # of one kind of one feature, over all episodes; more are not compared


@dataclass(frozen=True)
class EpisodeStats:
    """One feature's statistics, by episode.

    Attributes:
        file: Where they are recorded.
        known: For each usable episode, whether it has them.
        kinds: ``min``, ``max`` and ``mean``: a row per usable episode.
    """

    file: str
    known: np.ndarray
    kinds: dict[str, np.ndarray]

    def compare(
        self, look: Look, portion: Portion, low: np.ndarray, high: np.ndarray, mean: np.ndarray
    ) -> None:
        """Compare the rows of a portion's episodes with what is recorded of them."""
        assert look.episodes is not None
        position = look.episodes.positions_of(portion.run_episodes)
        whole = (position >= 0) & (portion.run_lengths == look.episodes.length[position])
        whole &= self.known[position]
        runs = np.flatnonzero(whole)
        width = self.kinds["min"].shape[1]
        if len(runs) == 0 or low.shape[1] != width:
            return
        size = np.maximum(np.abs(low[runs]), np.abs(high[runs])).astype(np.float64)
        span = high[runs].astype(np.float64) - low[runs]
        slack = look.thresholds["range_slack"] * span + 1e-6 * size + 1e-9
        for kind, values in (("min", low), ("max", high), ("mean", mean)):
            said = self.kinds[kind][position[runs]]
            limit = slack if kind != "mean" else slack + look.thresholds["mean_slack"] * span
            wrong = (~(np.abs(values[runs] - said) <= limit)).any(axis=1)
            for place in np.flatnonzero(wrong).tolist():
                off = ~(np.abs(values[runs[place]] - said[place]) <= limit[place])
                at = int(np.flatnonzero(off)[0])
                look.found(
                    "episode-stats-differ",
                    f"The {kind} of dimension {at} is {values[runs[place]][at]:.6g}; recorded is "
                    f"{said[place][at]:.6g}.",
                    episode=portion.run_episodes[runs[place]],
                    file=self.file,
                )
            if wrong.any():
                return


def read_episode_stats(look: Look) -> dict[str, EpisodeStats]:
    """Return what is recorded of each episode, by feature; nothing where there is too much."""
    if look.info is None or look.episodes is None or len(look.episodes) == 0:
        return {}
    return _from_lines(look) if look.is_v2 else _from_tables(look)


def _from_tables(look: Look) -> dict[str, EpisodeStats]:
    assert look.info is not None
    assert look.episodes is not None
    assert look.listing is not None
    widths = {
        key: math.prod(feature.item_shape)
        for key, feature in look.info.features.items()
        if _is_compared(feature, len(look.listing))
    }
    files = [look.listing.files[number] for number in np.unique(look.listing.file).tolist()]
    parts = [_read(look, name, widths) for name in files]
    found: dict[str, EpisodeStats] = {}
    for key in widths:
        if not parts or not all(key in part for part in parts):
            continue
        kinds = {
            kind: np.concatenate([part[key][kind] for part in parts])[look.episodes.listed]
            for kind in _KINDS
        }
        known = np.all([np.isfinite(part).all(axis=1) for part in kinds.values()], axis=0)
        found[key] = EpisodeStats(FOLDER, known, kinds)
    return found


def _is_compared(feature: Feature, episodes: int) -> bool:
    """Whether a feature's statistics matter: the default columns are never normalised."""
    matters = feature.is_numeric and feature.key not in DEFAULT_FEATURES
    return matters and episodes * math.prod(feature.item_shape) < _MOST_NUMBERS


def _read(look: Look, name: str, widths: dict[str, int]) -> dict[str, dict[str, np.ndarray]]:
    """Return the statistics in one file, of the features that have all of them."""
    columns = [f"stats/{key}/{kind}" for key in widths for kind in _KINDS]
    table = read_episode_columns(look.root / name, set(columns).__contains__, ignore)
    if table is None:
        return {}
    present = set(table.column_names)
    found = {}
    for key, width in widths.items():
        names = {kind: f"stats/{key}/{kind}" for kind in _KINDS}
        if present.issuperset(names.values()):
            rows = {k: _rows(table.column(n).combine_chunks(), width) for k, n in names.items()}
            kinds = {kind: part for kind, part in rows.items() if part is not None}
            if len(kinds) == len(_KINDS):
                found[key] = kinds
    return found


def _rows(lists: pa.Array, width: int) -> np.ndarray | None:
    if not pa.types.is_list(lists.type) or not is_number(lists.type.value_type):
        return None
    values = lists.flatten()
    if lists.null_count or values.null_count or len(values) != len(lists) * width:
        return None
    sizes = np.diff(as_numpy(lists.offsets))
    if not (sizes == width).all():
        return None
    return as_numpy(values).astype(np.float64).reshape(len(lists), width)


def _from_lines(look: Look) -> dict[str, EpisodeStats]:
    _ = look.stats  # reads the lines
    assert look.info is not None
    assert look.episodes is not None
    found: dict[str, EpisodeStats] = {}
    position = look.episodes.positions_of(np.array([n for n, _ in look.episode_parts], np.int64))
    for key, feature in look.info.features.items():
        width = math.prod(feature.item_shape)
        if not _is_compared(feature, len(look.episodes)):
            continue
        kinds = {kind: np.full((len(look.episodes), width), np.nan) for kind in _KINDS}
        for place, (_, stats) in zip(position.tolist(), look.episode_parts, strict=True):
            for kind, rows in kinds.items():
                value = stats.get(key, {}).get(kind)
                if place >= 0 and value is not None and value.size == width:
                    rows[place] = value.reshape(-1)
        known = np.all([np.isfinite(part).all(axis=1) for part in kinds.values()], axis=0)
        found[key] = EpisodeStats(EACH, known, kinds)
    return found
