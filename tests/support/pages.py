"""What a page of the viewer shows, read from its pixels."""

from __future__ import annotations

import base64
import io
from typing import Any

import numpy as np
from PIL import Image

from demoreel.testing import read_stamp

CAMERA = "observation.images.cam0"


def shown(page: Any, camera: str = CAMERA) -> tuple[int, int, int]:
    """Return the frame that a canvas says it shows, and the episode and frame in its pixels."""
    claimed, data = page.evaluate(
        """(camera) => {
            const canvas = document.querySelector(`canvas[data-camera="${camera}"]`);
            return [Number(canvas.dataset.frame), canvas.toDataURL("image/png")];
        }""",
        camera,
    )
    image = Image.open(io.BytesIO(base64.b64decode(data.partition(",")[2]))).convert("RGB")
    mark = read_stamp(np.asarray(image))
    return claimed, mark.episode, mark.frame


def seek(page: Any, frame: int) -> None:
    """Go to a frame, and wait until it is shown."""
    page.evaluate("(frame) => document.getElementById('main').demoreel.seek(frame)", frame)
