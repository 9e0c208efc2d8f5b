"""What a caller wants of a conversion."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from demoreel.convert.progress import Report
from demoreel.errors import ArgumentError
from demoreel.media.images import CodecName, Subsampling

To = Literal["lance-video", "lance-frames", "lance-native", "v3.0", "v2.1"]
"""The layouts that are written."""

Verify = Literal["full", "sample", "none"]
"""How much is compared: all rows and images, some of them, or nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What a caller wants; ``run.convert`` says what each means."""

    to: To
    table_name: str | None = None
    overwrite: bool = False
    link: bool = False
    image_codec: CodecName | None = None
    jpeg_quality: int = 95
    jpeg_subsampling: Subsampling = 2
    exact: bool = False
    picture_stats: bool = True
    skip_missing: bool = False
    drop_audio: bool = False
    verify: Verify = "full"
    dry_run: bool = False
    jobs: int | None = None
    progress: Report | None = None

    def __post_init__(self) -> None:
        if self.to not in get_args(To):
            known = ", ".join(get_args(To))
            raise ArgumentError(
                f"There is no layout {self.to!r} to convert to.", hint=f"one of {known}"
            )
        if self.jobs is not None and (not isinstance(self.jobs, int) or self.jobs < 1):
            raise ArgumentError(f"jobs must be at least 1, not {self.jobs!r}.")


def verification(verify: Verify | bool) -> Verify:
    """Return how much to compare; True is all of it.

    Raises:
        ArgumentError: There is no such word for it.
    """
    if isinstance(verify, bool):
        return "full" if verify else "none"
    if verify not in get_args(Verify):
        known = ", ".join(get_args(Verify))
        raise ArgumentError(f"verify must be one of {known}, not {verify!r}.")
    return verify
