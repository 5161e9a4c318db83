"""Policies decide what happens when a handler fails, and how a retry waits. Pure functions and values."""
