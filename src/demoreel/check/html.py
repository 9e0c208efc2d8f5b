"""A report as one page that needs nothing else: no script, no request, light and dark."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape as html_escape
from pathlib import Path
from typing import Any

from demoreel.check.codes import SEVERITIES, Severity
from demoreel.check.report import Finding, Group, Report, extent_of
from demoreel.check.thresholds import THRESHOLDS
from demoreel.errors import ArgumentError, printable
from demoreel.storage.commit.files import write_file

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

_WIDTH = 720
_LEFT = 150  # for labels
_ROW = 18
_MOST_COLUMNS = 300
_MOST_DIMENSIONS = 64


def write_page(report: Report, path: str | os.PathLike[str]) -> None:
    """Write a report as a page, in one step."""
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
    extent = extent_of(group)
    times = f" ({escape(extent)})" if extent else ""
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
    commands = dict.fromkeys(finding.command for finding in shown if finding.command)
    if commands:
        yield f"<pre>{chr(10).join(map(escape, commands))}</pre>"
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


def escape(text: str) -> str:
    """Return a text as HTML; marks that turn the direction of writing are shown, not obeyed."""
    return html_escape(printable(text))


def lengths_plot(facts: Mapping[str, Any]) -> str:
    """Draw how many episodes are how long: a histogram."""
    counts, edges = facts["counts"], facts["edges"]
    height, bottom = 140, 24
    tallest = max(counts) or 1
    wide = (_WIDTH - 20) / len(counts)
    bars = []
    for number, count in enumerate(counts):
        tall = (height - bottom - 14) * count / tallest
        said = f"{count} episodes of {edges[number]:.0f} to {edges[number + 1]:.0f} frames"
        bars.append(
            _bar(10 + number * wide, height - bottom - tall, max(wide - 1, 0.5), tall, "bar", said)
        )
    labels = [
        _text(10, height - 8, f"{facts['shortest']} frames"),
        _text(_WIDTH / 2, height - 8, f"median {facts['median']:g}", "middle"),
        _text(_WIDTH - 10, height - 8, f"{facts['longest']}", "end"),
        _text(10, 11, f"{facts['episodes']} episodes, up to {tallest} in a bar"),
    ]
    return _svg(height, [*bars, *labels], "Episode lengths")


def ranges_plot(facts: Mapping[str, Any]) -> str:
    """Draw each dimension's range: all values, the middle 98 %, the middle half, the median.

    Every dimension has a scale of its own, from its smallest to its largest value; what lies far
    outside the middle 98 % is drawn as an outlier.
    """
    drawn = []
    shown = facts["dimensions"][:_MOST_DIMENSIONS]
    for row, dimension in enumerate(shown):
        drawn += _range_row(dimension, 8 + row * _ROW)
    return _svg(12 + _ROW * len(shown), drawn, f"Ranges of {facts['feature']}")


def _range_row(dimension: Mapping[str, Any], top: float) -> list[str]:
    name = str(dimension["name"])
    label = _text(_LEFT - 8, top + 11, name if len(name) <= 22 else f"{name[:21]}…", "end")
    low, high, marks = dimension["low"], dimension["high"], dimension.get("quantiles")
    if low is None or high is None or not marks or None in marks:
        return [label, _text(_LEFT, top + 11, "not a number somewhere")]
    span = (high - low) or 1.0
    wide = _WIDTH - _LEFT - 90

    def across(value: float) -> float:
        return float(_LEFT + wide * (value - low) / span)

    one, quarter, half, three, most = marks
    said = f"{name}: {low:.4g} to {high:.4g}, median {half:.4g}, 98 % in {one:.4g} to {most:.4g}"
    parts = [
        label,
        _bar(_LEFT, top + 7, wide, 1, "axis", said),
        _bar(across(one), top + 4, max(across(most) - across(one), 1), 7, "most", said),
        _bar(across(quarter), top + 2, max(across(three) - across(quarter), 1), 11, "bar", said),
        _bar(across(half) - 1, top + 1, 2, 13, "mark", said),
        _text(_LEFT + wide + 6, top + 11, f"{low:.3g} … {high:.3g}"),
    ]
    room = max(most - one, 1e-12)
    for value, far in ((low, one - low), (high, high - most)):
        if far > room:
            parts.append(_dot(across(value), top + 7.5, f"{name}: an outlier at {value:.4g}"))
    return parts


def episodes_plot(findings: Iterable[Finding], first: int, last: int) -> str:
    """Draw which episodes have findings: a strip a severity, the worst on top."""
    found: dict[Severity, Counter[int]] = {severity: Counter() for severity in SEVERITIES}
    columns = min(_MOST_COLUMNS, last - first + 1)
    for finding in findings:
        episode = finding.where.episode
        if episode is not None and first <= episode <= last:
            column = (episode - first) * columns // (last - first + 1)
            found[finding.severity][column] += finding.count
    wide = (_WIDTH - 90) / columns
    drawn = []
    for row, severity in enumerate(reversed(SEVERITIES)):
        top = 6 + row * 22
        drawn.append(_text(70, top + 13, f"{severity}s", "end"))
        drawn.append(_bar(80, top, _WIDTH - 90, 18, "empty", f"no {severity}"))
        for column, count in sorted(found[severity].items()):
            begin = first + -(-column * (last - first + 1) // columns)
            said = f"episode {begin} on: {count} {severity}s"
            drawn.append(_bar(80 + column * wide, top, max(wide, 1.5), 18, severity, said))
    drawn.append(_text(80, 84, f"episode {first}"))
    drawn.append(_text(_WIDTH - 10, 84, f"{last}", "end"))
    return _svg(90, drawn, "Findings by episode")


def _svg(height: float, parts: Sequence[str], label: str) -> str:
    return (
        f'<svg viewBox="0 0 {_WIDTH} {height:.0f}" role="img" aria-label="{escape(label)}">'
        + "".join(parts)
        + "</svg>"
    )


def _bar(x: float, y: float, wide: float, tall: float, kind: str, said: str) -> str:
    return (
        f'<rect class="{kind}" x="{x:.1f}" y="{y:.1f}" width="{wide:.1f}" height="{tall:.1f}">'
        f"<title>{escape(said)}</title></rect>"
    )


def _dot(x: float, y: float, said: str) -> str:
    return (
        f'<circle class="outlier" cx="{x:.1f}" cy="{y:.1f}" r="3.5">'
        f"<title>{escape(said)}</title></circle>"
    )


def _text(x: float, y: float, said: str, anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(said)}</text>'
