"""The project under test: a handler for each lane of the load."""
