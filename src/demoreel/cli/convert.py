"""``demoreel convert``: a dataset in another layout."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Literal, cast

import typer

from demoreel.cli.options import SourcePath, Staging, place
from demoreel.cli.output import Output, console, duration, size
from demoreel.errors import count

if TYPE_CHECKING:
    from demoreel.convert.progress import Progress
    from demoreel.convert.report import ConvertReport
    from demoreel.media.images import Subsampling

_STAGES = {
    "fetch": "fetching",
    "write": "writing",
    "finish": "finishing",
    "verify": "verifying",
    "commit": "committing",
    "send": "sending",
}


def convert(
    out: Output,
    source: SourcePath,
    target: Annotated[
        str | None,
        typer.Argument(
            metavar="[TARGET]", help="The folder to make, or a URI: s3://bucket/name.", parser=place
        ),
    ] = None,
    *,
    to: Annotated[
        Literal["lance-video", "lance-frames", "lance-native", "v3.0", "v2.1"],
        typer.Option("--to", help="The layout to convert to."),
    ],
    in_place: Annotated[
        bool,
        typer.Option(
            "--in-place", help="Put the result in SOURCE's place; that is called SOURCE_old then."
        ),
    ] = False,
    table_name: Annotated[
        str | None,
        typer.Option(
            "--table-name",
            metavar="NAME",
            help="Of lance-video and lance-frames: the table's name. The source's by default.",
        ),
    ] = None,
    link: Annotated[
        bool, typer.Option("--link", help="Leave the videos where they are, and point at them.")
    ] = False,
    image_codec: Annotated[
        Literal["jpeg", "png", "webp-lossless", "source"] | None,
        typer.Option(
            "--image-codec",
            help="Of lance-frames. By default source if no camera is a video, else jpeg.",
        ),
    ] = None,
    jpeg_quality: Annotated[
        int, typer.Option("--jpeg-quality", metavar="N", help="1 to 100.")
    ] = 95,
    jpeg_subsampling: Annotated[
        int, typer.Option("--jpeg-subsampling", metavar="N", help="0: 4:4:4, 1: 4:2:2, 2: 4:2:0.")
    ] = 2,
    exact: Annotated[
        bool,
        typer.Option(
            "--exact", help="Of v2.1: encode anew the GOP that an episode begins inside of."
        ),
    ] = False,
    picture_stats: Annotated[
        bool,
        typer.Option(
            "--picture-stats/--no-picture-stats",
            help="Of v3.0 and v2.1: compute missing statistics of images by decoding them.",
        ),
    ] = True,
    skip_missing: Annotated[
        bool,
        typer.Option("--skip-missing", help="Leave out episodes of v2.x whose files are missing."),
    ] = False,
    drop_audio: Annotated[
        bool,
        typer.Option(
            "--drop-audio", help="Of lance-frames, v3.0 and v2.1: leave the audio of videos out."
        ),
    ] = False,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace the dataset at TARGET.")
    ] = False,
    verify: Annotated[
        Literal["full", "sample", "none"],
        typer.Option("--verify", help="How much to compare with the source before it is shown."),
    ] = "full",
    no_verify: Annotated[
        bool, typer.Option("--no-verify", help="The same as --verify none.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check everything, write nothing.")
    ] = False,
    jobs: Annotated[
        int | None, typer.Option("--jobs", "-j", min=1, metavar="N", help="Threads. Every core.")
    ] = None,
    staging: Staging = None,
) -> None:
    """Write the dataset at SOURCE in another layout to TARGET.

    TARGET appears whole and verified, or not at all; SOURCE is only read. After a kill the same
    command goes on where it was. With --in-place there is no TARGET. What is remote is fetched
    first, or made here and sent at the end.
    """
    import demoreel

    with _bar(out) as show:
        report = demoreel.convert(
            source,
            target,
            to=to,
            in_place=in_place,
            table_name=table_name,
            overwrite=overwrite,
            link=link,
            image_codec=image_codec,
            jpeg_quality=jpeg_quality,
            jpeg_subsampling=cast("Subsampling", jpeg_subsampling),  # checked by the codec
            exact=exact,
            picture_stats=picture_stats,
            skip_missing=skip_missing,
            drop_audio=drop_audio,
            verify="none" if no_verify else verify,
            dry_run=dry_run,
            jobs=jobs,
            progress=show,
        )
    if out.json:
        out.result(report.to_json())
    else:
        _tell(out, report)


@contextmanager
def _bar(out: Output) -> Iterator[Callable[[Progress], None] | None]:
    """Yield a function that shows progress, its speed and the time left, on a terminal."""
    if out.silent or not sys.stderr.isatty():
        yield None
        return
    from rich.progress import BarColumn, Progress, TextColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[rest]}"))
    with Progress(*columns, console=console(sys.stderr), transient=True) as bar:
        task = bar.add_task("", total=1.0, rest="")
        yield lambda now: bar.update(
            task, description=_STAGES[now.stage], completed=now.share, rest=_speed(now)
        )


def _speed(now: Progress) -> str:
    """Return ``420 frames/s, 35 MB/s, 12 s left``, as far as it is known."""
    if now.stage not in ("write", "verify") or now.seconds < 1:
        return ""
    parts = []
    if now.total_frames:
        parts.append(f"{now.frames / now.seconds:,.0f} frames/s")
    if now.total_video_bytes:
        parts.append(f"{size(now.video_bytes / now.seconds)}/s")
    if now.share > 0:
        parts.append(f"{duration(now.seconds * (1 / now.share - 1))} left")
    return ", ".join(parts)


def _tell(out: Output, report: ConvertReport) -> None:
    what = [count(report.episodes, "episode"), count(report.frames, "frame")]
    if report.videos:
        what.append(f"{count(report.videos, 'video')} ({size(report.video_bytes)})")
    if report.image_codec:
        what.append(f"images as {report.image_codec}")
    did = "would write" if report.dry_run else "wrote"
    out.note(f"{did} {report.target} as {report.to}: {', '.join(what)}")
    for note in report.notes:
        out.note(note)
    for sentence in report.dropped:
        out.note(f"dropped: {sentence}")
    if report.kept is not None:
        would = "would be kept" if report.dry_run else "is kept"
        out.note(f"what was there {would} at {report.kept}")
    if report.linked:
        out.note(f"its videos lie in {report.source} still: keep that folder where it is")
    if report.dry_run:
        return
    if report.resumed_parts:
        parts = f"{report.resumed_parts} of {report.parts} parts"
        out.note(f"{parts} had been written before it was killed")
    checked = "verified" if report.verified else "not verified"
    out.note(f"{size(report.bytes_written)} in {duration(report.seconds)}, {checked}")
