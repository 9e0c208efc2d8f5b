"""What only Lance datasets have: versions, tags, and the converters of lerobot-lancedb.

``demoreel.versions``, ``demoreel.tag`` and so on are aliases of these functions for one release.
"""

from __future__ import annotations

from demoreel.convert.run import convert_to_lance, convert_to_lance_video
from demoreel.edit.in_place.versions import Version, checkout, tag, versions

__all__ = [
    "Version",
    "checkout",
    "convert_to_lance",
    "convert_to_lance_video",
    "tag",
    "versions",
]
