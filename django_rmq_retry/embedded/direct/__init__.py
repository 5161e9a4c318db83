"""The embedded broker without a socket, on a virtual clock, for tests."""
