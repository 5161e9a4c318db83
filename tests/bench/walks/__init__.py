"""Modules and functions of the package that run for one more message, counted by a profiler on four walks."""
