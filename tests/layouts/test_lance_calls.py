"""Lance, imported when it is first needed."""

from __future__ import annotations

import subprocess
import sys

AT_ONCE = """
import threading
from demoreel.layouts.lance.calls import import_lance

start, whole = threading.Barrier(4), []

def use():
    start.wait()
    whole.append(hasattr(import_lance(), "blob_array"))

threads = [threading.Thread(target=use) for _ in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
assert whole == [True] * 4, whole
"""


def test_threads_that_import_lance_at_once_all_get_the_whole_of_it():
    subprocess.run([sys.executable, "-c", AT_ONCE], check=True)
