"""A report as one page that needs nothing else: no script, no request, light and dark."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from html import escape
from pathlib import Path
from typing import Any

from demoreel.check.findings import Finding
from demoreel.check.html_plots import episodes_plot, lengths_plot, ranges_plot
from demoreel.check.report import Group, Report
from demoreel.check.thresholds import THRESHOLDS
from demoreel.errors import ArgumentError
from demoreel.storage.atomic import write_file

_PLACES_SHOWN = 50
_SHOWN_FACTS = ("layout", "episodes", "frames", "rows", "tables", "videos", "decoded", "seconds")

_STYLE = """
:root { color-scheme: light dark; --ink: #1c1e21; --soft: #646a73; --paper: #fff; --box: #f4f5f7;
  --line: #dcdfe4; --error: #c62f2f; --warning: #b26a00; --hint: #3566b8; --bar: #5b8bd6;
  --most: #c3d5f0; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e8eb; --soft: #9aa1ab; --paper: #16181b;
  --box: #202328; --line: #363b42; --error: #ff7b72; --warning: #e3a341; --hint: #7fb0ff;
  --bar: #5b8bd6; --most: #2c4468; } }
body { margin: 0 auto; max-width: 60rem; padding: 1.5rem; background: var(--paper);
  color: var(--ink); font: 15px/1.5 system-ui, sans-serif; overflow-wrap: anywhere; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.15rem; margin-top: 2rem; } h3 { font-size: 1rem; }
code, pre { font: 13px/1.4 ui-monospace, monospace; background: var(--box); border-radius: 4px; }
code { padding: 0 .25em; } pre { padding: .5em .75em; white-space: pre-wrap; }
section.group { border-left: 4px solid var(--line); padding-left: 1rem; margin: 1.5rem 0; }
section.error { border-color: var(--error); } section.warning { border-color: var(--warning); }
section.hint { border-color: var(--hint); }
.tag { font-weight: 600; } .tag.error { color: var(--error); }
.tag.warning { color: var(--warning); } .tag.hint { color: var(--hint); }
.where, .effect, footer { color: var(--soft); } a { color: var(--hint); }
table { border-collapse: collapse; } td, th { padding: .15rem .9rem .15rem 0; text-align: left;
  vertical-align: top; border-bottom: 1px solid var(--line); }
svg { width: 100%; height: auto; background: var(--box); border-radius: 6px; margin: .3rem 0; }
svg text { font: 11px system-ui, sans-serif; fill: var(--soft); }
.bar { fill: var(--bar); } .most { fill: var(--most); } .axis { fill: var(--line); }
.mark { fill: var(--ink); } .empty { fill: var(--line); opacity: .5; }
rect.error, .outlier { fill: var(--error); } rect.warning { fill: var(--warning); }
rect.hint { fill: var(--hint); }
"""


def write_page(report: Report, path: str | os.PathLike[str]) -> None:
    """Write a report as a page, as one step: whoever looks sees the old page or the new one.

    Raises:
        ArgumentError: There is a folder at the path, or none to write into.
        OSError: The disk is full or not writable.
    """
    target = Path(path)
    if target.is_dir() or not target.parent.is_dir():
        raise ArgumentError(
            "The page cannot be written there.",
            hint="give a file in a folder that exists, e.g. report.html",
            path=target,
        )
    write_file(target, page(report).encode("utf-8", "replace"))


def page(report: Report) -> str:
    """Return a report as HTML. Whatever a dataset holds is text there, and nothing else."""
    names = ", ".join(Path(name).name or name for name in report.datasets)
    parts = [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        # Should anything ever slip through, no browser runs or fetches it.
        '<meta http-equiv="Content-Security-Policy" '
        "content=\"default-src 'none'; style-src 'unsafe-inline'\">",
        f"<title>demoreel check: {escape(names)}</title><style>{_STYLE}</style></head><body>",
        f"<h1>{escape(names)}</h1>",
        f"<p>{escape(report.summary())}.</p>",
        *_contents(report),
        *_datasets(report),
        *_findings(report),
        *_thresholds(report),
        "<footer><p>Written by demoreel check.</p></footer></body></html>",
    ]
    return "\n".join(parts) + "\n"


def _contents(report: Report) -> Iterator[str]:
    """The codes that were found, the worst first, each with a link to its section."""
    if not report.counts:
        return
    yield "<table><tr><th>severity</th><th>code</th><th>places</th><th>what</th></tr>"
    for group in report.groups():
        name, severity = escape(group.code.name), escape(group.code.severity)
        yield (
            f'<tr><td class="tag {severity}">{severity}</td><td><a href="#{name}">{name}</a></td>'
            f"<td>{group.count:,}</td><td>{escape(group.code.title)}</td></tr>"
        )
    yield "</table>"


def _datasets(report: Report) -> Iterator[str]:
    for name in report.datasets:
        facts = report.looked_at.get(name, {})
        yield f"<h2>{escape(name)}</h2>"
        said = [f"{key} {escape(_number(facts[key]))}" for key in _SHOWN_FACTS if facts.get(key)]
        yield f"<p>{', '.join(said)}</p>"
        yield from _plots(report, name, facts)


def _plots(report: Report, name: str, facts: Mapping[str, Any]) -> Iterator[str]:
    lengths = facts.get("lengths")
    if lengths:
        yield "<h3>Episode lengths</h3>" + lengths_plot(lengths)
        own = [finding for finding in report.findings if finding.where.dataset == name]
        if any(finding.where.episode is not None for finding in own):
            first, last = lengths["first_episode"], lengths["last_episode"]
            yield "<h3>Findings by episode</h3>" + episodes_plot(own, first, last)
    for ranges in facts.get("ranges") or ():
        yield f"<h3>Ranges of {escape(str(ranges['feature']))}</h3>" + ranges_plot(ranges)


def _findings(report: Report) -> Iterator[str]:
    yield "<h2>Findings</h2>"
    if not report.counts:
        yield "<p>Nothing was found.</p>"
    for group in report.groups():
        yield from _group(group, several=len(report.datasets) > 1)


def _group(group: Group, *, several: bool) -> Iterator[str]:
    code = group.code
    times = f", {group.count:,} places" if group.count > 1 else ""
    yield f'<section class="group {escape(code.severity)}" id="{escape(code.name)}">'
    yield (
        f'<h3><span class="tag {escape(code.severity)}">{escape(code.severity)}</span> '
        f"<code>{escape(code.name)}</code> {escape(code.title)}{times}</h3>"
    )
    yield f'<p class="effect">{escape(code.effect)}</p><ul>'
    shown = group.findings[:_PLACES_SHOWN]
    for finding in shown:
        yield f"<li>{escape(finding.what)}{_where(finding, several=several)}</li>"
    yield "</ul>"
    left = group.count - sum(finding.count for finding in shown)
    if left > 0:
        yield f"<p>and {left:,} more</p>"
    mends = dict.fromkeys(finding.mend for finding in shown if finding.mend)
    if mends:
        yield f"<pre>{escape(chr(10).join(mends))}</pre>"
    yield "</section>"


def _where(finding: Finding, *, several: bool) -> str:
    place = str(finding.where)
    said = f"{finding.where.dataset}: {place}" if several else place
    return f' <span class="where">{escape(said)}</span>' if said else ""


def _thresholds(report: Report) -> Iterator[str]:
    if not report.thresholds:
        return
    yield "<details><summary>The numbers that were decided by</summary><table>"
    for name, value in report.thresholds.items():
        meaning = THRESHOLDS[name].meaning if name in THRESHOLDS else ""
        cells = (f"<code>{escape(name)}</code>", f"{value:g}", escape(meaning))
        yield "<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>"
    yield "</table></details>"


def _number(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int | float) else str(value)
