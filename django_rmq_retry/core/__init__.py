"""Values and rules: standard library only, no clock, no threads, no randomness of its own."""
