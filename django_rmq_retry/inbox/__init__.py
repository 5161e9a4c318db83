"""Handlers whose effects are committed once for each message."""
