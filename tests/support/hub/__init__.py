"""A small Hugging Face Hub for tests; :mod:`support.hub_server` says how to use it.

From low to high: ``answers`` (what a request and an answer are), ``repos`` (commits and refs),
``storage`` (objects and repositories in a folder), ``core`` (who may do what, signed URLs),
``looking``, ``cards``, ``writing``, ``sending``, ``fetching`` and ``buckets`` (the routes),
``routes`` (which path is which), ``faults`` (what goes wrong on purpose), ``serving`` (HTTP) and
``server`` (the face).
"""
