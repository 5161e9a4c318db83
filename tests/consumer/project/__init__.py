"""A project whose handlers wait for a file, so that a test finds their messages in flight."""
