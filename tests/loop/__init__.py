"""Async handlers, and a project of theirs for tests that run processes."""
