"""Bytes behind a path: bounded handles, exact reads, atomic writes."""
