"""Codes of the videos, as far as they show without decoding a picture."""

from __future__ import annotations

from demoreel.check.codes import REPAIR, Code, makers

_error, _warning, _hint = makers("video")


_STOPS = "Training stops when a frame of it is drawn, maybe hours after the start."

CODES: tuple[Code, ...] = (
    _error("video-missing", "A video that the metadata name is not there", _STOPS, REPAIR),
    _error("video-empty", "A video has no bytes", _STOPS, REPAIR),
    _error(
        "video-unfinished",
        "A video has no table of packets: it was cut off, or never finished",
        _STOPS,
        REPAIR,
    ),
    _error(
        "video-truncated",
        "A video is shorter than its own table of packets says",
        "Training stops when one of its last frames is drawn.",
        REPAIR,
    ),
    _error("video-unreadable", "A video's tables are damaged, or it is no video", _STOPS, REPAIR),
    _warning(
        "video-codec",
        "A video has another codec than info.json declares",
        "Tools that choose a decoder by the declaration fail.",
        REPAIR,
    ),
    _error(
        "video-size",
        "A video's pictures have another size than info.json declares",
        "Batches cannot be stacked, or pictures are squeezed.",
    ),
    _warning(
        "video-fps",
        "A video runs at another rate than the dataset",
        "Readers that go by seconds show the wrong picture with a row.",
        REPAIR,
    ),
    _warning(
        "video-pix-fmt",
        "A video has another pixel format than info.json declares",
        "Depth or colour is read with the wrong scale by tools that trust the declaration.",
        REPAIR,
    ),
    _warning(
        "video-uneven-clock",
        "A video's frames are not evenly spaced in time",
        "Readers that go by seconds show the wrong picture with a row.",
    ),
    _error(
        "video-short",
        "A video has fewer frames than its episodes need",
        "lerobot repeats a picture or stops; rows at the end have pictures of another moment.",
        REPAIR,
    ),
    _warning(
        "video-long",
        "A video has more frames than its episodes need",
        "Frames of discarded takes: often a sign that pictures and rows are shifted.",
        REPAIR,
    ),
    _warning(
        "video-gap",
        "Frames between two episodes of a video belong to none",
        "Harmless for readers that trust the metadata; often a sign of a discarded take.",
        REPAIR,
    ),
    _warning(
        "video-orphan",
        "A video lies here that no episode names",
        "None, but it takes room, and may be all that is left of a lost episode.",
        REPAIR,
    ),
    _error(
        "clip-past-end",
        "An episode begins behind the end of its video",
        "Training stops when a frame of it is drawn, or shows the last picture over and over.",
        REPAIR,
    ),
    _error(
        "clip-overlap",
        "Two episodes claim the same frames of a video",
        "Rows are shown with pictures of another episode.",
        REPAIR,
    ),
    _error(
        "clip-inside",
        "An episode starts in the middle of another",
        "Its rows are shown with pictures of another episode.",
        REPAIR,
    ),
    _error(
        "clip-between-frames",
        "An episode starts between two frames of its video",
        "Which picture belongs to a row cannot be told: lerobot's tolerance is exceeded.",
        REPAIR,
    ),
    _error(
        "clip-ambiguous",
        "Clock and lengths give an episode two different first frames",
        "Rows are shown with pictures that are some frames off.",
        REPAIR,
    ),
    _error(
        "clip-length",
        "from_timestamp to to_timestamp is not the episode's length",
        "Rows and pictures are of different numbers: which belong together cannot be told.",
        REPAIR,
    ),
    _hint(
        "clip-end",
        "An episode's to_timestamp is off by a frame",
        "Tools that cut by seconds take a frame of the next episode, or leave the last one out.",
        REPAIR,
    ),
    _hint(
        "clip-drift",
        "An episode's seconds have drifted from the video's clock",
        "lerobot's tolerance is exceeded; demoreel reads the right frame.",
        REPAIR,
    ),
    _error(
        "clip-value",
        "An episode's place in its video makes no sense",
        "Its pictures cannot be found: training stops.",
        REPAIR,
    ),
)
