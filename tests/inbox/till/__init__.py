"""A project whose handlers run once: each leaves a row of its own in the database."""
