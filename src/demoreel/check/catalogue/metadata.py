"""Codes of the metadata."""

from __future__ import annotations

from demoreel.check.codes import REPAIR, error, hint, warning

_NO_OPEN = "The dataset does not open."
_LEROBOT_STOPS = "lerobot stops when it loads the dataset."
_STOPS = "Training stops when a frame of it is drawn, maybe hours after the start."

METADATA = (
    error(
        "info-missing",
        "There is no meta/info.json",
        _NO_OPEN + " Nothing says what the numbers in its tables are.",
        REPAIR,
    ),
    error(
        "info-unreadable",
        "meta/info.json is not JSON, or not an object",
        _NO_OPEN,
        REPAIR,
    ),
    error(
        "info-field-wrong",
        "A field of info.json is missing or invalid",
        _NO_OPEN,
        REPAIR,
    ),
    warning(
        "info-key-twice",
        "A key occurs twice in info.json",
        "Programs use the last one, or the first: two programs may read different values.",
        REPAIR,
    ),
    error(
        "version-unknown",
        "The codebase_version is unknown",
        _NO_OPEN + " lerobot refuses other versions as well.",
    ),
    error(
        "version-mismatch",
        "The files have another version than info.json states",
        "The dataset does not open, or opens without its episodes.",
        REPAIR,
    ),
    error(
        "storage-unknown",
        "The storage_format is unknown",
        _NO_OPEN,
    ),
    error(
        "template-unsafe",
        "A path template leads outside the folder, or uses attribute access of str.format",
        "It could name any file on the disk; demoreel refuses to read by it.",
        REPAIR,
    ),
    error(
        "template-mismatch",
        "Files are not where the path template says",
        "No table or no video is found: training stops, or continues without a camera.",
        REPAIR,
    ),
    error(
        "feature-unreadable",
        "A feature's entry in info.json is invalid",
        _NO_OPEN,
        REPAIR,
    ),
    error(
        "feature-default-missing",
        "A default column is not declared",
        "Samples lack it, and lerobot cannot find frames without it.",
        REPAIR,
    ),
    error(
        "feature-default-type",
        "A default column is declared with another dtype or shape",
        _LEROBOT_STOPS,
        REPAIR,
    ),
    warning(
        "feature-names-count",
        "A feature has more or fewer names than dimensions",
        "Policies and plots that select by name use the wrong joint, or stop.",
    ),
    warning(
        "feature-names-twice",
        "Two dimensions of a feature have the same name",
        "Tools that select by name lose one of them.",
    ),
    warning(
        "feature-clash",
        "Two feature names differ only in dots and underscores, or contain a slash",
        "Lance allows no dots in names, lerobot no slashes: a feature is lost or refused.",
    ),
    warning(
        "camera-declared-twice",
        "A camera's shape and its video.height, video.width or video.channels differ",
        "Policies build their networks for frames of the wrong size.",
        REPAIR,
    ),
    error(
        "tasks-missing",
        "There is no task file",
        "The dataset does not open: policies that are conditioned on the task have none.",
        REPAIR,
    ),
    error(
        "tasks-unreadable",
        "The task file is truncated, or has other columns",
        _NO_OPEN,
        REPAIR,
    ),
    error(
        "task-twice",
        "Two tasks have the same task_index, or the same text",
        "Samples get the task of another episode.",
        REPAIR,
    ),
    warning(
        "task-order",
        "Tasks are not numbered 0, 1, 2 in order",
        "lerobot finds a task by its line: samples get another task.",
        REPAIR,
    ),
    warning(
        "task-empty",
        "A task has no text",
        "Policies that are conditioned on the task learn from an empty text.",
    ),
    hint(
        "task-unused",
        "A task is used by no episode",
        "None, unless its episodes were lost.",
    ),
    warning(
        "episode-task-unknown",
        "An episode's metadata name a task that is not in the task file",
        "Selecting episodes by task misses this one.",
        REPAIR,
    ),
    error(
        "episodes-missing",
        "There is no list of episodes",
        "The dataset does not open: nothing says where an episode begins.",
        REPAIR,
    ),
    error(
        "episodes-unreadable",
        "A file of the episodes' metadata is truncated or damaged",
        _NO_OPEN,
        REPAIR,
    ),
    error(
        "episodes-column-missing",
        "The episodes' metadata lack a column",
        _NO_OPEN,
        REPAIR,
    ),
    error(
        "episodes-value-missing",
        "A value of the episodes' metadata is missing or not a number",
        _NO_OPEN,
        REPAIR,
    ),
    warning(
        "episodes-empty",
        "There are no episodes",
        "There is nothing to train on.",
    ),
    error(
        "episode-twice",
        "Two episodes have the same episode_index",
        "The dataset does not open: rows cannot be assigned to episodes.",
        REPAIR,
    ),
    warning(
        "episode-gap",
        "Episode indices do not run from 0 without a gap",
        "lerobot finds an episode's metadata by its place: samples get another episode's video.",
        REPAIR,
    ),
    warning(
        "episode-order",
        "Episodes are not listed in order",
        "lerobot finds an episode's metadata by its place: samples get another episode's video.",
        REPAIR,
    ),
    error(
        "episode-length",
        "An episode's length is not a positive number, or is impossibly large",
        _NO_OPEN,
        REPAIR,
    ),
    warning(
        "episodes-file-index",
        "An episode's metadata name another file than the one they are in",
        "lerobot appends to or edits the wrong file.",
        REPAIR,
    ),
    error(
        "range-length",
        "dataset_to_index minus dataset_from_index is not the episode's length",
        "Windows are cut off or padded at the wrong frame.",
        REPAIR,
    ),
    error(
        "range-gap",
        "The episodes' row ranges overlap or leave rows out",
        "Windows at an episode's edge reach into another, or almost every frame is padded.",
        REPAIR,
    ),
    error(
        "total-episodes",
        "total_episodes in info.json is wrong",
        "lerobot iterates by this count: it misses episodes, or asks for some that do not exist.",
        REPAIR,
    ),
    error(
        "total-frames",
        "total_frames in info.json is wrong",
        "Samplers draw frames that do not exist, or never draw the last ones.",
        REPAIR,
    ),
    warning(
        "total-tasks",
        "total_tasks in info.json is wrong",
        "The next recording numbers its tasks wrongly.",
        REPAIR,
    ),
    warning(
        "total-videos",
        "total_videos or total_chunks in info.json is wrong",
        "Tools that fetch by count leave some out.",
        REPAIR,
    ),
    warning(
        "split-unreadable",
        "A split is not of the form first:stop",
        "Training on that split stops, or uses every episode.",
        REPAIR,
    ),
    error(
        "split-overlap",
        "Two splits share episodes",
        "Validation uses training data: its numbers are meaningless.",
        REPAIR,
    ),
    warning(
        "split-past-end",
        "A split names episodes that do not exist",
        "Training on that split stops.",
        REPAIR,
    ),
    hint(
        "split-left-out",
        "Some episodes are in no split",
        "Training by splits never uses them.",
    ),
    warning(
        "stats-missing",
        "There are no statistics",
        "Policies cannot normalise: training stops, or continues with raw numbers.",
        REPAIR,
    ),
    error(
        "stats-unreadable",
        "The statistics are not JSON, or not lists of numbers",
        "Policies cannot normalise: training stops.",
        REPAIR,
    ),
    warning(
        "stats-feature-missing",
        "A feature has no statistics",
        "A policy that uses it cannot normalise it.",
        REPAIR,
    ),
    error(
        "stats-shape",
        "A feature's statistics have another size than the feature",
        "Normalisation stops, or applies one number to all dimensions.",
        REPAIR,
    ),
    error(
        "stats-impossible",
        "Statistics are impossible: not finite, a minimum above the maximum, a negative std",
        "Normalised values are NaN, and so is the loss.",
        REPAIR,
    ),
    warning(
        "stats-count",
        "The statistics are of another number of frames",
        "They describe other data: normalisation is wrong.",
        REPAIR,
    ),
    warning(
        "episode-stats-missing",
        "Some episodes have no statistics",
        "The whole dataset's statistics leave them out, as will those after merging or deleting.",
        REPAIR,
    ),
    warning(
        "commit-pending",
        "A writer was interrupted in the middle of a commit",
        "The dataset does not open until the commit is completed; other programs see half of it.",
        "demoreel finish {dataset}",
    ),
    hint(
        "episodes-waiting",
        "Saved episodes wait to be encoded and committed",
        "demoreel reads them in place; other programs miss them until they are committed.",
        "demoreel finish {dataset}",
    ),
    warning(
        "episode-waiting-damaged",
        "A saved episode that waits to be committed is damaged",
        "It cannot be read, and is kept unchanged; the others can be read.",
        "demoreel finish {dataset}",
    ),
    warning(
        "link-outside",
        "A link leads out of the dataset's folder",
        "It can be read on this machine only; copying, publishing and recording are refused, as "
        "the target may not be meant for others.",
    ),
    hint(
        "files-left-over",
        "The folder has files that are not part of a dataset",
        "None; they take space, and are often what remains of an interrupted recording.",
    ),
)
"""Codes of what ``meta/`` says: info, features, tasks, episodes, statistics."""
