"""A small project whose handlers follow the message, for tests that run its commands as processes."""
