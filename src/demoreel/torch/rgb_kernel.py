"""The kernel that writes NV12 frames as RGB planes on a GPU; Triton comes with torch for CUDA."""

from __future__ import annotations

import torch
import triton  # type: ignore[import-not-found, unused-ignore]
import triton.language as tl  # type: ignore[import-not-found, unused-ignore]

_BLOCK = 1024


# Triton reads annotations as its own types, so the parameters have none.
@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _nv12_to_rgb(  # type: ignore[no-untyped-def]
    surfaces,
    slots,
    places,
    images,
    height,
    width,
    pitch,
    surface_bytes,
    scale,
    black,
    v_red,
    u_blue,
    u_green,
    v_green,
    FLOAT: tl.constexpr,  # noqa: N803
    BLOCK: tl.constexpr,  # noqa: N803
):
    number = tl.program_id(0)
    pixels = height * width
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = at < pixels
    row = at // width
    column = at % width
    frame = surfaces + tl.load(slots + number) * surface_bytes
    luma = tl.load(frame + row * pitch + column, mask=inside, other=0).to(tl.float32)
    chroma = frame + (height + row // 2) * pitch + (column // 2) * 2
    u = tl.load(chroma, mask=inside, other=0).to(tl.float32) - 128.0
    v = tl.load(chroma + 1, mask=inside, other=0).to(tl.float32) - 128.0
    luma = (luma - black) * scale
    image = images + tl.load(places + number) * (3 * pixels) + at
    for channel in tl.static_range(3):
        if channel == 0:
            value = luma + v_red * v
        elif channel == 1:
            value = luma - u_green * u - v_green * v
        else:
            value = luma + u_blue * u
        value = tl.floor(tl.minimum(tl.maximum(value, 0.0), 255.0) + 0.5)
        if FLOAT:
            tl.store(image + channel * pixels, value / 255.0, mask=inside)
        else:
            tl.store(image + channel * pixels, value.to(tl.uint8), mask=inside)


def launch(
    surfaces: torch.Tensor,
    slots: torch.Tensor,
    places: torch.Tensor,
    images: torch.Tensor,
    height: int,
    width: int,
    scale: float,
    black: float,
    factors: tuple[float, float, float, float],
) -> None:
    """Write the frames in these slots to these places of the images; see ``write_rgb``."""
    if not len(slots):
        return
    _, rows, pitch = surfaces.shape
    grid = (len(slots), triton.cdiv(height * width, _BLOCK))
    _nv12_to_rgb[grid](
        surfaces,
        slots,
        places,
        images,
        height,
        width,
        pitch,
        rows * pitch,
        scale,
        black,
        *factors,
        FLOAT=images.is_floating_point(),
        BLOCK=_BLOCK,
    )
