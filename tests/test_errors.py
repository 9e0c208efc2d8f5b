"""The error tree: as it is drawn, and able to travel between processes with all it says."""

from __future__ import annotations

import copy
import inspect
import multiprocessing
import pickle
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from demoreel import errors
from demoreel.errors import DemoreelError, nearest

EVERY = [
    kind
    for kind in vars(errors).values()
    if inspect.isclass(kind) and issubclass(kind, DemoreelError)
]


def drawn_tree():
    """The docstring's lines as {class: (parent, builtin or None)}."""
    tree, path = {}, []
    for line in errors.__doc__.splitlines():
        match = re.match(r"^( {4}[│├└─ ]*)(\w*Error)\b(?:\s+\((\w+)\))?", line)
        if match:
            depth = (len(match[1]) - 4) // 4
            path[depth:] = [match[2]]
            tree[match[2]] = (path[depth - 1] if depth else None, match[3])
    return tree


def test_the_drawing_is_the_tree():
    found = {}
    for kind in EVERY:
        ours = [base.__name__ for base in kind.__bases__ if issubclass(base, DemoreelError)]
        builtin = [base.__name__ for base in kind.__bases__ if base.__module__ == "builtins"]
        root = kind is DemoreelError
        found[kind.__name__] = (
            None if root else ours[0],
            None if root or not builtin else builtin[0],
        )
        assert len(kind.__bases__) <= 2
    assert drawn_tree() == found
    assert len(found) >= 14


def test_every_class_explains_itself():
    for kind in EVERY:
        assert inspect.getdoc(kind)
        assert kind.__doc__ != DemoreelError.__doc__ or kind is DemoreelError


def example(kind):
    return kind(
        "Something happened.",
        hint="do this",
        dataset=Path("/data/set"),
        episode=3,
        camera="front",
        file="v.mp4",
        nothing=None,
    )


@pytest.mark.parametrize("kind", EVERY)
def test_what_where_and_what_next(kind):
    error = example(kind)
    assert str(error).splitlines() == [
        "Something happened.",
        "  dataset: /data/set",
        "  episode: 3",
        "  camera: front",
        "  file: v.mp4",
        "  next: do this",
    ]
    assert error.what == "Something happened."
    assert error.hint == "do this"
    assert "nothing" not in error.where
    assert error.args == (str(error),)
    assert str(kind("Only this.")) == "Only this."


@pytest.mark.parametrize("kind", EVERY)
def test_every_error_pickles_with_its_fields(kind):
    error = example(kind)
    protocols = range(2, pickle.HIGHEST_PROTOCOL + 1)
    pickled = [pickle.loads(pickle.dumps(error, protocol)) for protocol in protocols]
    for again in (*pickled, copy.copy(error)):
        assert type(again) is kind
        assert (again.what, again.hint, again.where) == (error.what, error.hint, error.where)
        assert str(again) == str(error)
        assert again.args == error.args


@given(
    st.sampled_from(EVERY),
    st.text(),
    st.none() | st.text(),
    st.dictionaries(
        st.sampled_from(["file", "path", "name", "errno", "filename", "args", "episode"]),
        st.none() | st.integers() | st.text(),
    ),
)
def test_any_fields_travel(kind, what, hint, where):
    """Even those whose names mean something to a builtin, as ``path`` does to ImportError."""
    error = kind(what, hint=hint, **where)
    again = pickle.loads(pickle.dumps(error))
    assert (again.what, again.hint, again.where) == (what, hint, error.where)
    assert error.where == {name: value for name, value in where.items() if value is not None}


def raise_there(kind):
    raise example(kind)


def test_they_cross_from_another_process():
    with multiprocessing.get_context("fork").Pool(1) as pool:
        for kind in EVERY:
            with pytest.raises(kind) as caught:
                pool.apply(raise_there, (kind,))
            assert caught.value.where["episode"] == 3
            assert str(caught.value) == str(example(kind))


@pytest.mark.parametrize(
    ("kind", "builtin"),
    [
        ("DatasetNotFoundError", FileNotFoundError),
        ("MetadataError", ValueError),
        ("UnsafePathError", ValueError),
        ("VideoError", ValueError),
        ("UnknownKeyError", KeyError),
        ("UnknownKeyError", ValueError),
        ("OutOfRangeError", IndexError),
        ("TargetExistsError", FileExistsError),
        ("MissingExtraError", ImportError),
    ],
)
def test_code_that_catches_the_builtin_keeps_working(kind, builtin):
    with pytest.raises(builtin):
        raise example(getattr(errors, kind))


# Suggestions


def test_the_nearest_names_come_first():
    known = ["observation.images.front", "observation.images.wrist", "action"]
    assert "'observation.images.front'" in nearest("observation.images.fornt", known)
    assert nearest("acton", known) == "did you mean 'action'?"
    assert nearest("zzz", known) == f"there are: {', '.join(known)}"
    assert nearest("zzz", []) == "there are none"
    assert nearest("a", iter(["ab"])) == "did you mean 'ab'?"


SECRET = "s3cr3t-v4lue"


@pytest.mark.parametrize(
    "text",
    [
        f"hf://datasets/me/x?token={SECRET}",
        f"hf://{SECRET}@datasets/me/x",
        f"hf:/datasets/me/x?{SECRET}",  # as a Path spells it
        f"s3://AKIA:{SECRET}@bucket/x",
        f"https://host/x?X-Amz-Signature={SECRET}&X-Amz-Date=1",
        f"az://box/x?sv=1&sig={SECRET}#f",
        f"AccountName=a;AccountKey={SECRET};EndpointSuffix=x",
        f"GET https://me:{SECRET}@host:8080 (https://host/y?sig={SECRET})",
        "hf_" + SECRET.replace("-", "X") * 2,
    ],
)
def test_no_message_holds_credentials_of_a_uri(text):
    error = DemoreelError(f"What: {text}.", hint=f"see {text}", dataset=Path(text), uri=text)
    for said in (str(error), repr(error), str(error.where), error.what, str(error.hint)):
        assert SECRET not in said
        assert SECRET.replace("-", "X") not in said
    again = pickle.loads(pickle.dumps(error))
    assert str(again) == str(error)


def test_what_is_no_secret_stays():
    for text in ("hf://datasets/me/x@v3.0/meta", "s3://b/a:b/c", "/data/a=b", "C:/x?", "a token=1"):
        assert errors.redacted(text) == text
    assert errors.redacted("https://host/x?a=1 is") == "https://host/x?*** is"


def test_messages_hold_no_control_characters():
    error = DemoreelError("a\x1b[2Jb\nc", hint="\x9b1m", task="\u202etxt\r", dataset="x")
    assert str(error) == ("a\\x1b[2Jb\\nc\n  task: \\u202etxt\\r\n  dataset: x\n  next: \\x9b1m")
    assert error.where["task"] == "\u202etxt\r"  # what a program reads is as it was
