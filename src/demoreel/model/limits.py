"""Named limits on sizes that a dataset states, checked before memory is allocated.

A dataset may come from anyone: a few kilobytes of parquet, JSON or PNG can ask for gigabytes.
Sizes are taken from headers first and compared with these limits. Each is raised by an environment
variable, ``DEMOREEL_LIMIT_`` and its name, which worker processes inherit::

    DEMOREEL_LIMIT_TABLE_BYTES=4GiB demoreel convert SOURCE TARGET --to v3.0
"""

from __future__ import annotations

import os
import re
from typing import Literal

from demoreel.errors import ArgumentError, DemoreelError, MetadataError

PREFIX = "DEMOREEL_LIMIT_"

Name = Literal[
    "TABLE_BYTES",
    "PAGE_BYTES",
    "FOOTER_BYTES",
    "JSON_BYTES",
    "JSON_LINES_BYTES",
    "IMAGE_PIXELS",
    "MOOV_BYTES",
    "VIDEO_PACKETS",
    "FEATURES",
    "VALUES",
    "CARD_BYTES",
    "LISTED_FILES",
    "METADATA_BYTES",
    "MANIFEST_BYTES",
    "TABLE_VERSIONS",
]

DEFAULTS: dict[Name, int] = {
    "TABLE_BYTES": 1 << 30,
    "PAGE_BYTES": 1 << 28,
    "FOOTER_BYTES": 1 << 26,
    "JSON_BYTES": 1 << 28,
    "JSON_LINES_BYTES": 1 << 32,
    "IMAGE_PIXELS": 1 << 25,
    "MOOV_BYTES": 1 << 28,
    "VIDEO_PACKETS": 1 << 24,
    "FEATURES": 10_000,
    "VALUES": 1 << 24,
    "CARD_BYTES": 1 << 18,
    "LISTED_FILES": 1 << 21,
    "METADATA_BYTES": 1 << 33,
    "MANIFEST_BYTES": 1 << 28,
    "TABLE_VERSIONS": 1 << 20,
}
"""The limits and what they are unless the environment says otherwise."""

MEANINGS: dict[Name, str] = {
    "TABLE_BYTES": "columns of a table that are decoded together",
    "PAGE_BYTES": "a page of a parquet column, decompressed; a quarter of it if decoded as a whole",
    "FOOTER_BYTES": "the footer of a parquet file",
    "JSON_BYTES": "a JSON file of the metadata, or a line, once parsed; a quarter for info.json",
    "JSON_LINES_BYTES": "all lines of a JSON-lines file, once parsed",
    "IMAGE_PIXELS": "one image, or one frame of a video",
    "MOOV_BYTES": "the table of packets (moov) of an mp4",
    "VIDEO_PACKETS": "packets of one video",
    "FEATURES": "features of a dataset",
    "VALUES": "numbers of one feature in one frame",
    "CARD_BYTES": "the YAML at the head of README.md",
    "LISTED_FILES": "files of a dataset in a store",
    "METADATA_BYTES": "metadata of a dataset in a store, which are copied",
    "MANIFEST_BYTES": "a manifest, or another description, of a Lance table",
    "TABLE_VERSIONS": "versions of a Lance table",
}
"""What each limit bounds."""

_SIZE = re.compile(r"(\d{1,15})\s*([KMGT]?)(?:i?B)?", re.IGNORECASE)
_SHIFT = {"": 0, "K": 10, "M": 20, "G": 30, "T": 40}


def limit(name: Name) -> int:
    """Return a limit as it stands now."""
    text = os.environ.get(PREFIX + name)
    if text is None:
        return DEFAULTS[name]
    match = _SIZE.fullmatch(text.strip())
    if match is None or int(match[1]) == 0:
        raise ArgumentError(
            f"{PREFIX}{name} is {text[:40]!r}; a positive whole number was expected.",
            hint="e.g. 2147483648, or 2GiB",
        )
    return int(match[1]) << _SHIFT[match[2].upper()]


def refuse_above(
    name: Name, value: int, what: str, kind: type[DemoreelError] = MetadataError, **where: object
) -> None:
    """Refuse a size that is above its limit.

    Args:
        name: The limit.
        value: The size that a header states.
        what: What has that size; the number follows, e.g. ``"The column 'note' unfolds to"``.
        kind: The class of the error.
        **where: Where it is, for the error.
    """
    if value > limit(name):
        raise exceeded(name, f"{what} {value:,}", kind, **where)


def exceeded(
    name: Name, what: str, kind: type[DemoreelError] = MetadataError, **where: object
) -> DemoreelError:
    """Return the error of a limit that is exceeded.

    Args:
        name: The limit.
        what: What exceeds it; a clause without an end.
        kind: The class of the error.
        **where: Where it is.
    """
    return kind(
        f"{what}; the limit {name} is {limit(name):,}.",
        hint=f"if you trust this dataset, set {PREFIX}{name} to more ({MEANINGS[name]})",
        **where,
        limit=name,
    )


def exceeds_limit(error: BaseException) -> bool:
    """Whether an error says that a limit is exceeded."""
    return isinstance(error, DemoreelError) and "limit" in error.where
