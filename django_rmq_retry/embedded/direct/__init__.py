"""The embedded broker without a socket: in this process, on a clock that moves when it is told to, for tests."""
