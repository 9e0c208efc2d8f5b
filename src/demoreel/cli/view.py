"""``demoreel view``: datasets in the browser."""

from __future__ import annotations

from typing import Annotated

import typer

from demoreel.cli.options import place
from demoreel.cli.output import Output
from demoreel.errors import ArgumentError

_EVERY = ("0.0.0.0", "::")


def view(
    out: Output,
    paths: Annotated[
        list[str],
        typer.Argument(
            metavar="PATH...",
            help="Datasets or folders of datasets; or URIs: s3://bucket/name.",
            parser=place,
        ),
    ],
    port: Annotated[
        int, typer.Option("--port", min=0, max=65535, metavar="N", help="0: a free one.")
    ] = 0,
    host: Annotated[
        str, typer.Option("--host", metavar="ADDRESS", help="The address to listen on.")
    ] = "127.0.0.1",
    read_only: Annotated[
        bool, typer.Option("--read-only", help="Refuse all that writes: drafts and rendering.")
    ] = False,
    predictions: Annotated[
        list[str] | None,
        typer.Option(
            "--predictions",
            metavar="FILE",
            help="Predicted actions (parquet, npz) to draw over recorded ones; more than once.",
        ),
    ] = None,
    rerun: Annotated[
        bool,
        typer.Option(
            "--rerun",
            help="Write an episode as a Rerun recording, to a path OUT.rrd; without one, open "
            "Rerun's viewer.",
        ),
    ] = False,
    episode: Annotated[
        int, typer.Option("--episode", min=0, metavar="N", help="Which, with --rerun.")
    ] = 0,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="With --rerun: say what would be written.")
    ] = False,
    no_browser: Annotated[
        bool, typer.Option("--no-browser", help="Print the address, and open no browser.")
    ] = False,
) -> None:
    """Show datasets in the browser: episodes, cameras exact to the frame, charts.

    Nothing is converted, uploaded or written. The address that is printed has a token in it. Over
    SSH, forward the port (ssh -L 8000:localhost:8000, with --port 8000) and open the address there.
    Ends with Ctrl-C.
    """
    if rerun:
        _rerun(out, paths, episode, dry_run)
        return
    if dry_run:
        raise ArgumentError(
            "--dry-run is for --rerun; the viewer itself writes nothing before you say so.",
            hint="leave it out, or add --read-only",
        )
    from demoreel.view.server import RunningViewer

    viewer = RunningViewer(
        paths, host=host, port=port, read_only=read_only, predictions=predictions or ()
    )
    if not viewer.is_local:
        every = f"; elsewhere, write this machine's name for {host}" if host in _EVERY else ""
        out.note(
            f"{host} is not this machine alone: all who have this address and its token can see "
            f"the datasets, and the connection is not encrypted{every}"
        )
    out.line(viewer.address)
    if not no_browser:
        import webbrowser

        webbrowser.open(viewer.address)
    viewer.serve()


def _rerun(out: Output, paths: list[str], episode: int, dry_run: bool) -> None:
    import demoreel
    from demoreel.view.rerun import checked_target, show_recording, write_recording

    targets = [path for path in paths if path.endswith(".rrd")]
    datasets = [path for path in paths if path not in targets]
    if len(datasets) != 1 or len(targets) > 1:
        raise ArgumentError(
            "--rerun is for an episode of one dataset.",
            hint="demoreel view DATASET --rerun OUT.rrd --episode 3",
        )
    dataset = demoreel.open(datasets[0])
    if dry_run:
        where = checked_target(dataset, episode, targets[0]) if targets else "Rerun's viewer"
        frames, cameras = len(dataset.episode(episode)), len(dataset.cameras)
        out.line(f"{where}: episode {episode}, {frames} frames of {cameras} cameras")
        return
    if targets:
        out.line(str(write_recording(dataset, episode, targets[0])))
    else:
        show_recording(dataset, episode)
