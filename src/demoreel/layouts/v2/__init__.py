"""LeRobot v2.0 and v2.1: a table and a video per episode."""
