"""Which revision is read: a rule over names, tried without any server."""

from __future__ import annotations

import pytest

from demoreel.storage.hub_calls import (
    Refs,
    commit_named,
    is_commit,
    no_version_fits,
    readable_name,
)


def refs(tags: str = "", branches: str = "main") -> Refs:
    return Refs(
        {name: f"tag {name}" for name in tags.split()},
        {name: f"branch {name}" for name in branches.split()},
    )


@pytest.mark.parametrize(
    ("tags", "branches", "name"),
    [
        ("v2.0 v2.1 v3.0", "main", "v3.0"),
        ("v2.0 v2.1", "main", "v2.1"),
        ("v2.0 v1.6", "main", "v2.0"),
        ("v2.1 v3.1 v4.0", "main", "v2.1"),
        ("", "main v3.0", "v3.0"),
        ("v2.1", "main v3.0", "v3.0"),
        ("3.0", "main", "3.0"),
        ("3.0 v3.0.1 v3.0", "main", "v3.0"),
        ("v3.0.2 v3.0.10 3.0", "main", "v3.0.10"),
        ("v3.0.1", "main v3.0", "v3.0.1"),
        ("V3.0", "main", "V3.0"),
        ("v1.6 v9.0 release-3.0 v3 v3.0-beta", "main v2", None),
        ("", "", None),
    ],
)
def test_the_newest_version_tags_first(tags, branches, name):
    assert readable_name(refs(tags, branches)) == name


def test_a_tag_goes_before_a_branch_of_the_same_name():
    assert commit_named(refs("v3.0", "main v3.0"), "v3.0") == "tag v3.0"
    assert commit_named(refs("", "main v3.0"), "v3.0") == "branch v3.0"
    assert commit_named(refs(), "v3.0") is None


def test_commits():
    assert is_commit("0123456789abcdef0123456789abcdef01234567")
    assert not is_commit("0123456")
    assert not is_commit("v3.0")


def test_the_error_lists_what_there_is():
    many = " ".join(f"v9.{number}" for number in range(20))
    said = str(no_version_fits("me/task", refs(many), of_main="v1.6"))
    assert "v9.0" in said
    assert "and 8 more" in said
    assert "main is v1.6" in said
    assert "v2.0, v2.1, v3.0" in said
