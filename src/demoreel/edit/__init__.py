"""Editing as cutting: clips, cut lists, a plan, tasks, one commit. Sources are never changed."""
