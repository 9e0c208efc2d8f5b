"""Lance, imported when it is first needed."""

from __future__ import annotations

import signal
import subprocess
import sys

import pyarrow as pa
import pytest

from demoreel.layouts.lance.calls import import_lance, lance_failures

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


ENDING = """
import sys, threading, time
from demoreel.layouts.lance.calls import ask
from demoreel.storage.threads import transfer

class Slow:
    def __del__(self, sleep=time.sleep):
        sleep(0.5)

def read():
    while True:
        ask("open_table", sys.argv[1], None)
        reading.set()

reading = threading.Event()
for _ in range(8):
    transfer(read)
assert reading.wait(60)
sys.modules["slow"] = Slow()  # the interpreter takes its time to end
{end}
"""


@pytest.mark.parametrize(
    ("end", "code"),
    [("sys.exit(3)", {3}), ("raise KeyboardInterrupt", {1, -signal.SIGINT})],
)
def test_an_interpreter_that_ends_while_a_thread_reads_lance_does_not_abort(tmp_path, end, code):
    import_lance().write_dataset(pa.table({"x": [1, 2]}), tmp_path / "t.lance")
    program = ENDING.replace("{end}", end)
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "t.lance")],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode in code, done.stderr
    assert "Fatal" not in done.stderr


def test_ctrl_c_that_a_scan_passes_on_as_text_is_ctrl_c():
    with pytest.raises(KeyboardInterrupt), lance_failures():
        raise pa.ArrowInvalid("External error: KeyboardInterrupt: \n")
