"""Edits of Lance datasets as new versions, and the way back."""
