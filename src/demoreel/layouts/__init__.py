"""How a dataset is stored: one folder per layout, behind the contract in ``base.py``."""
