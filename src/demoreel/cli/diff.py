"""``demoreel diff``: where two datasets differ."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from demoreel.cli.options import Staging, place
from demoreel.cli.output import Output, TableColumn
from demoreel.errors import count

if TYPE_CHECKING:
    from demoreel.edit.diff.difference import Difference, DifferencePlace, StatisticDifference

_NUMBERS_SHOWN = 12
_WIDEST = 60


def diff(
    out: Output,
    a: Annotated[
        str, typer.Argument(metavar="A", help="A dataset: a folder, or a URI.", parser=place)
    ],
    b: Annotated[str, typer.Argument(metavar="B", help="The other.", parser=place)],
    match: Annotated[
        Literal["position", "content"],
        typer.Option(
            "--match", help="Compare episodes at the same position, or with the same rows."
        ),
    ] = "position",
    pixels: Annotated[
        Literal["none", "sample", "all"],
        typer.Option(
            "--pixels", help="Where encoded bytes differ, decode a few frames, all, or none."
        ),
    ] = "sample",
    tolerance: Annotated[
        float, typer.Option("--tolerance", metavar="X", help="How much numbers may differ.")
    ] = 0.0,
    pixel_tolerance: Annotated[
        float,
        typer.Option(
            "--pixel-tolerance", metavar="X", help="How much pixels may differ, in levels of 255."
        ),
    ] = 0.0,
    staging: Staging = None,
) -> None:
    """Show where two datasets differ: metadata, rows, images.

    The layouts may differ. The exit code is 0 if there is no difference, 1 if there is one, and 2
    if the datasets could not be compared.
    """
    import demoreel

    with out.progress("comparing") as report:
        found = demoreel.diff(
            a,
            b,
            match=match,
            pixels=pixels,
            tolerance=tolerance,
            pixel_tolerance=pixel_tolerance,
            report=report,
        )
    if out.json:
        out.result(found.to_json())
    else:
        _show(out, found)
    if not found.is_equal:
        raise typer.Exit(1)


def _show(out: Output, found: Difference) -> None:
    rows = [*_metadata(found), *_columns(found), *_statistics(found), *_frames(found)]
    if rows:
        heads = ("part", "what", "A", "B", "how much")
        out.table([TableColumn(name) for name in heads], rows)
    compared = f"{count(found.episodes, 'episode')}, {count(found.frames, 'frame')} compared"
    if found.pixels == "none":
        compared += "; frames were not"
    elif found.decoded:
        compared += f"; {count(found.decoded, 'frame')} decoded, as bytes differ"
    out.note(f"{compared}: {'different' if rows else 'no difference'}")


Row = tuple[str, str, str, str, str]


def _metadata(found: Difference) -> list[Row]:
    rows: list[Row] = [
        (
            s.part,
            s.what.replace("only in a", "only in A").replace("only in b", "only in B"),
            _text(s.a),
            _text(s.b),
            "" if s.count == 1 else f"{s.count:,} episodes",
        )
        for s in found.said
    ]
    if found.only_in_a:
        rows.append(("episodes", "only in A", _numbers(found.only_in_a), "", ""))
    if found.only_in_b:
        rows.append(("episodes", "only in B", "", _numbers(found.only_in_b), ""))
    if found.moved:
        mine, theirs = zip(*found.moved, strict=True)
        much = count(len(found.moved), "episode")
        rows.append(("episodes", "moved", _numbers(mine), _numbers(theirs), much))
    return rows


def _columns(found: Difference) -> list[Row]:
    return [
        (
            "rows",
            column.key,
            *_place(column.first),
            _much(column.frames, column.episodes)
            + ("" if column.largest is None else f", by up to {column.largest:.6g}"),
        )
        for column in found.columns
    ]


def _statistics(found: Difference) -> list[Row]:
    """Return a line for each feature whose statistics differ."""
    rows: list[Row] = []
    for key in dict.fromkeys(one.key for one in found.statistics):
        own = [one for one in found.statistics if one.key == key]
        mine, theirs = (_kinds([o for o in own if o.only_in == side]) for side in ("a", "b"))
        both = [one for one in own if one.only_in is None]
        # Frames are counted in another unit than values are.
        counted = [[o for o in both if (o.kind == "count") == count] for count in (False, True)]
        much = "; ".join(_how_much(part) for part in counted if part)
        rows.append(("statistics", key, mine, theirs, much))
    return rows


def _how_much(found: Sequence[StatisticDifference]) -> str:
    largest = max(math.inf if one.largest is None else one.largest for one in found)
    how = "of another shape" if math.isinf(largest) else f"by up to {largest:.6g}"
    return f"{_kinds(found)} {how}"


def _kinds(found: Sequence[StatisticDifference]) -> str:
    return ", ".join("all" if one.kind == "*" else one.kind for one in found)


def _frames(found: Difference) -> list[Row]:
    rows: list[Row] = []
    for camera in found.pictures:
        much = f"{camera.frames:,} of {count(camera.decoded, 'frame')} decoded"
        if camera.largest is None:
            much += ", another size"
        else:
            unit = "of depth" if camera.psnr is None else "of 255 levels"
            much += f", by up to {camera.largest:g} {unit}, mean {camera.mean:.3g}"
        if camera.psnr is not None:
            much += f", PSNR {camera.psnr:.1f} dB"
        rows.append(("images", camera.camera, *_place(camera.first), much))
    return rows


def _place(first: DifferencePlace) -> tuple[str, str]:
    where = f"frame {first.frame} of episode"
    return f"{where} {first.episode_a}", f"{where} {first.episode_b}"


def _much(frames: int, episodes: int) -> str:
    return f"{count(frames, 'frame')} in {count(episodes, 'episode')}"


def _numbers(numbers: Sequence[int]) -> str:
    shown = ", ".join(str(number) for number in numbers[:_NUMBERS_SHOWN])
    more = len(numbers) - _NUMBERS_SHOWN
    return shown if more <= 0 else f"{shown} and {more:,} more"


def _text(value: Any) -> str:
    """Return a value of the metadata; texts of a list are joined."""
    if isinstance(value, (list, tuple)) and all(isinstance(item, str) for item in value):
        text = ", ".join(value) or "none"
    else:
        text = "-" if value is None else str(value)
    return text if len(text) <= _WIDEST else f"{text[:_WIDEST]}…"
