"""A cache that holds what was used last, and no more than it may."""

from __future__ import annotations

import os
import random
import signal
import threading
from collections import OrderedDict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from demoreel.storage.cache import ByteCache


def keep(cache, key, size=1):
    """Get a key, and say whether it had to be made."""
    made = []

    def make():
        made.append(key)
        return f"value of {key}", size

    assert cache.get(key, make) == f"value of {key}"
    return bool(made)


def test_a_value_is_made_once():
    cache = ByteCache(10)
    assert keep(cache, "a")
    assert not keep(cache, "a")
    assert cache.held_bytes == 1


def test_the_least_recently_used_goes_first():
    cache = ByteCache(3)
    for key in "abc":
        keep(cache, key)
    keep(cache, "a")  # now b is the oldest
    keep(cache, "d")
    assert [key for key in "acd" if keep(cache, key)] == []
    assert keep(cache, "b")


def test_sizes_count_not_numbers():
    cache = ByteCache(10)
    keep(cache, "small", 1)
    keep(cache, "large", 9)
    assert cache.held_bytes == 10
    keep(cache, "middle", 5)
    assert cache.held_bytes == 5
    assert keep(cache, "small")


def test_a_value_beyond_the_bound_is_kept_while_it_is_the_newest():
    cache = ByteCache(10)
    keep(cache, "a", 3)
    keep(cache, "huge", 100)
    assert not keep(cache, "huge", 100)
    assert cache.held_bytes == 100
    keep(cache, "b", 2)
    assert cache.held_bytes == 2


def test_an_error_is_not_kept():
    cache = ByteCache(10)

    def fail():
        raise RuntimeError("no")

    with pytest.raises(RuntimeError):
        cache.get("a", fail)
    assert cache.held_bytes == 0
    assert keep(cache, "a")


def test_none_is_a_value_like_any_other():
    cache = ByteCache(10)
    assert cache.get("a", lambda: (None, 1)) is None
    assert cache.get("a", lambda: pytest.fail("it was made already")) is None


def test_a_value_that_is_made_while_it_is_made_counts_once():
    cache = ByteCache(10)

    def make():
        keep(cache, "a", 4)  # as another thread might meanwhile
        return "value of a", 4

    cache.get("a", make)
    assert cache.held_bytes == 4


@given(
    st.integers(0, 30),
    st.lists(st.tuples(st.integers(0, 9), st.integers(0, 12)), max_size=60),
)
def test_it_behaves_as_the_plain_description_says(most, requests):
    cache, model = ByteCache(most), OrderedDict()
    for key, size in requests:
        made = keep(cache, key, size)
        assert made == (key not in model)
        if made:
            model[key] = size
        model.move_to_end(key)
        while made and sum(model.values()) > most and len(model) > 1:
            model.popitem(last=False)
        assert cache.held_bytes == sum(model.values())
        assert list(cache._values) == list(model)
        assert cache.held_bytes <= most or len(model) == 1


def test_threads():
    cache = ByteCache(50)
    wrong = []

    def work(seed):
        rng = random.Random(seed)
        for _ in range(3_000):
            key = rng.randrange(40)
            value = cache.get(key, lambda key=key: (key * 7, key % 5 + 1))
            if value != key * 7:
                wrong.append(key)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert cache.held_bytes == sum(size for _, size in cache._values.values()) <= 50


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_a_child_forked_in_the_middle_of_a_change():
    """Its lock is its own, and its count is right even if the change was half done."""
    cache = ByteCache(100)
    for key in range(10):
        keep(cache, key, 2)
    with cache._lock:
        cache._held += 1000  # half of a change
        child = os.fork()
        if child == 0:
            status = 1
            try:
                signal.alarm(60)
                assert keep(cache, "new", 2)
                assert not keep(cache, 3)
                assert cache.held_bytes == 22
                status = 0
            finally:
                os._exit(status)
        cache._held -= 1000
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
