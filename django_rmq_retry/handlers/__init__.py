"""Handlers: the decorator, the registry, and the choice of the function that takes a message."""
