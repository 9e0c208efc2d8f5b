"""``demoreel convert``: a dataset in another layout."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal, cast

import typer

from demoreel.cli.options import Address, EngineName, SourcePath, Staging, engine_named, place
from demoreel.cli.output import Output, TableColumn, duration, size
from demoreel.cli.push import tell_pushed
from demoreel.errors import ArgumentError, called, count
from demoreel.storage.store import is_uri

if TYPE_CHECKING:
    from demoreel.convert.report import ConvertReport
    from demoreel.media.images import Subsampling


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
        Literal["lance-video", "lance-frames", "lance-native", "v3.0", "v2.1"] | None,
        typer.Option("--to", help="The layout to convert to."),
    ] = None,
    for_training: Annotated[
        bool,
        typer.Option(
            "--for-training",
            help="Write nothing: try codecs, GOPs and sizes on this dataset, and show a table.",
        ),
    ] = False,
    device: Annotated[
        str,
        typer.Option(
            "--device",
            metavar="NAME",
            help="Of --for-training: what will decode: cpu, cuda, cuda:1, or auto.",
        ),
    ] = "cpu",
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
        typer.Option("--exact", help="Of v2.1: encode the GOP that an episode begins inside of."),
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
    data_file_size: Annotated[
        float | None,
        typer.Option(
            "--data-file-size-in-mb",
            metavar="N",
            help="Of v3.0: size at which a new table is begun; the source's by default, or 100.",
        ),
    ] = None,
    video_file_size: Annotated[
        float | None,
        typer.Option(
            "--video-file-size-in-mb",
            metavar="N",
            help="Of v3.0: size at which a new video is begun; the source's by default, or 200.",
        ),
    ] = None,
    codec: Annotated[
        str | None,
        typer.Option(
            "--codec",
            metavar="NAME",
            help="Encode cameras: h264, av1, hevc, or an encoder. Images become videos.",
        ),
    ] = None,
    gop: Annotated[
        int | None,
        typer.Option("--gop", min=1, metavar="N", help="Frames from keyframe to keyframe."),
    ] = None,
    crf: Annotated[
        int | None, typer.Option("--crf", min=0, metavar="Q", help="Quality; less is better.")
    ] = None,
    preset: Annotated[
        str | None, typer.Option("--preset", metavar="NAME", help="The encoder's own speed.")
    ] = None,
    image_size: Annotated[
        str | None,
        typer.Option("--image-size", metavar="HxW", help="Scale encoded cameras, e.g. 240x320."),
    ] = None,
    camera: Annotated[
        list[str] | None,
        typer.Option(
            "--cameras", "-c", metavar="KEY", help="Encode only this camera; may be repeated."
        ),
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace the dataset at TARGET.")
    ] = False,
    push: Annotated[
        str | None,
        typer.Option(
            "--push",
            metavar="REPO",
            help="Then publish the result on the Hub, as demoreel push does; e.g. me/my_task.",
        ),
    ] = None,
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
        int | None,
        typer.Option(
            "--jobs", "-j", min=1, metavar="N", help="Processes or threads; by default every core."
        ),
    ] = None,
    engine: EngineName = "local",
    address: Address = None,
    staging: Staging = None,
) -> None:
    """Write the dataset at SOURCE in another layout to TARGET.

    TARGET appears whole and verified, or not at all; SOURCE is only read. After a kill the same
    command continues where it was. With --in-place there is no TARGET. What is remote is fetched
    first, or made here and sent at the end.
    """
    import demoreel
    from demoreel.convert.report import shown_progress

    size_asked = None if image_size is None else _height_and_width(image_size)
    if for_training:
        _propose(out, source, size_asked, crf, jobs, device)
        return
    if device != "cpu":
        raise ArgumentError(
            "--device says what will decode, for --for-training; nothing is converted on it.",
            hint="leave it out, or give --for-training",
        )
    if to is None:
        raise ArgumentError("Which layout is the result to have?", hint="--to v3.0")
    if push is not None:
        _refuse_push(push, source if in_place else target)
    with shown_progress(enabled=out.can_redraw) as show:
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
            data_files_size_in_mb=data_file_size,
            video_files_size_in_mb=video_file_size,
            codec=codec,
            gop=gop,
            crf=crf,
            preset=preset,
            image_size=size_asked,
            cameras=camera or None,
            verify="none" if no_verify else verify,
            dry_run=dry_run,
            jobs=jobs,
            engine=engine_named(engine, address),
            progress=show,
        )
    if not out.json:
        _tell(out, report)
    if push is None or dry_run:
        if out.json:
            out.result(report.to_json())
        elif push is not None:
            out.note(f"would push it to {push}")
        return
    with out.progress("sending") as show_sent:
        pushed = demoreel.push(report.target, push, report=show_sent)
    if out.json:
        out.result({**report.to_json(), "pushed": pushed.to_json()})
    else:
        tell_pushed(out, pushed)


def _propose(
    out: Output,
    source: str,
    image_size: tuple[int, int] | None,
    crf: int | None,
    jobs: int | None,
    device: str,
) -> None:
    """Measure ways to encode a dataset, and show what each would cost."""
    from dataclasses import asdict

    from demoreel.convert.training import measure_for_training

    with out.progress("measuring") as progress:
        found = measure_for_training(
            source,
            image_size=image_size,
            crf=30 if crf is None else crf,
            jobs=jobs,
            device=device,
            progress=progress,
        )
    if out.json:
        out.result({"source": source, "ways": [asdict(way) for way in found]})
        return
    headings = ("bytes/frame", "frames/s", "windows of 8/s", "encodes/s", "decoded on")
    out.table(
        [TableColumn("options"), *(TableColumn(name, right=True) for name in headings)],
        [
            (
                way.options() or "as it is",
                size(way.bytes_per_frame),
                f"{way.frames_per_s:.0f}",
                f"{way.windows_per_s:.0f}",
                f"{way.encoded_per_s:.0f}" if way.encoded_per_s else "",
                way.decoded_on,
            )
            for way in found
            if way.problem is None
        ],
    )
    for way in found:
        if way.problem is not None:
            out.note(f"{way.options()}: {way.problem}")
    out.note(
        "random frames of all cameras; the CPU decodes with every core; choose a row, and convert "
        "with it"
    )


def _height_and_width(said: str) -> tuple[int, int]:
    height, by, width = said.lower().partition("x")
    if not (by and height.isdecimal() and width.isdecimal()):
        raise ArgumentError(f"An image size is HEIGHTxWIDTH, such as 240x320, not {said!r}.")
    return int(height), int(width)


def _refuse_push(repo_id: str, target: str | None) -> None:
    """Refuse what could not be pushed, before anything is written."""
    from demoreel.hub.repository import Repository, check_names
    from demoreel.storage.hub_calls import MAIN

    check_names(repo_id, None)
    if target is not None and is_uri(target):
        raise ArgumentError(
            "A dataset is pushed from a folder on this machine.",
            hint="give a folder as TARGET, or leave --push out",
            uri=target,
        )
    Repository(repo_id, MAIN, None).require_token()


def _tell(out: Output, report: ConvertReport) -> None:
    what = [count(report.episodes, "episode"), count(report.frames, "frame")]
    if report.videos:
        what.append(f"{count(report.videos, 'video')} ({size(report.video_bytes)})")
    if report.image_codec:
        what.append(f"images as {report.image_codec}")
    did = "would write" if report.dry_run else "wrote"
    out.note(f"{did} {called(report.target)} as {report.to}: {', '.join(what)}")
    for note in report.notes:
        out.note(note)
    for sentence in report.dropped:
        out.note(f"dropped: {sentence}")
    if report.kept is not None:
        would = "would be kept" if report.dry_run else "is kept"
        out.note(f"what was there {would} at {called(report.kept)}")
    if report.linked:
        out.note(f"its videos are still in {called(report.source)}: keep that folder where it is")
    if report.dry_run:
        return
    if report.resumed_parts:
        parts = f"{report.resumed_parts} of {report.parts} parts"
        out.note(f"{parts} had been written before it was killed")
    checked = "verified" if report.verified else "not verified"
    if report.verified is not None and report.verified.lowest_psnr is not None:
        looked = count(report.verified.frames, "decoded image")
        checked += f": {looked}, PSNR {report.verified.lowest_psnr:.1f} dB or better"
    out.note(f"{size(report.bytes_written)} in {duration(report.seconds)}, {checked}")
