"""A project whose handlers make everyday mistakes."""
