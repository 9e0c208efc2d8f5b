"""Codes of videos and their frames."""

from __future__ import annotations

from demoreel.check.codes import FETCH, REPAIR, error, hint, warning

_STOPS = "Training stops when a frame of it is drawn, maybe hours after the start."

VIDEO = (
    error(
        "video-missing",
        "Videos that the metadata name are not there: not downloaded, moved or deleted",
        _STOPS,
        FETCH,
    ),
    error("video-empty", "A video has no bytes", _STOPS, REPAIR),
    error(
        "video-unfinished",
        "A video has no packet table (moov): it was truncated, or never finished",
        _STOPS,
        REPAIR,
    ),
    error(
        "video-truncated",
        "A video is shorter than its own packet table says",
        "Training stops when one of its last frames is drawn.",
        REPAIR,
    ),
    error("video-unreadable", "A video's tables are damaged, or it is not a video", _STOPS, REPAIR),
    warning(
        "video-codec",
        "A video has another codec than info.json declares",
        "Tools that choose a decoder by the declaration fail.",
        REPAIR,
        is_cosmetic=True,
    ),
    error(
        "video-size",
        "A video's frames have another size than info.json declares",
        "Batches cannot be stacked, or frames are distorted.",
    ),
    warning(
        "video-fps",
        "A video runs at another rate than the dataset",
        "Readers that select by seconds return the wrong frame for a row.",
        REPAIR,
    ),
    warning(
        "video-pix-fmt",
        "A video has another pixel format than info.json declares",
        "Depth or colour is read with the wrong scale by tools that trust the declaration.",
        REPAIR,
    ),
    warning(
        "video-uneven-clock",
        "A video's frames are not evenly spaced in time",
        "Readers that select by seconds return the wrong frame for a row.",
    ),
    hint(
        "keyframes-far",
        "Keyframes are far apart",
        "Every random frame is decoded from the keyframe before it: training waits for data.",
        "demoreel cut select {dataset} {dataset}-fast --episodes 0:N --vcodec h264 --gop 2",
    ),
    error(
        "video-short",
        "A video has fewer frames than its episodes need",
        "lerobot repeats a frame or stops; the last rows get frames of another time.",
        REPAIR,
    ),
    error(
        "video-long",
        "A video has more frames than its episodes need",
        "It may be another video, or hold a discarded recording: its episodes are not read.",
        REPAIR,
    ),
    warning(
        "video-gap",
        "Frames between two episodes of a video belong to none",
        "Harmless for readers that follow the metadata; often a sign of a discarded recording.",
        REPAIR,
        is_cosmetic=True,
    ),
    warning(
        "video-orphan",
        "A video belongs to no episode",
        "None, but it takes space, and may be what remains of a lost episode.",
        REPAIR,
        is_cosmetic=True,
    ),
    warning(
        "audio-missing",
        "info.json says that a camera's videos have audio, and none has",
        "Tools that read audio by the declaration fail, or read silence.",
        REPAIR,
        is_cosmetic=True,
    ),
    warning(
        "audio-undeclared",
        "A video has audio, and info.json says that there is none",
        "Tools that follow the declaration drop it, or publish a recorded voice.",
        REPAIR,
        is_cosmetic=True,
    ),
    warning(
        "audio-short",
        "A video's audio ends before its frames do",
        "The last frames have no audio: often only a part of it was copied.",
        is_cosmetic=True,
    ),
    error(
        "clip-past-end",
        "An episode begins after the end of its video",
        "Training stops when a frame of it is drawn, or repeats the last frame.",
        REPAIR,
    ),
    error(
        "clip-overlap",
        "Two episodes claim the same frames of a video",
        "Rows get frames of another episode.",
        REPAIR,
    ),
    error(
        "clip-inside",
        "An episode starts in the middle of another",
        "Its rows get frames of another episode.",
        REPAIR,
    ),
    error(
        "clip-between-frames",
        "An episode starts between two frames of its video",
        "The frame of a row is ambiguous: lerobot's tolerance is exceeded.",
        REPAIR,
    ),
    error(
        "clip-ambiguous",
        "Clock and lengths give an episode two different first frames",
        "Rows get frames that are some frames off.",
        REPAIR,
    ),
    error(
        "clip-length",
        "from_timestamp to to_timestamp is not the episode's length",
        "Rows and frames differ in number: they cannot be matched.",
        REPAIR,
    ),
    hint(
        "clip-end",
        "An episode's to_timestamp is off by a frame",
        "Tools that cut by seconds include a frame of the next episode, or drop the last one.",
        REPAIR,
        is_cosmetic=True,
    ),
    hint(
        "clip-drift",
        "An episode's seconds have drifted from the video's clock",
        "lerobot's tolerance is exceeded; demoreel reads the right frame.",
        REPAIR,
    ),
    error(
        "clip-value",
        "An episode's timestamps in its video are invalid",
        "Its frames cannot be found: training stops.",
        REPAIR,
    ),
)
"""Codes of the videos, as far as they show without decoding a frame."""

DEEP = (
    error(
        "picture-undecodable",
        "Frames do not decode",
        "Training stops when one of them is drawn, maybe hours after the start.",
        REPAIR,
    ),
    error(
        "video-decodes-short",
        "A video's packets decode to fewer frames than there are packets",
        "Training stops when a missing one is drawn; other tools return a neighbouring frame.",
        REPAIR,
    ),
    error(
        "picture-size",
        "A frame has another size than the camera's other frames, or than declared",
        "Batches cannot be stacked: training stops when it is drawn.",
    ),
    error(
        "picture-kind",
        "A camera is declared as depth, but its images are not depth images",
        "Reading them is an error: training stops at the first one.",
    ),
    warning(
        "picture-black",
        "Frames are black for some time",
        "A policy learns to act without seeing: a camera was covered, or off.",
    ),
    hint(
        "picture-frozen",
        "A camera's image does not change for some time, although the robot moves",
        "Frames are of another time than the rows: the camera stalled, or does not see the robot.",
    ),
    hint(
        "picture-repeated",
        "Many frames are the same as the one before, although the robot moves",
        "The camera is slower than the dataset: frames are older than their rows.",
    ),
    hint(
        "picture-jump",
        "The whole image changes at once",
        "The camera was moved, or frames are missing.",
    ),
)
"""Codes of what only shows when every frame is decoded."""
