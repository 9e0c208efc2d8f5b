"""How the result of a cut is to be: the options that decide whether images are encoded."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Annotated, Any, Literal

import typer

Exact = Annotated[
    bool,
    typer.Option(
        "--exact",
        help="Carry no packets that are not a clip's own: encode its frames before the next "
        "keyframe.",
    ),
]
Fps = Annotated[
    float | None,
    typer.Option("--fps", metavar="N", help="Another frame rate.", show_default=False),
]
Vcodec = Annotated[
    str | None,
    typer.Option(
        "--vcodec",
        metavar="CODEC",
        help="Encode videos anew: av1, h264, hevc, vp9, or an encoder such as libsvtav1.",
        show_default=False,
    ),
]
Crf = Annotated[
    int | None,
    typer.Option("--crf", metavar="N", help="Its quality; less is better.", show_default=False),
]
Gop = Annotated[
    int | None,
    typer.Option(
        "--gop", "-g", metavar="N", help="Frames from keyframe to keyframe.", show_default=False
    ),
]
Preset = Annotated[
    str | None,
    typer.Option("--preset", metavar="NAME", help="The encoder's speed.", show_default=False),
]
PixFmt = Annotated[
    str | None,
    typer.Option("--pix-fmt", metavar="NAME", help="E.g. yuv444p.", show_default=False),
]
Cameras = Annotated[
    list[str] | None,
    typer.Option(
        "--camera",
        metavar="KEY",
        help="Encode only this one; may be repeated.",
        show_default=False,
    ),
]
Images = Annotated[
    Literal["keep", "video"],
    typer.Option("--images", help="What becomes of images that lie in the tables."),
]
RecomputeStats = Annotated[
    bool,
    typer.Option(
        "--recompute-stats",
        help="Decode images whose statistics would be approximate otherwise.",
    ),
]

DropAudio = Annotated[
    bool, typer.Option("--drop-audio", help="Leave the audio of videos out; it is copied else.")
]


@dataclass(frozen=True, slots=True, kw_only=True)
class FormChoices:
    """The options of every verb that decide how its result is to be."""

    exact: Exact = False
    fps: Fps = None
    vcodec: Vcodec = None
    crf: Crf = None
    gop: Gop = None
    preset: Preset = None
    pix_fmt: PixFmt = None
    camera: Cameras = None
    images: Images = "keep"
    recompute_stats: RecomputeStats = False
    drop_audio: DropAudio = False

    def chosen(self) -> dict[str, Any]:
        """Return them as ``Cut.render`` takes them."""
        found = {field.name: getattr(self, field.name) for field in fields(FormChoices)}
        found["cameras"] = found.pop("camera") or None
        preset = found["preset"]
        found["preset"] = int(preset) if preset is not None and preset.isdigit() else preset
        return found
