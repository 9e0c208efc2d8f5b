"""``demoreel frame``: one frame of a camera, as a file."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from demoreel.cli.options import DatasetPath
from demoreel.cli.output import Output
from demoreel.errors import ArgumentError, TargetExistsError

if TYPE_CHECKING:
    import numpy as np

    from demoreel.read.dataset import Dataset

_FORMATS = {".png": "PNG", ".jpg": "JPEG", ".jpeg": "JPEG"}
_JPEG_QUALITY = 95
_DEEPEST_MM = 65535


def frame(
    out: Output,
    path: DatasetPath,
    index: Annotated[int, typer.Argument(metavar="INDEX", help="The frame's number.")],
    output: Annotated[
        str,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help="Where to write: .png or .jpg; - is stdout, as PNG.",
        ),
    ],
    camera: Annotated[
        str | None,
        typer.Option("--camera", "-c", metavar="KEY", help="Needed if there are several."),
    ] = None,
    episode: Annotated[
        int | None,
        typer.Option(
            "--episode", "-e", metavar="N", help="Count INDEX from the start of this episode."
        ),
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace FILE.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check everything, write nothing.")
    ] = False,
) -> None:
    """Write one frame of a camera to a PNG or JPEG file.

    Depth becomes a 16-bit PNG in millimetres. The file appears whole or not at all. A negative
    INDEX counts from the end; put -- before it.
    """
    import demoreel

    dataset = demoreel.open(path)
    key = camera if camera is not None else _only_camera(dataset)
    number, place = _place(dataset, index, episode)
    frames = dataset.episode(number).frames(key, place, place + 1)
    depth = dataset.features[key].is_depth
    form = _checked_format(output, depth=depth)
    _check_target(output, out, overwrite=overwrite)
    height, width, _ = dataset.features[key].image_shape
    written = 0
    if not dry_run:
        image = next(frames)
        height, width = image.shape[:2]
        written = _write(output, _encoded(image, form, depth=depth))
    facts = {
        "file": output,
        "format": form,
        "bytes": written,
        "height": height,
        "width": width,
        "camera": key,
        "episode": number,
        "frame": place,
        "unit": "mm" if depth else None,
        "dry_run": dry_run,
    }
    _tell(out, facts)


def _only_camera(dataset: Dataset) -> str:
    known = dataset.cameras
    if len(known) == 1:
        return known[0]
    if not known:
        raise ArgumentError("The dataset has no camera.", dataset=dataset.root)
    raise ArgumentError(
        f"The dataset has {len(known)} cameras: choose one with --camera.",
        hint="--camera " + " or --camera ".join(known),
        dataset=dataset.root,
    )


def _place(dataset: Dataset, index: int, episode: int | None) -> tuple[int, int]:
    """Return the frame's episode, by its ``episode_index``, and its number there."""
    if episode is not None:
        length = len(dataset.episode(episode))
        if not -length <= index < length:
            raise ArgumentError(
                f"There is no frame {index} in episode {episode}.",
                hint=f"the episode has {length} frames",
                dataset=dataset.root,
            )
        return episode, index % length
    row = dataset.rows_of([index])
    position = int(dataset.episodes.positions_of_rows(row)[0])
    start = int(dataset.episodes.start[position])
    return int(dataset.episodes.episode_index[position]), int(row[0]) - start


def _checked_format(output: str, *, depth: bool) -> str:
    if output == "-":
        return "PNG"
    form = _FORMATS.get(Path(output).suffix.lower())
    if form is None:
        raise ArgumentError(
            f"{output!r} names no image format.", hint="end the name in .png or .jpg"
        )
    if depth and form != "PNG":
        raise ArgumentError(
            "JPEG cannot hold depth: it has 8 bits and loses some.", hint="end the name in .png"
        )
    return form


def _check_target(output: str, out: Output, *, overwrite: bool) -> None:
    if output == "-":
        if out.json:
            raise ArgumentError("-o - and --json both write to stdout.", hint="name a file")
        if out.is_terminal:
            raise ArgumentError(
                "An image cannot be written to a terminal.", hint="name a file, or pipe it on"
            )
        return
    target = Path(output)
    if not target.parent.is_dir():
        raise ArgumentError("The folder to write to does not exist.", folder=target.parent)
    if target.exists() and not target.is_file():
        raise TargetExistsError("The path exists and is not a file.", path=target)
    if target.exists() and not overwrite:
        raise TargetExistsError(
            "The file exists.", hint="pass --overwrite to replace it", path=target
        )


def _encoded(image: np.ndarray, form: str, *, depth: bool) -> bytes:
    import numpy as np
    from PIL import Image

    if depth:
        image = np.nan_to_num(image.round()).clip(0, _DEEPEST_MM).astype(np.uint16)
    options = {"quality": _JPEG_QUALITY, "subsampling": 0} if form == "JPEG" else {}
    data = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(image)).save(data, form, **options)
    return data.getvalue()


def _write(output: str, data: bytes) -> int:
    if output == "-":
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
    else:
        from demoreel.storage.commit.files import write_file

        write_file(output, data)
    return len(data)


def _tell(out: Output, facts: dict[str, Any]) -> None:
    if out.json:
        out.result(facts)
        return
    did = "would write" if facts["dry_run"] else "wrote"
    unit = ", 16 bits, millimetres" if facts["unit"] else ""
    name = "stdout" if facts["file"] == "-" else facts["file"]
    out.note(
        f"{did} {name}: {facts['height']} x {facts['width']} {facts['format']}{unit}, "
        f"{facts['camera']}, frame {facts['frame']} of episode {facts['episode']}"
    )
