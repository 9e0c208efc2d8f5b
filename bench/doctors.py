"""Who finds what: demoreel, lerobot-doctor and lerobot-lancedb's doctor on the same defects.

    .venv/bin/python bench/doctors.py [--only FAMILY] [--output FOLDER]

Every defect of ``support.defects`` damages a clean copy of a small dataset, and each tool
looks at both. A tool has found a defect if it says something of the damaged copy that it does not
say of the clean one; if it ends with a traceback there, it has stumbled. Both other tools read
LeRobot's v2 and v3 only, and one dataset at a time: defects of Lance tables, and leaks between
datasets, are left out.

lerobot-doctor is installed from PyPI into a folder of its own beside lerobot's environment (see
``conformance/environment.py``); lerobot-lancedb's runs in the one of
``conformance/lancedb_environment.py``.
Writes ``doctors.json`` and a table in Markdown, ``doctors.md``.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import venv
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "conformance"))

import environment as lerobot  # noqa: E402
import lancedb_environment  # noqa: E402

import demoreel  # noqa: E402
from demoreel.check.catalogue import CATALOGUE, CODES  # noqa: E402
from support.defects import DEFECTS, make_base  # noqa: E402

PIN = "lerobot-doctor==0.2.0"
LANCE_DOCTOR = """
import contextlib, io, json, sys, traceback
from lerobot_lancedb.doctor import main
for line in sys.stdin:
    sys.argv = ["doctor", "--root", line.strip()]
    out, failed = io.StringIO(), False
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(io.StringIO()):
        try:
            main()
        except (Exception, SystemExit):
            failed = True
    print(json.dumps([failed, out.getvalue()]), flush=True)
"""
ENVIRONMENT = {**os.environ, "HF_HUB_OFFLINE": "1", "NO_COLOR": "1"}

Said = set[str] | None
"""What a tool complains about; None if it ended with a traceback."""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", help="defects of one family")
    parser.add_argument("--output", type=Path, default=HERE / "results")
    options = parser.parse_args()
    tools = {
        "demoreel": by_demoreel,
        "lerobot-doctor": by_lerobot_doctor(doctor_environment()),
        "lerobot-lance-doctor": by_lance_doctor(lancedb_environment.make_environment()),
    }
    chosen = {
        name: defect
        for name, defect in DEFECTS.items()
        if not defect.on.startswith("lance")
        and not defect.leaks
        and (options.only is None or CODES[defect.codes[0]] in CATALOGUE[options.only])
    }
    with tempfile.TemporaryDirectory(prefix="demoreel-doctors-") as name:
        folder = Path(name)
        bases = {
            on: make_base(on, folder / f"clean-{on}") for on in {d.on for d in chosen.values()}
        }
        clean = {
            (tool, base): look(root) for tool, look in tools.items() for base, root in bases.items()
        }
        alarms = {f"{tool}, {base}": sorted(said or ()) for (tool, base), said in clean.items()}

        def tried(name: str) -> dict[str, str]:
            defect = chosen[name]
            copy = folder / name
            shutil.copytree(bases[defect.on], copy)
            defect.damage(copy)
            found = {
                tool: verdict(look(copy), clean[tool, defect.on]) for tool, look in tools.items()
            }
            shutil.rmtree(copy)
            return found

        with ThreadPoolExecutor(2) as pool:
            results = dict(zip(chosen, pool.map(tried, chosen), strict=True))
    options.output.mkdir(exist_ok=True)
    report = {"defects": results, "said_of_clean_datasets": alarms}
    (options.output / "doctors.json").write_text(json.dumps(report, indent=2))
    table = as_table(results, list(tools))
    (options.output / "doctors.md").write_text(table)
    print(table)
    print(json.dumps({"said of clean datasets": alarms}, indent=2))


def verdict(said: Said, of_clean: Said) -> str:
    if said is None:
        return "stumbles"
    return "finds" if said - (of_clean or set()) else "-"


def by_demoreel(root: Path) -> Said:
    report = demoreel.check(root, deep=True)
    return {f"{finding.code} {finding.what}" for finding in report.findings}


def by_lerobot_doctor(python: Path) -> Callable[[Path], Said]:
    def look(root: Path) -> Said:
        done = _run([str(python.with_name("lerobot-doctor")), "check", "--json", str(root)])
        try:
            checks = json.loads(done.stdout)["checks"]
        except (ValueError, KeyError):
            return None if "Traceback" in done.stderr else {_without_paths(done.stdout, root)}
        return {
            _without_paths(message["message"], root)
            for check in checks
            for message in check["messages"]
            if message["severity"] != "PASS"
        }

    return look


def by_lance_doctor(python: Path) -> Callable[[Path], Said]:
    # One process for all: loading lerobot takes longer than looking.
    doctor = subprocess.Popen(
        [str(python), "-c", LANCE_DOCTOR],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=ENVIRONMENT,
    )
    turn = threading.Lock()

    def look(root: Path) -> Said:
        assert doctor.stdin is not None
        assert doctor.stdout is not None
        with turn:
            print(root, file=doctor.stdin, flush=True)
            failed, said = json.loads(doctor.stdout.readline())
        lines = {_without_paths(line, root) for line in said.splitlines()}
        return None if failed else {line for line in lines if " ok " not in line}

    return look


def _run(command: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, check=False, env=ENVIRONMENT)


def _without_paths(text: str, root: Path) -> str:
    """Return what a tool says of any dataset in any folder: clean and damaged are in two."""
    return text.replace(str(root), "").replace(root.name, "")


def doctor_environment() -> Path:
    """Return the interpreter that lerobot-doctor is installed for; makes it once."""
    folder = lerobot.environment_folder().with_name(f"doctor-{PIN.partition('==')[2]}")
    python = folder / "bin" / "python"
    if not (folder / "bin" / "lerobot-doctor").exists():
        venv.create(folder, clear=True, with_pip=True)
        subprocess.run([python, "-m", "pip", "install", "-q", PIN], check=True)
    return python


def as_table(results: dict[str, dict[str, str]], tools: list[str]) -> str:
    lines = [f"| defect | {' | '.join(tools)} |", "|---" * (len(tools) + 1) + "|"]
    for name, found in results.items():
        cells = " | ".join(found[tool] for tool in tools)
        lines.append(f"| {name.replace('_', ' ')} | {cells} |")
    counts = " | ".join(
        f"**{sum(found[tool] == 'finds' for found in results.values())} of {len(results)}**"
        for tool in tools
    )
    return "\n".join([*lines, f"| **found** | {counts} |", ""])


if __name__ == "__main__":
    main()
