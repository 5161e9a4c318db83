"""A project whose handlers need a bank that is down while a file says so."""
