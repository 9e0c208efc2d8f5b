"""How a dataset lies on disk: one folder per layout, behind the contract in ``base.py``."""
