"""Exact statistics: of columns of numbers, of levels of frames, of episodes and datasets."""
