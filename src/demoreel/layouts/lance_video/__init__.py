"""lance-video: rows in one Lance table, videos as blobs in another, ``meta/`` as in v3.0."""
