"""From frame numbers to samples: windows, batch planning, decode scheduling. numpy only."""
