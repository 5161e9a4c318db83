"""The embedded broker in process, without a socket, on a virtual clock; for tests."""
