"""The codes, one table a family. Whoever adds a family adds its table here."""

from __future__ import annotations

from demoreel.check.catalogue import deep, duplicate, lance, metadata, motion, table, video
from demoreel.check.codes import Code

EVERY: tuple[Code, ...] = (
    *metadata.CODES,
    *table.CODES,
    *video.CODES,
    *deep.CODES,
    *lance.CODES,
    *motion.CODES,
    *duplicate.CODES,
    Code(
        "check-failed",
        "check",
        "error",
        "A check could not be carried out",
        "Nothing is known of what this check looks for.",
    ),
)
