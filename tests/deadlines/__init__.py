"""Handlers with a deadline, and a project of theirs for tests that run processes."""
