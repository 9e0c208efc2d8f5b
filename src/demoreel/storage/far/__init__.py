"""Bytes that lie far away: in object stores and on the Hub, read by ranges."""
