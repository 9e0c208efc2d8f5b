"""A dataset's card, ``README.md``: updates a few YAML keys and one marked block, keeps the rest.

The block is between ``<!-- demoreel:begin -->`` and ``<!-- demoreel:end -->``. It is made again
with every push; what stands before and after it is left alone. Of the YAML header, only keys that
lack something are written again, each by itself, so that comments and the order of the others stay.

The block shows a small image of what each camera saw when episodes began (``contact_sheet``).
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from demoreel.errors import ArgumentError, DemoreelError, count, json_text, printable
from demoreel.media.images import ImageCodec, encode_image
from demoreel.model.limits import refuse_above
from demoreel.read.dataset import Dataset

BEGIN = "<!-- demoreel:begin -->"
END = "<!-- demoreel:end -->"
DEFAULT_LICENSE = "apache-2.0"
SHEET = "demoreel/first_frames.jpg"
"""Where the image of first frames is in a repository."""

_BLOCK = re.compile(f"{re.escape(BEGIN)}.*?{re.escape(END)}", re.DOTALL)
_STRAY = re.compile(f"^(?:{re.escape(BEGIN)}|{re.escape(END)})[ \t]*\n?", re.MULTILINE)
_HEADER = re.compile(
    r"\A\ufeff?---[ \t]*\r?\n(.*?)^---[ \t]*(?:\r?\n|\Z)", re.DOTALL | re.MULTILINE
)
_BACKTICKS = re.compile("`{3,}")
_CONFIGS = [{"config_name": "default", "data_files": "data/*/*.parquet"}]
_TEXTS = {"url": "Homepage", "paper": "Paper", "citation": "Citation"}
_COLUMNS = 5
_HEIGHT = 120
_GAP = 4
_MOST_CAMERAS = 8
_CODEC = ImageCodec("jpeg", quality=80)

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class CardFacts:
    """What a card says of a dataset.

    Attributes:
        title: The heading of a card that is written for the first time.
        layout: E.g. ``v3.0`` or ``lance-video``.
        info: What ``meta/info.json`` holds.
        episodes: Episodes.
        frames: Frames.
        seconds: How long they last.
        license: The licence; None keeps what the card says, or is the one that LeRobot gives.
        tags: Tags beside ``LeRobot``.
        sheet: Where the image of first frames is in the repository, if there is one.
        cameras: The cameras in it, a row each.
        texts: More to say: ``url``, ``paper`` and ``citation`` in the block, others as YAML keys.
    """

    title: str
    layout: str
    info: Mapping[str, Any]
    episodes: int
    frames: int
    seconds: float
    license: str | None = None
    tags: Sequence[str] = ()
    sheet: str | None = None
    cameras: Sequence[str] = ()
    texts: Mapping[str, Any] = field(default_factory=dict)


def merged_card(existing: str | None, facts: CardFacts) -> str:
    """Return the card with our part brought up to date.

    Args:
        existing: The card that is there; None if there is none.
        facts: What to say.
    """
    text = existing if existing is not None else ""
    found = _HEADER.match(text)
    header = found[1] if found else ""
    body = text[found.end() :] if found else text.removeprefix("\ufeff")
    if not body.strip():
        body = f"# {facts.title}\n"
    return f"---\n{_merged_header(header, facts)}---\n{_merged_body(body, facts)}"


def without_block(card: str) -> str:
    """Return what of a card is not ours to write: all but the block, spaces at the ends aside."""
    return _BLOCK.sub("", card).strip()


def _merged_body(body: str, facts: CardFacts) -> str:
    block = f"{BEGIN}\n{_block(facts)}\n{END}"
    if _BLOCK.search(body):
        first, *rest = _BLOCK.split(body, maxsplit=1)
        return f"{first}{block}{_BLOCK.sub('', rest[0])}"
    kept = _STRAY.sub("", body).rstrip()
    if not kept.startswith("\n"):
        kept = f"\n{kept}"
    return f"{kept}\n\n{block}\n"


def _block(facts: CardFacts) -> str:
    parts = [
        "This dataset is in the [LeRobot](https://github.com/huggingface/lerobot) format "
        f"({facts.layout}): {count(facts.episodes, 'episode')}, {count(facts.frames, 'frame')}, "
        f"{_duration(facts.seconds)}."
    ]
    if facts.sheet is not None:
        names = ", ".join(f"`{_inline(name)}`" for name in facts.cameras)
        parts.append(f"![First frames]({facts.sheet})")
        parts.append(f"First frames of episodes; from top to bottom: {names}.")
    for key, name in _TEXTS.items():
        if facts.texts.get(key):
            parts.append(_said(name, str(facts.texts[key])))
    parts.append("[meta/info.json](meta/info.json):")
    parts.append(_fenced(json_text(facts.info, indent=4), "json"))
    return "\n\n".join(parts)


def _said(name: str, text: str) -> str:
    if name == "Citation":
        return f"{name}:\n\n{_fenced(text, 'bibtex')}"
    return f"{name}: {_inline(text)}"


def _fenced(text: str, language: str) -> str:
    # Names in a dataset are untrusted: none may end the fence, or our block.
    text = text.replace("<!--", "\\u003c!--")
    longest = max((len(ticks) for ticks in _BACKTICKS.findall(text)), default=2)
    fence = "`" * (longest + 1)
    return f"{fence}{language}\n{text}\n{fence}"


def _inline(text: str) -> str:
    return printable(" ".join(text.replace("`", "'").replace("<!--", "").split()))


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.1f} seconds"
    return f"{seconds / 60:.1f} minutes" if seconds < 5400 else f"{seconds / 3600:.1f} hours"


def _merged_header(header: str, facts: CardFacts) -> str:
    import yaml

    header = header.replace("\r\n", "\n")
    there = _parsed(header)
    wanted = _wanted(there, facts)
    for key in [*there, *(key for key in wanted if key not in there)]:
        if key not in wanted:
            header = _replaced(header, key, "")
        elif key not in there or there[key] != wanted[key]:
            header = _replaced(header, key, _dumped({key: wanted[key]}))
    try:
        if _parsed(header) == wanted:
            return header
    except ArgumentError:
        pass
    # A header of an unusual form, such as one line in braces: written again as a whole.
    return str(yaml.safe_dump(wanted, sort_keys=False, allow_unicode=True))


def _dumped(value: Mapping[str, Any]) -> str:
    import yaml

    return str(yaml.safe_dump(value, sort_keys=False, allow_unicode=True))


def _parsed(header: str) -> dict[str, Any]:
    import yaml

    refuse_above(
        "CARD_BYTES", len(header), "The YAML at the head of README.md has bytes:", ArgumentError
    )

    class Loader(yaml.SafeLoader):
        """Without aliases: a few lines of them stand for more than any memory holds."""

        def compose_node(self, parent: Any, index: Any) -> Any:
            if self.check_event(yaml.AliasEvent):
                raise yaml.YAMLError("it uses an alias")
            return super().compose_node(parent, index)

    try:
        found = yaml.load(header, Loader)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        said = " ".join(str(error).split())[:300]
        raise ArgumentError(
            f"The YAML at the head of README.md cannot be read ({said}).",
            hint="correct the lines between the two '---'",
        ) from error
    if found is None:
        return {}
    if not isinstance(found, dict):
        raise ArgumentError(
            "The YAML at the head of README.md holds no keys.",
            hint="correct the lines between the two '---'",
        )
    return found


def _replaced(header: str, key: str, line: str) -> str:
    """Return a header with the lines of one top-level key replaced."""
    lines = header.splitlines(keepends=True)
    start = re.compile(rf"""(?:{re.escape(str(key))}|(["']){re.escape(str(key))}\1)\s*:""")
    for first, text in enumerate(lines):
        if start.match(text):
            stop = first + 1
            while stop < len(lines) and re.match(r"[ \t]+\S|- |-$|[ \t]*$", lines[stop]):
                stop += 1
            return "".join([*lines[:first], line, *lines[stop:]])
    if lines and not lines[-1].endswith("\n"):
        lines.append("\n")
    return "".join([*lines, line])


def _wanted(there: Mapping[str, Any], facts: CardFacts) -> dict[str, Any]:
    wanted = dict(there)
    extra = {key: value for key, value in facts.texts.items() if key not in _TEXTS}
    wanted.update({key: value for key, value in extra.items() if value is not None})
    license = facts.license or there.get("license") or DEFAULT_LICENSE
    wanted["license"] = license
    wanted["tags"] = _with(there.get("tags"), ["LeRobot", *facts.tags])
    wanted["task_categories"] = _with(there.get("task_categories"), ["robotics"])
    if facts.layout.startswith("v"):
        wanted["configs"] = there.get("configs") or _CONFIGS
    elif wanted.get("configs") == _CONFIGS:
        del wanted["configs"]  # there are no such files any more
    return wanted


def _with(there: object, needed: Sequence[str]) -> list[Any]:
    listed = list(there) if isinstance(there, (list, tuple)) else [there] if there else []
    return [*listed, *(value for value in dict.fromkeys(needed) if value not in listed)]


@dataclass(frozen=True, slots=True)
class ContactSheet:
    """An image of first frames.

    Attributes:
        jpeg: The encoded image.
        cameras: What its rows show, from top to bottom.
    """

    jpeg: bytes
    cameras: tuple[str, ...]


def contact_sheet(root: Path) -> ContactSheet | None:
    """Return an image with a row a camera, and in it first frames of some episodes.

    Up to five episodes, spread over the dataset, and eight cameras. A camera whose frames do not
    decode is left out: whether a dataset is sound is not decided here.

    Cost: decodes at most 40 frames, in small; memory is a few of them.

    Returns:
        None where no camera can be shown.
    """
    rows, cameras = [], []
    dataset = Dataset(root, decode_threads=1)
    firsts = _first_frames(dataset)
    for camera in dataset.cameras[:_MOST_CAMERAS]:
        try:
            rows.append(_row(root, camera, dataset.features[camera].shape, firsts))
            cameras.append(camera)
        except DemoreelError as error:
            log.warning("the card shows no frames of %s: %s", camera, error.what)
    if not rows:
        return None
    return ContactSheet(encode_image(_stacked(rows), _CODEC), tuple(cameras))


def _first_frames(dataset: Dataset) -> list[int]:
    count = len(dataset.episodes)
    chosen = np.unique(np.linspace(0, count - 1, min(count, _COLUMNS)).round().astype(int))
    return [int(start) for start in dataset.episodes.start[chosen]]


def _row(root: Path, camera: str, shape: tuple[int, ...], firsts: list[int]) -> np.ndarray:
    height, width = _frame_size(shape)
    scale = min(1.0, _HEIGHT / height)
    size = (max(1, round(height * scale)), max(1, round(width * scale)))
    small = Dataset(root, cameras=[camera], image_size=size, decode_threads=1)
    frames = [_as_rgb(np.asarray(frame)) for frame in small.batch(firsts)[camera]]
    gap = np.full((size[0], _GAP, 3), 255, np.uint8)
    parts = [part for frame in frames for part in (frame, gap)]
    return np.concatenate(parts[:-1], axis=1)


def _frame_size(shape: tuple[int, ...]) -> tuple[int, int]:
    """Return height and width, whether channels are declared last, first, or not at all."""
    if len(shape) == 3:
        shape = shape[1:] if shape[0] <= 4 < shape[2] else shape[:2]
    return int(shape[0]), int(shape[1])


def _as_rgb(frame: np.ndarray) -> np.ndarray:
    """Return a sample's frame (channels, height, width) as rows of RGB; depth becomes grey."""
    if frame.dtype != np.uint8:
        depth = np.nan_to_num(frame.astype(np.float64))
        span = float(depth.max() - depth.min())
        frame = ((depth - depth.min()) * (255 / span if span else 0)).astype(np.uint8)
    return np.moveaxis(np.broadcast_to(frame, (3, *frame.shape[1:])), 0, -1)


def _stacked(rows: list[np.ndarray]) -> np.ndarray:
    width = max(row.shape[1] for row in rows)
    parts: list[np.ndarray] = []
    for row in rows:
        padded = np.full((row.shape[0], width, 3), 255, np.uint8)
        padded[:, : row.shape[1]] = row
        parts += [padded, np.full((_GAP, width, 3), 255, np.uint8)]
    return np.concatenate(parts[:-1])
