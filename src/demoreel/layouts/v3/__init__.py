"""LeRobot v3.0: many episodes in each table and each video."""
