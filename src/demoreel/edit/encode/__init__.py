"""Frames that a result cannot copy: encoded by tasks, checked, fitted beside copied packets."""
