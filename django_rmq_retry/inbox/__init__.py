"""Handlers that run once for each message: what they did and that they did it are committed together."""
