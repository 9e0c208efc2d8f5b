"""Codes of what ``meta/`` says: info, features, tasks, episodes, statistics."""

from __future__ import annotations

from demoreel.check.codes import REPAIR, Code, makers

_error, _warning, _hint = makers("metadata")


_NO_OPEN = "The dataset does not open."
_LEROBOT_STOPS = "lerobot stops when it loads the dataset."

CODES: tuple[Code, ...] = (
    _error(
        "info-missing",
        "There is no meta/info.json",
        _NO_OPEN + " Nothing says what the numbers in its tables are.",
        REPAIR,
    ),
    _error(
        "info-unreadable",
        "meta/info.json is not JSON, or not an object",
        _NO_OPEN,
        REPAIR,
    ),
    _error(
        "info-field-wrong",
        "A field of info.json is missing or makes no sense",
        _NO_OPEN,
        REPAIR,
    ),
    _warning(
        "info-key-twice",
        "A key stands twice in info.json",
        "Programs take the last one, or the first: two of them may read two datasets.",
        REPAIR,
    ),
    _error(
        "version-unknown",
        "The codebase_version is not one that is known",
        _NO_OPEN + " lerobot refuses other versions, too.",
    ),
    _error(
        "version-mismatch",
        "The files are of another version than info.json says",
        "The dataset does not open, or opens without its episodes.",
        REPAIR,
    ),
    _error(
        "storage-unknown",
        "The storage_format is not one that is known",
        _NO_OPEN,
    ),
    _error(
        "template-unsafe",
        "A path template leads outside the folder, or uses tricks of str.format",
        "Reading files by it could read anything on your disk. demoreel refuses to.",
        REPAIR,
    ),
    _error(
        "template-mismatch",
        "Files lie elsewhere than the path template says",
        "No table or no video is found: training stops, or goes on without a camera.",
        REPAIR,
    ),
    _error(
        "feature-unreadable",
        "A feature's entry in info.json makes no sense",
        _NO_OPEN,
        REPAIR,
    ),
    _error(
        "feature-default-missing",
        "A column that every dataset has is not declared",
        "Samples lack it, and lerobot cannot find frames without it.",
        REPAIR,
    ),
    _error(
        "feature-default-type",
        "A default column is declared with another dtype or shape",
        _LEROBOT_STOPS,
        REPAIR,
    ),
    _warning(
        "feature-names-count",
        "The names of a feature's dimensions are more or fewer than the dimensions",
        "Policies and plots that go by name take the wrong joint, or stop.",
    ),
    _warning(
        "feature-names-twice",
        "Two dimensions of a feature have the same name",
        "Tools that go by name lose one of them.",
    ),
    _warning(
        "feature-clash",
        "Two features differ only in dots and underscores, or hold a slash",
        "Lance has no dots in names, lerobot no slashes: one of them is lost or refused.",
    ),
    _warning(
        "camera-declared-twice",
        "A camera's shape and its video.height, video.width or video.channels differ",
        "Policies build their networks for pictures that never come.",
        REPAIR,
    ),
    _error(
        "tasks-missing",
        "There is no file of tasks",
        "The dataset does not open: policies that are told their task have none.",
        REPAIR,
    ),
    _error(
        "tasks-unreadable",
        "The file of tasks is cut off, or has other columns",
        _NO_OPEN,
        REPAIR,
    ),
    _error(
        "task-twice",
        "Two tasks have the same task_index, or the same text",
        "Samples are told a task that is not theirs.",
        REPAIR,
    ),
    _warning(
        "task-order",
        "Tasks are not numbered 0, 1, 2 in their order",
        "lerobot finds a task by its line: samples are told another task.",
        REPAIR,
    ),
    _warning(
        "task-empty",
        "A task has no text",
        "Policies that are told their task learn from an empty one.",
    ),
    _hint(
        "task-unused",
        "No episode does a task",
        "None, unless its episodes were lost.",
    ),
    _warning(
        "episode-task-unknown",
        "An episode's metadata name a task that is not in the file of tasks",
        "Whoever chooses episodes by task misses this one.",
        REPAIR,
    ),
    _error(
        "episodes-missing",
        "There is no list of episodes",
        "The dataset does not open: nothing says where an episode begins.",
        REPAIR,
    ),
    _error(
        "episodes-unreadable",
        "A file of the episodes' metadata is cut off or damaged",
        _NO_OPEN,
        REPAIR,
    ),
    _error(
        "episodes-column-missing",
        "The episodes' metadata lack a column",
        _NO_OPEN,
        REPAIR,
    ),
    _error(
        "episodes-value-missing",
        "A value of the episodes' metadata is missing or not a number",
        _NO_OPEN,
        REPAIR,
    ),
    _warning(
        "episodes-empty",
        "There is not a single episode",
        "There is nothing to train on.",
    ),
    _error(
        "episode-twice",
        "Two episodes have the same episode_index",
        "The dataset does not open: which rows are whose cannot be told.",
        REPAIR,
    ),
    _warning(
        "episode-gap",
        "Episode indices do not run from 0 without a gap",
        "lerobot finds an episode's metadata by its place: samples get another episode's video.",
        REPAIR,
    ),
    _warning(
        "episode-order",
        "Episodes are not listed in order",
        "lerobot finds an episode's metadata by its place: samples get another episode's video.",
        REPAIR,
    ),
    _error(
        "episode-length",
        "An episode's length is not a positive number, or impossible",
        _NO_OPEN,
        REPAIR,
    ),
    _warning(
        "episodes-file-index",
        "An episode's metadata say that they lie in another file than they do",
        "lerobot appends to or edits the wrong file.",
        REPAIR,
    ),
    _error(
        "range-length",
        "dataset_to_index minus dataset_from_index is not the episode's length",
        "Windows are cut off or padded at the wrong frame.",
        REPAIR,
    ),
    _error(
        "range-gap",
        "The episodes' ranges of rows overlap or leave rows out",
        "Windows at an episode's edge reach into another, or almost every frame is padded.",
        REPAIR,
    ),
    _error(
        "total-episodes",
        "info.json counts other episodes than there are",
        "lerobot walks by this count: it misses episodes, or asks for some that do not exist.",
        REPAIR,
    ),
    _error(
        "total-frames",
        "info.json counts other frames than the episodes have",
        "Samplers draw frames that do not exist, or never draw the last ones.",
        REPAIR,
    ),
    _warning(
        "total-tasks",
        "info.json counts other tasks than there are",
        "The next recording numbers its tasks wrongly.",
        REPAIR,
    ),
    _warning(
        "total-videos",
        "info.json counts other videos or chunks than there are",
        "Tools that fetch by count leave some out.",
        REPAIR,
    ),
    _warning(
        "split-unreadable",
        "A split is not of the form first:stop",
        "Whoever trains on that split stops, or takes every episode.",
        REPAIR,
    ),
    _error(
        "split-overlap",
        "Two splits share episodes",
        "Validation measures what was trained on: its numbers mean nothing.",
        REPAIR,
    ),
    _warning(
        "split-past-end",
        "A split names episodes that do not exist",
        "Whoever trains on that split stops.",
        REPAIR,
    ),
    _hint(
        "split-left-out",
        "Some episodes are in no split",
        "Whoever trains by splits never sees them.",
    ),
    _warning(
        "stats-missing",
        "There are no statistics",
        "Policies cannot normalise: training stops, or goes on with raw numbers.",
        REPAIR,
    ),
    _error(
        "stats-unreadable",
        "The statistics are not JSON, or not lists of numbers",
        "Policies cannot normalise: training stops.",
        REPAIR,
    ),
    _warning(
        "stats-feature-missing",
        "A feature has no statistics",
        "A policy that uses it cannot normalise it.",
        REPAIR,
    ),
    _error(
        "stats-shape",
        "A feature's statistics have another size than the feature",
        "Normalising stops, or spreads one number over all dimensions.",
        REPAIR,
    ),
    _error(
        "stats-impossible",
        "Statistics that cannot be: not finite, a minimum above the maximum, a negative spread",
        "Normalising gives NaN, and so does the loss.",
        REPAIR,
    ),
    _warning(
        "stats-count",
        "The statistics were made from another number of frames",
        "They are of other data: normalising is off.",
        REPAIR,
    ),
    _warning(
        "episode-stats-missing",
        "Some episodes have no statistics of their own",
        "The whole dataset's statistics leave them out, as will those after merging or deleting.",
        REPAIR,
    ),
    _warning(
        "commit-pending",
        "A recording was interrupted before its last episodes were in place",
        "Until it is opened with demoreel, others miss the last episodes, or see half of one.",
        "demoreel info {dataset}",
    ),
    _hint(
        "files-left-over",
        "Files lie here that belong to no dataset",
        "None; they take room, and are often all that is left of an interrupted recording.",
    ),
)
