"""Test suites of other projects, run against the embedded broker."""
