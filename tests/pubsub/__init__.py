"""Handlers whose queues live and die with their process, and a project of theirs for tests that run processes."""
