"""Codes of episodes that are there twice, in one dataset or in two."""

from __future__ import annotations

from demoreel.check.codes import DELETE, Code, Severity


def _code(name: str, severity: Severity, title: str, effect: str, mend: str | None = None) -> Code:
    return Code(name, "duplicate", severity, title, effect, mend)


CODES: tuple[Code, ...] = (
    _code(
        "episode-duplicate",
        "warning",
        "An episode holds the very rows of another",
        "It weighs twice in training; split by episodes, it is in training and in validation.",
        DELETE,
    ),
    _code(
        "episode-near-duplicate",
        "hint",
        "Much of an episode is in another one, too",
        "Its movements weigh more in training; split by episodes, validation has seen them.",
        DELETE,
    ),
    _code(
        "pictures-duplicate",
        "warning",
        "Two episodes with different rows have the very same video",
        "Rows of one of them are shown with pictures of the other.",
    ),
    _code(
        "pictures-alike",
        "hint",
        "Two episodes with different rows look the same all the way",
        "One may be a copy that was encoded again, or be shown with the other's pictures.",
    ),
    _code(
        "leak-episode",
        "error",
        "The same episode is in two datasets",
        "Validation measures what was learnt by heart.",
        DELETE,
    ),
    _code(
        "leak-near",
        "hint",
        "Much of an episode is in an episode of another dataset",
        "Validation measures, in part, what was learnt by heart.",
        DELETE,
    ),
    _code(
        "leak-unknown",
        "warning",
        "Two datasets share no column that could be compared",
        "Whether episodes are in both is not known.",
    ),
)
