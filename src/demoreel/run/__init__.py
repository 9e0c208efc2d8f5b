"""Runs tasks: in this process, in several, as one shard of many machines, on Ray."""
