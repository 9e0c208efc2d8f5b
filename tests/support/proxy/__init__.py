"""What a fault proxy's process runs: faults, the framing of HTTP, connections passed on."""
