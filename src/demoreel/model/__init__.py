"""The parts of a dataset: info, features, episodes, tasks, statistics. No I/O here."""

from demoreel.model.depth import DepthCode
from demoreel.model.episodes import Episode, Episodes, Tasks
from demoreel.model.feature import DEFAULT_FEATURES, LANGUAGE_KEYS, Feature
from demoreel.model.info import READABLE_VERSIONS, Info
from demoreel.model.stats import Stats, combine_stats, stats_from_json, stats_to_json
from demoreel.model.template import PathTemplate

__all__ = [
    "DEFAULT_FEATURES",
    "LANGUAGE_KEYS",
    "READABLE_VERSIONS",
    "DepthCode",
    "Episode",
    "Episodes",
    "Feature",
    "Info",
    "PathTemplate",
    "Stats",
    "Tasks",
    "combine_stats",
    "stats_from_json",
    "stats_to_json",
]
