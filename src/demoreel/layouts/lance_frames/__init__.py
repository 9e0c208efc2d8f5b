"""lance-frames: one Lance table, with an encoded picture per camera in every row."""
