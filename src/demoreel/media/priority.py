"""Keeping encoders at the priority of whoever opens them.

SVT-AV1 makes the threads that it starts, and the one that starts it, the most urgent of the machine
(``SCHED_FIFO``, 99) wherever it may: for root, so in most containers, and for users with a
real-time limit. A control loop then waits for the encoder, whatever its own priority.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator


@contextlib.contextmanager
def same_priority() -> Iterator[None]:
    """Give threads that start inside the block the scheduling this thread had; and it, too.

    Costs 0.1 ms. Does nothing where there is no ``/proc``.
    """
    before = threads_of_this_process()
    if not before:
        yield
        return
    policy, parameters = os.sched_getscheduler(0), os.sched_getparam(0)
    try:
        yield
    finally:
        for thread in (threads_of_this_process() - before) | {threading.get_native_id()}:
            # One that has ended in the meantime needs nothing.
            with contextlib.suppress(OSError):
                if os.sched_getscheduler(thread) != policy:
                    os.sched_setscheduler(thread, policy, parameters)


def threads_of_this_process() -> set[int]:
    """Return the threads of this process; none where there is no ``/proc``."""
    try:
        return {int(name) for name in os.listdir("/proc/self/task")}
    except OSError:
        return set()


_LINUX_CAPABILITY_VERSION_3 = 0x20080522
_CAP_SYS_NICE = 23


def renounce_urgency() -> None:
    """Give up this thread's right, and that of threads it starts, to become more urgent.

    For a process that only encodes: what is not allowed need not be undone, not even for an
    instant. Does nothing where the system has no such rights.
    """
    import ctypes
    import resource

    # There are two ways to be allowed: a limit above 0, and a capability.
    with contextlib.suppress(OSError, ValueError, AttributeError):
        resource.setrlimit(resource.RLIMIT_RTPRIO, (0, 0))

    class Header(ctypes.Structure):
        _fields_ = (("version", ctypes.c_uint32), ("pid", ctypes.c_int))

    class Rights(ctypes.Structure):
        _fields_ = (
            ("effective", ctypes.c_uint32),
            ("permitted", ctypes.c_uint32),
            ("inheritable", ctypes.c_uint32),
        )

    libc = ctypes.CDLL(None)
    if not (hasattr(libc, "capget") and hasattr(libc, "capset")):
        return
    header, rights = Header(_LINUX_CAPABILITY_VERSION_3, 0), (Rights * 2)()
    if libc.capget(ctypes.byref(header), ctypes.byref(rights)) == 0:
        rights[0].effective &= ~(1 << _CAP_SYS_NICE)
        rights[0].permitted &= ~(1 << _CAP_SYS_NICE)
        libc.capset(ctypes.byref(header), ctypes.byref(rights))
