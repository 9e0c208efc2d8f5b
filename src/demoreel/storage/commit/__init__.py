"""The commit protocol of all writes: stage, sync, record, rename, settle.

A new dataset is staged in a hidden folder beside its target, synced to disk, recorded as made, and
renamed once (``staging.py``); one that takes another's place is exchanged with it (``replace.py``).
A commit into a dataset (an episode, merged files, statistics) stages its files inside it, records
every rename, carries them out and settles them (``journal.py``), under the dataset's lock
(``writer_lock.py``). Readers look between two commits (``consistent.py``). What killed processes
leave is told by the locks of hidden folders (``hidden_folder.py``).
"""
