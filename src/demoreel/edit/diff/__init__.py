"""Where two datasets differ: ``run.diff`` pairs episodes, and compares rows, then images."""
