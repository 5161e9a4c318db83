"""A tiny project whose handlers do what a message says: for tests that run its commands as processes."""
