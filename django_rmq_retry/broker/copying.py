"""Copies that were sent and of which nobody knows yet whether they are stored; who waits until that is known."""

from collections.abc import Callable


class Copies:
    """Of one connection, on its I/O thread."""

    def __init__(self) -> None:
        self._sent = 0
        self._under_way: set[int] = set()
        self._awaiting: list[tuple[set[int], Callable[[], None]]] = []

    def __len__(self) -> int:
        return len(self._under_way)

    def begin(self) -> int:
        """One is sent; its number."""
        self._sent += 1
        self._under_way.add(self._sent)
        return self._sent

    def end(self, number: int) -> None:
        """It is stored, or was refused, or nobody will ever know."""
        self._under_way.discard(number)

    @property
    def awaited(self) -> bool:
        return bool(self._awaiting)

    def wait(self, then: Callable[[], None]) -> None:
        """For those that are under way now; later ones keep nobody waiting."""
        self._awaiting.append((set(self._under_way), then))

    def go_on(self) -> None:
        """Call whoever waits for none any more."""
        awaiting, self._awaiting = self._awaiting, []
        for copies, then in awaiting:
            if copies & self._under_way:
                self._awaiting.append((copies, then))
            else:
                then()
