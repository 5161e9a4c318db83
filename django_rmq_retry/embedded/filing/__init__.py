"""The file of the embedded broker: what outlives it, in SQLite."""
