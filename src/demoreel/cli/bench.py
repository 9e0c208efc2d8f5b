"""``demoreel bench``: how fast a dataset loads on this machine."""

from __future__ import annotations

import logging
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from demoreel.cli.options import DatasetPath
from demoreel.cli.output import Output, TableColumn, size
from demoreel.errors import ArgumentError, count

if TYPE_CHECKING:
    from demoreel.read.speed import ReuseSpeed, Speed
    from demoreel.torch.device_speed import DeviceSpeed

_FEW_FRAMES = 1000
_FEW_SECONDS = 3.0

log = logging.getLogger(__name__)


def bench(
    out: Output,
    path: DatasetPath,
    window: Annotated[
        int | None,
        typer.Option(
            "--window",
            "-w",
            min=2,
            metavar="N",
            help="Also measure samples with the last N frames of each camera.",
        ),
    ] = None,
    camera: Annotated[
        list[str] | None,
        typer.Option("--camera", "-c", metavar="KEY", help="Only this camera; may be repeated."),
    ] = None,
    seconds: Annotated[
        float, typer.Option("--seconds", "-s", min=0.1, metavar="S", help="How long to measure.")
    ] = 6.0,
    batch_size: Annotated[
        int, typer.Option("--batch-size", "-b", min=1, metavar="N", help="Samples in a batch.")
    ] = 32,
    threads: Annotated[
        int | None,
        typer.Option(
            "--threads", min=1, metavar="N", help="Threads that decode; by default every core."
        ),
    ] = None,
    reuse: Annotated[
        str | None,
        typer.Option(
            "--reuse",
            metavar="SIZE",
            help="Also measure batches from a pool of decoded video within this memory: 4GB.",
        ),
    ] = None,
    device: Annotated[
        str,
        typer.Option(
            "--device",
            metavar="NAME",
            help="Where videos are decoded: cpu, cuda, cuda:1, or auto, a GPU if there is one.",
        ),
    ] = "cpu",
    workers: Annotated[
        int,
        typer.Option(
            "--workers", min=0, metavar="N", help="Of a GPU: processes that read packets for it."
        ),
    ] = 2,
    seed: Annotated[
        int, typer.Option("--seed", min=0, metavar="N", help="Seed of the random frames.")
    ] = 0,
) -> None:
    """Measure how fast random batches load, beside plain decoding.

    Plain decoding (the floor) decodes and converts the same frames on as many threads.
    Bytes are in memory before the clock starts: the disk is not measured. Of a remote
    dataset, the reader's share of the time holds the transfers, too.

    With --device cuda, batches go through demoreel.torch.to_device, as in a training, and the
    floor is the same decoders with packets that were read before.
    """
    from demoreel.read.packets import packet_decoder
    from demoreel.read.speed import measure_reuse, measure_speed

    if packet_decoder(device) is not None:
        if reuse is not None:
            raise ArgumentError(
                "--reuse measures decoded video in memory, which the CPU decodes.",
                hint="leave out --reuse or --device",
            )
        _bench_device(
            out,
            path,
            windows=[1, *([] if window is None else [window])],
            device=device,
            cameras=camera or None,
            batch_size=batch_size,
            seconds=seconds,
            workers=workers,
            threads=threads,
            seed=seed,
        )
        return
    speeds: dict[str, Speed] = {}
    gains: dict[str, ReuseSpeed] = {}
    for name, frames in (("single frames", 1), (f"windows of {window}", window)):
        if frames is None:
            continue
        log.debug("measuring %s", name)
        with out.progress(f"measuring {name}") as progress:
            speeds[name] = measure_speed(
                path,
                window=frames,
                cameras=camera or None,
                batch_size=batch_size,
                seconds=seconds,
                threads=threads,
                seed=seed,
                progress=progress,
            )
        if reuse is None:
            continue
        with out.progress(f"measuring {name} with {reuse}") as progress:
            gains[name] = measure_reuse(
                path,
                reuse,
                window=frames,
                cameras=camera or None,
                batch_size=batch_size,
                seconds=seconds,
                threads=threads,
                seed=seed,
                progress=progress,
            )
    _warn(out, path, seconds)
    if out.json:
        found = {"path": path, "speeds": [asdict(speed) for speed in speeds.values()]}
        if gains:
            found["reuse"] = [asdict(gain) | {"gain": gain.gain} for gain in gains.values()]
        out.result(found)
    else:
        _show(out, speeds)
        if gains:
            _show_gains(out, gains)


def _bench_device(out: Output, path: str, *, windows: list[int], **options: Any) -> None:
    """Measure batches that arrive on a GPU."""
    from demoreel.torch.device_speed import measure_device_speed

    speeds: dict[str, DeviceSpeed] = {}
    for window in windows:
        name = "single frames" if window == 1 else f"windows of {window}"
        with out.progress(f"measuring {name}") as progress:
            speeds[name] = measure_device_speed(path, window=window, progress=progress, **options)
    _warn(out, path, options["seconds"])
    if out.json:
        out.result({"path": path, "speeds": [asdict(speed) for speed in speeds.values()]})
        return
    headings = ("samples/s", "floor", "share", "decoders busy", "cores", "encoded/sample")
    out.table(
        [TableColumn("batches of"), *(TableColumn(one, right=True) for one in headings)],
        [(name, *_device_cells(speed)) for name, speed in speeds.items()],
    )
    first = next(iter(speeds.values()))
    out.line()
    out.line(
        f"batch size {first.batch_size}, on {first.device}, {count(first.workers, 'worker')}, "
        f"opened in {1000 * first.open_s:.0f} ms"
    )
    if first.share is not None:
        out.line("floor: the same decoders with packets that were read before, and nothing else")
    for key, place in first.decoded_on.items():
        if place == "cpu":
            out.note(f"{key} is decoded by the CPU: its images are not for this GPU")
    if first.decoders_unknown is not None:
        out.note(f"how busy the decoders are is not known: {first.decoders_unknown}")


def _device_cells(speed: DeviceSpeed) -> tuple[str, ...]:
    return (
        f"{speed.samples_per_s:.0f}",
        "" if speed.floor_samples_per_s is None else f"{speed.floor_samples_per_s:.0f}",
        "" if speed.share is None else f"{100 * speed.share:.0f} %",
        "" if speed.decoders_busy is None else f"{100 * speed.decoders_busy:.0f} %",
        "" if speed.cores is None else f"{speed.cores:.1f}",
        size(speed.bytes_per_sample),
    )


def _warn(out: Output, path: str, seconds: float) -> None:
    """Say where the numbers tell little."""
    import demoreel

    frames = len(demoreel.open(path))
    if frames < _FEW_FRAMES:
        out.note(
            f"the dataset has {count(frames, 'frame')}: batches hold the same ones again and "
            "again, and load faster than those of a large dataset"
        )
    if seconds < _FEW_SECONDS:
        out.note(f"measured for {seconds:g} s: rates vary by tens of percent; 6 s vary less")


def _show(out: Output, speeds: dict[str, Speed]) -> None:
    headings = ("samples/s", "floor", "share", "encoded/sample", "encoded/s")
    out.table(
        [TableColumn("batches of"), *(TableColumn(name, right=True) for name in headings)],
        [(name, *_cells(speed)) for name, speed in speeds.items()],
    )
    first = next(iter(speeds.values()))
    out.line()
    out.line(
        f"batch size {first.batch_size}, decoding threads {first.threads}, "
        f"opened in {1000 * first.open_s:.0f} ms"
    )
    if first.share is not None:
        out.line("floor: decoding and converting the same frames, and nothing else")


def _show_gains(out: Output, gains: dict[str, ReuseSpeed]) -> None:
    first = next(iter(gains.values()))
    headings = ("samples/s", "without", "gain", "decoded/sample", "episodes/batch", "distance")
    out.line()
    out.table(
        [
            TableColumn(f"with {size(first.budget)} of decoded video"),
            *(TableColumn(name, right=True) for name in headings),
        ],
        [(name, *_gain_cells(gain)) for name, gain in gains.items()],
    )
    out.line()
    out.line(
        f"{count(first.spans, 'span')} of up to {count(first.span_length, 'sample')} at a time; a "
        f"full shuffle has {first.plain_episodes:.1f} episodes in a batch, and neighbours "
        f"{first.plain_distance:.2f} of the dataset apart"
    )


def _gain_cells(gain: ReuseSpeed) -> tuple[str, ...]:
    return (
        f"{gain.samples_per_s:.0f}",
        f"{gain.plain_samples_per_s:.0f}",
        f"{gain.gain:.1f}x",
        f"{gain.decoded_per_sample:.2f}",
        f"{gain.episodes:.1f}",
        f"{gain.distance:.2f}",
    )


def _cells(speed: Speed) -> tuple[str, ...]:
    return (
        f"{speed.samples_per_s:.0f}",
        "" if speed.floor_samples_per_s is None else f"{speed.floor_samples_per_s:.0f}",
        "" if speed.share is None else f"{100 * speed.share:.0f} %",
        size(speed.bytes_per_sample),
        size(speed.bytes_per_sample * speed.samples_per_s),
    )
