"""The library's words in the command's: options for arguments, verbs for functions.

Messages are written for both. Where the two differ, a message says ``exact=True (--exact)``, of
which the library shows the first and the command the second; what is left is translated here.
"""

from __future__ import annotations

import re

_VERBS = "check checkout clean convert cut diff finish pull push repair tag versions"

_OPTIONS = {
    "cameras": "--camera",
    "episodes": "--episodes",
    "filter": "--where",
    "fps": "--fps",
    "link": "--link",
    "overwrite": "--overwrite",
    "revision": "--revision",
    "tag": "--tag",
    "task": "--task",
    "token": "HF_TOKEN",
    "version": "--version",
}

_RULES = [
    # overwrite (--overwrite), fps=30 (--fps 30)
    (re.compile(r"""\b\w+(?:=(?:"[^"]*"|'[^']*'|\S+))? \((--[^)]+)\)"""), r"\1"),
    (re.compile(r"begin one with demoreel\.create"), "begin one: leave --resume out"),
    (re.compile(r"\bdemoreel\.resume\b"), "--resume"),
    (re.compile(rf"\bdemoreel\.({_VERBS.replace(' ', '|')})\b(?:\(\))?"), r"demoreel \1"),
    (re.compile(r"(episodes? out) with episodes="), r"\1 with demoreel cut delete"),
    (re.compile(r",? or (?:in )?storage_options=(?:\{[^}]*\})?"), ""),
]
_ARGUMENT = re.compile(r"\b([a-z]+(?:_[a-z]+)*)=(?=[\s,.;:)]|$)")


def in_command_words(text: str) -> str:
    """Return a message of the library as the command says it."""
    for pattern, words in _RULES:
        text = pattern.sub(words, text)
    return _ARGUMENT.sub(lambda found: _OPTIONS.get(found[1], found[1]), text)
