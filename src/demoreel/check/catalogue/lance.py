"""Codes of Lance tables: versions, fragments, blobs and the packet index beside them."""

from __future__ import annotations

from demoreel.check.codes import REPAIR, Code, makers

_error, _warning, _ = makers("lance")


CODES: tuple[Code, ...] = (
    _error(
        "lance-table-missing",
        "A Lance table that the layout needs is not there",
        "The dataset does not open.",
    ),
    _error(
        "lance-tables-several",
        "The folder holds the Lance tables of several datasets",
        "The dataset does not open: which table belongs to meta/ cannot be told.",
    ),
    _error(
        "lance-no-version",
        "A Lance table has no version",
        "The table does not open: its manifests are lost.",
    ),
    _error(
        "lance-unreadable",
        "A Lance table does not open at its newest version",
        "The dataset does not open.",
    ),
    _error(
        "lance-fragment-missing",
        "A data file of a Lance table is not there, or cut off",
        "Training stops when one of its rows is drawn.",
        REPAIR,
    ),
    _error(
        "lance-deletion-missing",
        "A Lance table's note of deleted rows is not there",
        "The table does not scan: training stops.",
    ),
    _error(
        "lance-blob-missing",
        "A video's bytes are not where its Lance table says",
        "Training stops when a frame of it is drawn.",
        REPAIR,
    ),
    _error(
        "lance-packet-index",
        "The packet index beside a video is not that of its bytes",
        "Frames are decoded from the wrong bytes: training stops, or shows another picture.",
        REPAIR,
    ),
    _warning(
        "lance-moov-place",
        "A video's noted moov box is not where its table says",
        "Readers that trust the note stop, or look for it on their own.",
        REPAIR,
    ),
    _error(
        "lance-video-missing",
        "A video that the metadata name is not in the table of videos",
        "Training stops when a frame of it is drawn.",
        REPAIR,
    ),
    _error(
        "lance-video-twice",
        "A video is in the table of videos twice",
        "Which one is right cannot be told: its episodes are not read.",
        REPAIR,
    ),
    _warning(
        "lance-video-orphan",
        "The table of videos holds a video that no episode names",
        "None, but it takes room, and may be all that is left of a lost episode.",
        REPAIR,
    ),
    _error(
        "lance-meta-behind",
        "Rows were deleted from a Lance table, and meta/ still names them",
        "Training stops when one of them is drawn.",
        REPAIR,
    ),
    _warning(
        "lance-videos-version",
        "The table of rows notes a version of the videos that is not there",
        "Opening an older version may show newer videos with it.",
    ),
    _warning(
        "lance-tag-broken",
        "A tag names a version that is not there",
        "Opening the dataset by that tag fails.",
    ),
    _warning(
        "lance-meta-copy",
        "meta.lance is not a copy of meta/",
        "Whoever reads the dataset from a store sees other metadata than you do.",
        REPAIR,
    ),
)
