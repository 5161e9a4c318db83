"""Handlers: which function takes which message."""
