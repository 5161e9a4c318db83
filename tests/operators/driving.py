"""What drives a requeue run in a test: a clock that the test moves, and a broker of which it says how full it is."""


class Clock:
    """A clock that the test moves."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Targets:
    """A broker of which the tests say how full it is."""

    def __init__(self, depth: int | None = 0, *, answers: bool = True) -> None:
        self.depth = depth
        self.reachable = answers
        self.consumers = 1

    def is_reachable(self) -> bool:
        return self.reachable

    def ready(self, queue: str) -> int | None:
        return self.depth

    def lacks_consumers(self, queue: str) -> bool:
        return not self.consumers

    def added(self, queue: str, count: int) -> None:
        if self.depth is not None:
            self.depth += count

    def close(self) -> None:
        """Nothing."""
