"""How busy a GPU's video decoders are, as the driver's management library (NVML) says."""

from __future__ import annotations

import ctypes
import threading
from types import TracebackType
from typing import Any

import torch

_LIBRARY = "libnvidia-ml.so.1"
_EVERY_S = 0.1


class DecoderLoad:
    """The share of time that the decoders of a GPU were busy, within a ``with``.

    Args:
        device: The GPU.

    Attributes:
        missing: Why it is unknown; None if it is known.
    """

    def __init__(self, device: torch.device) -> None:
        self.missing: str | None = None
        self._found: list[int] = []
        self._done = threading.Event()
        self._thread: threading.Thread | None = None
        try:
            self._library, self._handle = _opened(device)
        except (OSError, RuntimeError, AttributeError) as error:
            self.missing = str(error)

    @property
    def share(self) -> float | None:
        """The mean of all engines and looks, 0 to 1; None where it is unknown."""
        return sum(self._found) / len(self._found) / 100 if self._found else None

    def __enter__(self) -> DecoderLoad:
        if self.missing is None:
            self._done.clear()
            self._thread = threading.Thread(target=self._look, daemon=True)
            self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._done.set()
        if self._thread is not None:
            self._thread.join()

    def _look(self) -> None:
        percent, period = ctypes.c_uint(), ctypes.c_uint()
        while not self._done.wait(_EVERY_S):
            status = self._library.nvmlDeviceGetDecoderUtilization(
                self._handle, ctypes.byref(percent), ctypes.byref(period)
            )
            if status:
                self.missing = f"NVML does not say how busy the decoders are (error {status})"
                return
            self._found.append(percent.value)


def _opened(device: torch.device) -> tuple[Any, Any]:
    """Return the library, and its handle of a GPU, which it knows by its UUID."""
    if device.type != "cuda":
        raise RuntimeError(f"{device} is no GPU")
    library = ctypes.CDLL(_LIBRARY)
    uuid = str(torch.cuda.get_device_properties(device).uuid)
    name = uuid if uuid.startswith(("GPU-", "MIG-")) else f"GPU-{uuid}"
    handle = ctypes.c_void_p()
    for call, arguments in (
        (library.nvmlInit_v2, ()),
        (library.nvmlDeviceGetHandleByUUID, (name.encode(), ctypes.byref(handle))),
    ):
        status = call(*arguments)
        if status:
            raise RuntimeError(f"NVML does not know the GPU {name} (error {status})")
    return library, handle
