"""The inbox: handlers with ``once``, whose effects are committed once for each message."""
