"""Names of files that come from elsewhere: a store's listing, a repository."""

from __future__ import annotations

OLD_METADATA = ".versions"
"""The folder of the metadata of older versions: hidden, and a dataset's all the same."""


def leads_elsewhere(name: str) -> bool:
    """Whether a file of this name could lie outside the folder that it is put into."""
    parts = name.split("/")
    odd = any(part in ("", ".", "..") for part in parts) or "\\" in name or "\0" in name
    return odd or parts[0][1:2] == ":"  # on some systems, a drive


def is_hidden(name: str) -> bool:
    """Whether a file is no dataset's: git's, or what a program has left while it worked.

    A journal that a stranger wrote must not be taken for our own.
    """
    first, *rest = name.split("/")
    return (first.startswith(".") and first != OLD_METADATA) or any(
        part.startswith(".") for part in rest
    )
