"""Policies: what happens when a handler fails, and the way in which a retry waits. Pure."""
