"""Codes of the tables: rows, columns and their values, in parquet or Lance."""

from __future__ import annotations

from demoreel.check.codes import DELETE, REPAIR, Code, makers

_error, _warning, _hint = makers("table")


CODES: tuple[Code, ...] = (
    _error(
        "table-missing",
        "A table that the metadata name is not there",
        "Its episodes cannot be read. lerobot stops, or counts on and shifts every later row.",
        REPAIR,
    ),
    _error(
        "table-empty",
        "A table has no bytes",
        "Its episodes are lost. lerobot stops when it loads the dataset.",
        REPAIR,
    ),
    _error(
        "table-unfinished",
        "A parquet file has no footer: it was cut off, or never finished",
        "Its episodes cannot be read; one such file stops lerobot for the whole dataset.",
        REPAIR,
    ),
    _error(
        "table-damaged",
        "A table does not decode",
        "Training stops when a frame of it is drawn, maybe hours after the start.",
        REPAIR,
    ),
    _warning(
        "table-orphan",
        "A table lies here that no episode names",
        "lerobot loads every table: its rows shift those of all later episodes.",
        REPAIR,
    ),
    _error(
        "rows-missing",
        "An episode has fewer rows than its metadata say",
        "Windows reach into the next episode, or training stops.",
        REPAIR,
    ),
    _error(
        "rows-extra",
        "An episode has more rows than its metadata say",
        "Every later row stands elsewhere than the metadata say: samples mix episodes.",
        REPAIR,
    ),
    _warning(
        "rows-orphan",
        "Rows of an episode that the metadata do not have",
        "lerobot counts them in: every later row stands elsewhere than the metadata say.",
        REPAIR,
    ),
    _error(
        "rows-elsewhere",
        "An episode's rows lie in another table than its metadata say",
        "Readers that go by the metadata find nothing, or another episode.",
        REPAIR,
    ),
    _warning(
        "rows-order",
        "Rows do not stand in the order of their episodes and frames",
        "Readers that go by position take frames of other episodes.",
        REPAIR,
    ),
    _error(
        "feature-absent",
        "A feature is declared, but the tables have no such column",
        "Training stops, or goes on without it.",
        REPAIR,
    ),
    _warning(
        "feature-undeclared",
        "The tables have a column that info.json does not declare",
        "Nobody reads it; lerobot stops, because the columns are not those it expects.",
        REPAIR,
    ),
    _error(
        "feature-dtype",
        "A column holds another type than info.json declares",
        "Training stops, or numbers are cut to another type.",
        REPAIR,
    ),
    _error(
        "feature-shape",
        "A column's rows have another shape than info.json declares",
        "Training stops, or dimensions are taken for others.",
        REPAIR,
    ),
    _error(
        "value-missing",
        "A column has missing values",
        "Training stops when one is drawn, or reads it as 0 or NaN.",
        REPAIR,
    ),
    _error(
        "picture-missing",
        "Pictures in a table are missing or empty",
        "Training stops when one is drawn.",
        REPAIR,
    ),
    _error(
        "not-a-number",
        "Numbers are NaN",
        "One NaN makes the loss NaN, and the policy with it.",
        DELETE,
    ),
    _error(
        "infinite",
        "Numbers are infinite",
        "The loss becomes infinite or NaN, and the policy with it.",
        DELETE,
    ),
    _hint(
        "constant-dimension",
        "A dimension never changes",
        "A standard deviation of 0: policies that divide by it get NaN or huge numbers.",
    ),
    _error(
        "index-jump",
        "The column index does not count the dataset's rows",
        "Samplers and windows take other rows than they mean.",
        REPAIR,
    ),
    _error(
        "frame-index-jump",
        "The column frame_index does not count from 0 in an episode",
        "Windows take the wrong neighbours.",
        REPAIR,
    ),
    _error(
        "timestamp-order",
        "Timestamps do not increase in an episode",
        "The wrong video frame is shown with a row.",
        REPAIR,
    ),
    _error(
        "timestamp-off-grid",
        "Timestamps do not lie where frame_index and fps say",
        "lerobot stops at its tolerance, or shows a neighbour's picture.",
        REPAIR,
    ),
    _error(
        "task-index-unknown",
        "Rows name a task that is not in the file of tasks",
        "Training stops when such a row is drawn.",
        REPAIR,
    ),
    _warning(
        "outside-range",
        "Values lie outside the recorded minimum and maximum",
        "Normalised actions leave the range that the policy can reach: it never learns them.",
        REPAIR,
    ),
    _warning(
        "stats-differ",
        "Recorded statistics are not those of the data",
        "Normalising is off: the policy sees shifted or stretched numbers.",
        REPAIR,
    ),
    _warning(
        "episode-stats-differ",
        "An episode's own statistics are not those of its rows",
        "Statistics after merging or deleting episodes will be wrong.",
        REPAIR,
    ),
)
