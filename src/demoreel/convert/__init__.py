"""From layout to layout: planned, written in parts, verified, committed once.

``demoreel.convert(source, target, to="lance-video")`` does it all. This room can be called, because
it and the function have the same name: whoever imports something from here must not take the
function away from others.

    plan      what there is, what will be written, in which parts (``plan.py``)
    write     rows and videos, each part once (``lance_target.py``, ``v3_target.py``), each noted
              in a journal (``staging.py``)
    finish    tables, indices and ``meta/`` (``metadata.py``)
    verify    read back and compared with the source (``verify.py``)
    commit    one rename (``staging.py``)
"""

from __future__ import annotations

import sys
import types
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import os

    from demoreel.convert.plan import To
    from demoreel.convert.progress import Report
    from demoreel.convert.report import ConvertReport
    from demoreel.media.picture_encode import CodecName, Subsampling


class _Room(types.ModuleType):
    """This module, as something that can be called."""

    def __call__(
        self,
        source: str | os.PathLike[str],
        target: str | os.PathLike[str],
        *,
        to: To,
        table_name: str | None = None,
        overwrite: bool = False,
        link: bool = False,
        image_codec: CodecName | None = None,
        jpeg_quality: int = 95,
        jpeg_subsampling: Subsampling = 2,
        verify: bool = True,
        dry_run: bool = False,
        jobs: int | None = None,
        progress: Report | None = None,
    ) -> ConvertReport:
        """Convert a dataset to another layout. The source is only read.

        The target appears whole, when everything is written, forced to disk and verified, or not
        at all: an error, Ctrl-C or SIGTERM leaves nothing behind. After ``kill -9`` or a power cut
        the same call goes on from what was written.

        Cost: videos are copied at the speed of the disk, without a look at their pictures; for
        lance-frames every picture is decoded and encoded, on all cores. Memory stays below 1 GB.
        Verification reads everything once more.

        Args:
            source: A dataset of any layout that demoreel reads.
            target: The folder to make; there may be an empty one.
            to: ``lance-video`` (numbers in one table, the videos as they are in another),
                ``lance-frames`` (a table with an encoded picture per camera in every row),
                ``lance-native`` (what lerobot reads itself) or ``v3.0``.
            table_name: Of lance-video and lance-frames, the table's name; the source folder's by
                default.
            overwrite: Replace a dataset that is there. It stays until the new one is whole.
            link: Of lance-video and lance-native: leave the videos where they are, and point at
                them. Takes seconds, whatever their size; the source must stay then.
            image_codec: Of lance-frames: ``jpeg``; ``png`` or ``webp-lossless``, bit-exact; or
                ``source``, which keeps the bytes of pictures that are encoded already. By default
                ``source`` if no camera is a video, else ``jpeg``.
            jpeg_quality: 1 to 100.
            jpeg_subsampling: 0 is 4:4:4, 1 is 4:2:2, 2 is 4:2:0.
            verify: Compare what was written with the source before it is shown.
            dry_run: Check everything and say what would be done; write nothing.
            jobs: Threads; every core by default.
            progress: Called now and then with a ``Progress``, in the calling thread.

        Returns:
            What was done.

        Raises:
            ArgumentError: The source cannot become that, or options do not go together.
            TargetExistsError: There is something at ``target``.
            MetadataError: Two features would share a column in Lance.
            ConversionError: What was written is not what the source holds.
            DiskFullError: There is no room.
            DatasetBusyError: Another conversion to the same folder is running.
            DemoreelError: The source is not readable.
        """
        from demoreel.convert.run import convert

        return convert(
            source,
            target,
            to=to,
            table_name=table_name,
            overwrite=overwrite,
            link=link,
            image_codec=image_codec,
            jpeg_quality=jpeg_quality,
            jpeg_subsampling=jpeg_subsampling,
            verify=verify,
            dry_run=dry_run,
            jobs=jobs,
            progress=progress,
        )


sys.modules[__name__].__class__ = _Room
