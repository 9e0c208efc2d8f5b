"""`demoreel sql`."""

from __future__ import annotations

import csv
import io
import json

import lance
import pytest

AVERAGE = "select episode_index, count(*) as n, avg(action[2]) as mean from frames group by 1"


def test_pipes_get_lines_of_tabs(run, dataset):
    done = run("sql", dataset, f"{AVERAGE} order by 1")
    assert (done.returncode, done.stderr) == (0, "")
    head, *rows = [line.split("\t") for line in done.stdout.splitlines()]
    assert head == ["episode_index", "n", "mean"]
    assert rows == [["0", "8", "-3.5"], ["1", "12", "-5.5"], ["2", "5", "-2.0"]]


def test_json_and_csv(run, dataset):
    query = "select task, [1, 2] as l, null as nothing, 0.1::double as x, 'nan'::float as nan "
    query += "from tasks order by task_index"
    facts = json.loads(run("sql", dataset, query, "--json").stdout)
    assert facts["columns"] == ["task", "l", "nothing", "x", "nan"]
    assert facts["rows"] == [
        ["pick it", [1, 2], None, 0.1, None],
        ["放下", [1, 2], None, 0.1, None],
    ]
    done = run("sql", dataset, query, "--csv")
    rows = list(csv.reader(io.StringIO(done.stdout)))
    assert rows[1] == ["pick it", "[1, 2]", "", "0.1", "nan"]
    assert run("sql", dataset, query, "--csv", "--json").returncode == 2


def test_an_empty_answer_has_its_columns(run, dataset):
    query = "select task_index, task from tasks where false"
    assert run("sql", dataset, query).stdout == "task_index\ttask\n"
    facts = json.loads(run("sql", dataset, query, "--json").stdout)
    assert facts == {"columns": ["task_index", "task"], "rows": []}


def test_a_terminal_gets_columns_that_fit(show, dataset):
    shown = show("sql", dataset, "select index, observation_state from frames", COLUMNS="60")
    assert "observation_state" in shown
    assert "…" in shown
    assert max(map(len, shown.splitlines())) < 100  # with colours


@pytest.mark.parametrize("query", ["selec 1", "copy frames to 'x.csv'", "select * from nowhere"])
def test_a_bad_query_is_the_callers_fault(run, dataset, query):
    done = run("sql", dataset, query, "--json")
    assert (done.returncode, done.stdout) == (2, "")
    error = json.loads(done.stderr)
    assert error["error"] == "ArgumentError"
    assert "\n" not in error["message"]


def test_versions(run, copy_of):
    root = copy_of("g1_lance_video")
    table = lance.dataset(root / "g1.lance")
    table.delete("episode_index = 3")
    count = "select count(*) as n from frames"
    assert run("sql", root, count).stdout == "n\n746\n"
    assert run("sql", root, count, "--version", table.version - 1).stdout == "n\n1013\n"
    assert run("sql", root, count, "--tag", "nope").returncode == 2
