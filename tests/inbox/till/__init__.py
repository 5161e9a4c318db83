"""A project whose handlers run once: each writes its own row to the database."""
