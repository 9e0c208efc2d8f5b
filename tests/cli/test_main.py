"""What holds for every verb: streams, exit codes, errors, colours, interrupts."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version

import pytest

VERBS = ("info", "episodes", "frame", "bench")
ESCAPE = "\x1b"


def test_help_lists_the_verbs(run):
    done = run("--help")
    assert done.returncode == 0
    assert done.stderr == ""
    for verb in VERBS:
        assert f"  {verb} " in done.stdout


def test_without_arguments_there_is_help(run):
    done = run()
    assert done.returncode == 0
    assert done.stdout == run("--help").stdout


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_has_help_and_the_common_options(run, verb):
    done = run(verb, "--help")
    assert done.returncode == 0
    for option in ("--json", "--quiet", "--debug"):
        assert option in done.stdout


def test_help_loads_nothing_heavy():
    heavy = "numpy pyarrow av torch lance PIL pandas rich"
    code = (
        "import sys; from demoreel.cli import main; main(['--help']); main(['frame', '--help'])\n"
        f"sys.exit(' '.join(name for name in {heavy.split()} if name in sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stderr.strip() == ""


def test_version(run):
    try:
        installed = version("demoreel")
    except PackageNotFoundError:
        pytest.skip("demoreel is not installed, only on the path")
    assert run("--version").stdout == f"demoreel {installed}\n"


def test_unknown_verb_is_a_usage_error(run):
    done = run("nfo", "somewhere")
    assert done.returncode == 2
    assert done.stdout == ""
    assert "info" in done.stderr
    assert "Traceback" not in done.stderr


def test_unknown_option_is_a_usage_error(run, dataset):
    done = run("info", dataset, "--jsno")
    assert done.returncode == 2
    assert "--jsno" in done.stderr
    assert "demoreel info --help" in done.stderr


def test_no_dataset_is_a_data_error(run_process, tmp_path):
    done = run_process("info", tmp_path)
    assert done.returncode == 1
    assert done.stdout == ""
    assert "meta/info.json" in done.stderr
    assert str(tmp_path) in done.stderr
    assert "Traceback" not in done.stderr


def test_errors_are_json_too(run, tmp_path):
    done = run("info", tmp_path / "nowhere", "--json")
    assert done.returncode == 1
    assert done.stdout == ""
    report = json.loads(done.stderr)
    assert report["error"] == "DatasetNotFoundError"
    assert report["where"]["path"] == str(tmp_path / "nowhere")
    usage = run("info", "--json")
    assert usage.returncode == 2
    assert json.loads(usage.stderr)["error"] == "UsageError"


def test_debug_shows_where_an_error_was_raised(run, tmp_path):
    for done in (run("info", tmp_path, "--debug"), run("info", tmp_path, DEMOREEL_DEBUG="1")):
        assert done.returncode == 1
        assert "Traceback" in done.stderr
        assert "error: " in done.stderr
    assert "Traceback" not in run("info", tmp_path, DEMOREEL_DEBUG="0").stderr


def test_warnings_go_to_stderr_unless_quiet(run, one_camera, tmp_path):
    shutil.copytree(one_camera, tmp_path / "bare")
    (tmp_path / "bare" / "meta" / "episodes_stats.jsonl").unlink()
    done = run("info", tmp_path / "bare", "--json")
    assert json.loads(done.stdout)["has_stats"] is False
    assert "no statistics" in done.stderr
    assert run("info", tmp_path / "bare", "--quiet").stderr == ""


@pytest.mark.parametrize("verb", ["info", "episodes"])
def test_pipes_get_no_escapes(run, dataset, verb):
    done = run(verb, dataset, FORCE_COLOR="1", GITHUB_ACTIONS="true", TERM="xterm-256color")
    assert done.returncode == 0
    assert ESCAPE not in done.stdout + done.stderr
    assert all(line == line.rstrip(" ") for line in done.stdout.splitlines())


def test_terminals_get_them_unless_told_otherwise(run_in_terminal, show, dataset):
    assert ESCAPE in run_in_terminal("info", dataset)
    assert ESCAPE in show("info", dataset)
    assert ESCAPE not in show("info", dataset, NO_COLOR="1")
    assert ESCAPE not in show("info", dataset, TERM="dumb")
    assert ESCAPE not in show("info", dataset / "nowhere", NO_COLOR="1")


def test_nothing_is_wider_than_the_terminal(show, dataset):
    for verb in ("info", "episodes"):
        shown = show(verb, dataset, NO_COLOR="1")
        tables = [line for line in shown.splitlines() if not line.startswith("  ")]
        assert max(map(len, tables)) <= 80


def test_control_characters_are_shown_as_escapes(run, show, one_camera, tmp_path):
    root = tmp_path / "hostile"
    shutil.copytree(one_camera, root)
    for name in ("tasks.jsonl", "episodes.jsonl"):
        path = root / "meta" / name
        path.write_text(path.read_text().replace("do it", r"do\u001b[2J\n\tit"))
    for verb in ("info", "episodes"):
        assert r"do\x1b[2J\n\tit" in run(verb, root).stdout
        assert ESCAPE not in show(verb, root, NO_COLOR="1")
        assert r"do\x1b[2J" in show(verb, root)


def test_an_encoding_without_the_characters_is_no_error(run_process, dataset):
    done = run_process("info", dataset, PYTHONIOENCODING="ascii")
    assert done.returncode == 0
    assert r"\u653e\u4e0b" in done.stdout


def test_a_closed_pipe_ends_quietly(dataset, tmp_path):
    command = f"{sys.executable} -m demoreel episodes {dataset} --json 2>{tmp_path / 'err'} | true"
    done = subprocess.run(["bash", "-o", "pipefail", "-c", command], check=False)
    assert done.returncode == 0
    assert (tmp_path / "err").read_text() == ""


def test_ctrl_c_ends_with_130_and_no_traceback(dataset):
    process = subprocess.Popen(
        [sys.executable, "-m", "demoreel", "bench", str(dataset), "--seconds", "60", "--debug"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # A test run in the background has SIGINT ignored, and children inherit that.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    assert process.stderr is not None
    while "measuring" not in (line := process.stderr.readline()):
        assert line, "ended by itself"
    os.kill(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert out == ""
    assert "Traceback" not in err


def test_ctrl_c_inside_an_exec_ends_with_130(tmp_path):
    # Importing a module with dataclasses executes strings; there Python keeps a mark of its own.
    (tmp_path / "interrupted.py").write_text(
        "import sys\n"
        "import demoreel.cli.app\n"
        "from demoreel.cli import main\n"
        "demoreel.cli.app.run = lambda arguments: exec('raise KeyboardInterrupt')\n"
        "sys.exit(main([]))\n"
    )
    done = subprocess.run([sys.executable, "-m", "interrupted"], cwd=tmp_path, check=False)
    assert done.returncode == 130


THREAD = "threading.Thread(target=lambda: (time.sleep(1), interrupt(), time.sleep(60))).start()\n"
CALL = (
    "inside = threading.Event()\n"
    "calls = {'wait': lambda: inside.set() or time.sleep(60)}\n"
    "process = SafeProcess('this', calls, program='', failure=Exception, aborts=True)\n"
    "transfer(lambda: process.ask('wait'))\n"
    "inside.wait()\n"
)


@pytest.mark.parametrize(
    ("command", "at_last", "code", "out"),
    [
        pytest.param("", "interrupt()", 0, "", id="Ctrl-C when all is done"),
        pytest.param(THREAD, "print('finalized')", 130, "", id="Ctrl-C while it waits for threads"),
        pytest.param(CALL, "print('finalized')", 7, "", id="a thread is inside a native library"),
        pytest.param("", "print('finalized')", 0, "finalized\n", id="nothing of that"),
    ],
)
def test_the_end_of_a_command(tmp_path, command, at_last, code, out):
    (tmp_path / "ending.py").write_text(
        "import os, signal, sys, threading, time\n"
        "import demoreel.cli.app\n"
        "from demoreel.cli import main\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "def interrupt(kill=os.kill, own=os.getpid(), number=signal.SIGINT):\n"
        "    kill(own, number)\n"
        "class Last:\n"
        "    def __del__(self, interrupt=interrupt, print=print):\n"
        f"        {at_last}\n"
        "def run(arguments):\n"
        "    from demoreel.storage.helper_process import SafeProcess\n"
        "    from demoreel.storage.threads import transfer\n"
        "    sys.modules['last'] = Last()\n"
        + "".join(f"    {line}\n" for line in command.splitlines())
        + f"    return {code if code != 130 else 0}\n"
        "demoreel.cli.app.run = run\n"
        "sys.exit(main())\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "ending"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (code, out, "")
