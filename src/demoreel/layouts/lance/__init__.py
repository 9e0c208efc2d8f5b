"""Datasets in Lance tables: one format, three schemas (``schemas.py``).

``calls.py`` is the only module that asks Lance for something, in a process where that is safe;
``tables.py`` opens a table at a version, and reads large values from its files without Lance, as
``videos.py`` reads blobs. On these stand ``reader.py``, ``write.py`` and ``append.py``;
``versions.py`` makes versions that come into place with other files, and ``history.py`` keeps the
metadata that belong to older ones.
"""
