"""From layout to layout: a cut of all episodes, rendered to a layout, verified, committed once.

``demoreel.convert(source, target, to="lance-video")`` does it all.
"""

from __future__ import annotations

from demoreel.convert.run import convert
from demoreel.packages import stand_for

stand_for(__name__, convert)
