"""Files: bounded handles, exact reads, atomic writes; local and remote."""
