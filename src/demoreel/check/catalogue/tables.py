"""Codes of parquet and Lance tables."""

from __future__ import annotations

from demoreel.check.codes import DELETE, FETCH, REPAIR, error, hint, warning

TABLE = (
    error(
        "table-missing",
        "Tables that the metadata name are not there: not downloaded, moved or deleted",
        "Their episodes cannot be read. lerobot stops, or shifts every later row.",
        FETCH,
    ),
    error(
        "table-empty",
        "A table has no bytes",
        "Its episodes are lost. lerobot stops when it loads the dataset.",
        REPAIR,
    ),
    error(
        "table-unfinished",
        "A parquet file has no footer: it was truncated, or never finished",
        "Its episodes cannot be read; one such file stops lerobot for the whole dataset.",
        REPAIR,
    ),
    error(
        "table-damaged",
        "A table does not decode",
        "Training stops when a frame of it is drawn, maybe hours after the start.",
        REPAIR,
    ),
    warning(
        "table-orphan",
        "A table belongs to no episode",
        "lerobot loads every table: its rows shift those of all later episodes.",
        REPAIR,
    ),
    error(
        "rows-missing",
        "An episode has fewer rows than its metadata say",
        "Windows reach into the next episode, or training stops.",
        REPAIR,
    ),
    error(
        "rows-extra",
        "An episode has more rows than its metadata say",
        "Every later row is shifted against the metadata: samples mix episodes.",
        REPAIR,
    ),
    warning(
        "rows-orphan",
        "Rows have an episode_index that is not in the metadata",
        "lerobot counts them: every later row is shifted against the metadata.",
        REPAIR,
    ),
    error(
        "rows-elsewhere",
        "An episode's rows are in another table than its metadata say",
        "Readers that follow the metadata find nothing, or another episode.",
        REPAIR,
    ),
    warning(
        "rows-order",
        "Rows are not in the order of episodes and frames",
        "Readers that select by position return frames of other episodes.",
        REPAIR,
    ),
    error(
        "feature-absent",
        "A feature is declared, but the tables have no such column",
        "Training stops, or continues without it.",
        REPAIR,
    ),
    warning(
        "feature-undeclared",
        "The tables have a column that info.json does not declare",
        "It is not read; lerobot stops, because the columns are not those it expects.",
        REPAIR,
    ),
    hint(
        "feature-unused",
        "The tables of v2.x have a column that info.json does not declare",
        "It is not read, and is lost when the dataset is converted.",
        is_cosmetic=True,
    ),
    error(
        "feature-dtype",
        "A column holds another type than info.json declares",
        "Training stops, or numbers are converted to another type.",
        REPAIR,
    ),
    error(
        "feature-shape",
        "A column's rows have another shape than info.json declares",
        "Training stops, or dimensions are mixed up.",
        REPAIR,
    ),
    error(
        "feature-list",
        "A feature of shape [1] is stored as a list of one, not as a number",
        "lerobot stops when it loads the dataset; demoreel reads the numbers.",
        REPAIR,
    ),
    error(
        "feature-flat",
        "A feature of two dimensions or more is stored as flat lists",
        "lerobot stops when it loads the dataset; demoreel reads the numbers.",
        REPAIR,
    ),
    hint(
        "column-stored-type",
        "Numbers are stored in another type than declared, and all of them fit",
        "None: readers convert them. They may take more space, and stricter tools refuse them.",
        REPAIR,
        is_cosmetic=True,
    ),
    error(
        "value-missing",
        "A column has missing values",
        "Training stops when one is drawn, or reads it as 0 or NaN.",
        REPAIR,
    ),
    error(
        "picture-missing",
        "Images in a table are missing or empty",
        "Training stops when one is drawn.",
        REPAIR,
    ),
    error(
        "not-a-number",
        "Numbers are NaN",
        "One NaN makes the loss NaN, and the policy with it.",
        DELETE,
    ),
    error(
        "infinite",
        "Numbers are infinite",
        "The loss becomes infinite or NaN, and the policy with it.",
        DELETE,
    ),
    hint(
        "constant-dimension",
        "A dimension never changes",
        "A standard deviation of 0: policies that divide by it get NaN or huge numbers.",
    ),
    error(
        "index-jump",
        "The column index does not count the dataset's rows",
        "Samplers and windows select the wrong rows.",
        REPAIR,
    ),
    error(
        "frame-index-jump",
        "The column frame_index does not count from 0 in an episode",
        "Windows select the wrong neighbours.",
        REPAIR,
    ),
    error(
        "timestamp-order",
        "Timestamps do not increase in an episode",
        "Rows get the wrong video frame.",
        REPAIR,
    ),
    error(
        "timestamp-off-grid",
        "Timestamps are not frame_index / fps",
        "lerobot stops at its tolerance, or returns a neighbouring frame.",
        REPAIR,
    ),
    error(
        "episode-task-differs",
        "The tasks of an episode are not those that its rows name by task_index",
        "Samples get the task of their rows, choosing episodes by task goes by the metadata: one "
        "of the two is wrong, and a policy may learn the wrong task. repair keeps those of the "
        "rows.",
        REPAIR,
    ),
    error(
        "task-index-unknown",
        "Rows have a task_index that is not in the task file",
        "Training stops when such a row is drawn.",
        REPAIR,
    ),
    warning(
        "outside-range",
        "Values are outside the recorded minimum and maximum",
        "Normalised actions leave the range that a policy can output: it never learns them.",
        REPAIR,
    ),
    warning(
        "stats-differ",
        "Recorded statistics are not those of the data",
        "Normalisation is wrong: the policy sees shifted or scaled numbers.",
        REPAIR,
    ),
    hint(
        "stats-quantiles",
        "Recorded quantiles are not those of the data",
        "Policies that normalise by quantiles clip or squeeze these dimensions. lerobot averages "
        "the quantiles of episodes, which may differ much from those of all rows.",
        "demoreel stats {dataset} --recompute --no-pictures",
    ),
    warning(
        "episode-stats-differ",
        "An episode's own statistics are not those of its rows",
        "Statistics after merging or deleting episodes will be wrong.",
        REPAIR,
    ),
)
"""Codes of the tables: rows, columns and their values, in parquet or Lance."""

LANCE = (
    error(
        "lance-table-missing",
        "A Lance table that the layout needs is missing",
        "The dataset does not open.",
    ),
    error(
        "lance-tables-several",
        "The folder holds the Lance tables of several datasets",
        "The dataset does not open: the table that belongs to meta/ is ambiguous.",
    ),
    error(
        "lance-no-version",
        "A Lance table has no version",
        "The table does not open: its manifests are lost.",
    ),
    error(
        "lance-unreadable",
        "A Lance table does not open at its newest version",
        "The dataset does not open.",
    ),
    error(
        "lance-fragment-missing",
        "A data file of a Lance table is missing or truncated",
        "Training stops when one of its rows is drawn.",
        REPAIR,
    ),
    error(
        "lance-deletion-missing",
        "A Lance table's deletion file is missing",
        "The table cannot be scanned: training stops.",
    ),
    error(
        "lance-blob-missing",
        "A video's bytes are not where its Lance table says",
        "Training stops when a frame of it is drawn.",
        REPAIR,
    ),
    error(
        "lance-external-refused",
        "A Lance table points at files outside the dataset",
        "They are not read, and training stops there, unless their location is allowed with "
        "--allow-external.",
    ),
    hint(
        "lance-external",
        "A Lance table points at files beside itself",
        "None, as long as they stay where they are. The dataset cannot be moved or pushed alone.",
        is_cosmetic=True,
    ),
    error(
        "lance-packet-index",
        "The packet index stored with a video does not match its bytes",
        "Frames are decoded from the wrong bytes: training stops, or gets another frame.",
        REPAIR,
    ),
    warning(
        "lance-moov-place",
        "A video's moov box is not where its table says",
        "Readers that use that position stop, or have to search for the box.",
        REPAIR,
        is_cosmetic=True,
    ),
    error(
        "lance-video-missing",
        "A video that the metadata name is not in the table of videos",
        "Training stops when a frame of it is drawn.",
        REPAIR,
    ),
    error(
        "lance-video-twice",
        "A video is in the table of videos twice",
        "The right one is ambiguous: its episodes are not read.",
        REPAIR,
    ),
    warning(
        "lance-video-orphan",
        "The table of videos holds a video that no episode names",
        "None, but it takes space, and may be what remains of a lost episode.",
        REPAIR,
        is_cosmetic=True,
    ),
    error(
        "lance-meta-behind",
        "Rows were deleted from a Lance table, and meta/ still names them",
        "Training stops when one of them is drawn.",
        REPAIR,
    ),
    warning(
        "lance-videos-version",
        "The table of rows names a version of the videos that does not exist",
        "Opening an older version may show newer videos with it.",
        is_cosmetic=True,
    ),
    warning(
        "lance-tag-broken",
        "A tag names a version that does not exist",
        "Opening the dataset by that tag fails.",
        is_cosmetic=True,
    ),
    warning(
        "lance-meta-copy",
        "meta.lance is not a copy of meta/",
        "Readers of remote storage see other metadata than local readers.",
        REPAIR,
        is_cosmetic=True,
    ),
)
"""Codes of Lance tables: versions, fragments, blobs and the packet index beside them."""
