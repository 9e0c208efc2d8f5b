"""What every appender promises, whatever it appends to; the modules that test one import these.

They bring ``appender``, ``scratch``, ``add``, ``state`` (a function that tells what a folder
holds), ``whole`` (one that looks at a dataset and counts its episodes) and ``limit``: bytes that
are too few for a file of a commit.
"""

from __future__ import annotations

import pytest

from demoreel.errors import DiskFullError
from support.crash import files_may_not_grow, make_draft


def test_files_that_may_not_grow_lose_nothing(appender, scratch, add, state, whole, limit):
    """The same as a full disk, for users who may not mount one."""
    add(appender, 2)
    draft = make_draft(appender, 2, scratch)
    before = state(appender.root)
    with files_may_not_grow(limit), pytest.raises(DiskFullError, match="free some space"):
        appender.append(draft)
    assert state(appender.root) == before
    assert appender.append(draft) == 2
    assert whole(appender.root) == 3


def test_a_commit_that_cannot_be_put_in_place_is_undone(appender, scratch, add, state, whole):
    add(appender, 2)
    before = state(appender.root)
    draft = make_draft(appender, 2, scratch)
    hindrance = appender.root / "meta/episodes/chunk-000/file-002.parquet"
    hindrance.mkdir()
    with pytest.raises(OSError, match="directory"):
        appender.append(draft)
    hindrance.rmdir()
    assert state(appender.root) == before
    assert whole(appender.root) == 2
    assert appender.append(draft) == 2
    assert whole(appender.root) == 3
