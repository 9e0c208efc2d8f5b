"""The wheel has the page in it."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "src" / "demoreel" / "view" / "page"


@pytest.mark.soak
def test_the_wheel_has_the_page(tmp_path):
    command = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", str(tmp_path), "."]
    subprocess.run(command, cwd=ROOT, check=True)
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as opened:
        for path in PAGE.iterdir():
            assert opened.read(f"demoreel/view/page/{path.name}") == path.read_bytes()


def test_the_page_asks_no_other_server():
    for path in PAGE.iterdir():
        if path.name not in ("uplot.js", "uplot.LICENSE", "icon.svg"):
            assert "//" not in path.read_text().replace("// ", "").replace('"://"', ""), path.name
