"""Record each call of a function of the package, in this thread and threads started later."""

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType

from tests.bench.walks.counting import Function, function_of


class Profiler:
    """Recorded calls, in their order; a list's `append` needs no lock."""

    def __init__(self, package: Path) -> None:
        self._package = package
        self._known: dict[CodeType, Function | None] = {}
        self._calls: list[Function] = []

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Record this thread and threads started meanwhile."""
        before = threading.getprofile(), sys.getprofile()
        threading.setprofile(self._called)
        sys.setprofile(self._called)
        try:
            yield
        finally:
            sys.setprofile(before[1])
            threading.setprofile(before[0])

    def taken(self) -> list[Function]:
        """Return the calls since the last call of this method, in their order."""
        calls, self._calls = self._calls, []
        return calls

    def _called(self, frame: FrameType, event: str, _argument: object) -> None:
        if event != "call":
            return
        code = frame.f_code
        try:
            function = self._known[code]
        except KeyError:
            function = self._known[code] = function_of(code, self._package)
        if function is not None:
            self._calls.append(function)
