"""What a handler raises to decide against its policy."""

from datetime import timedelta

from django_rmq_retry.core.backoff import LONGEST


class Overrule(Exception):
    """A handler's own decision about the message in its hand."""

    reason: str = ""
    """Here too, for a subclass that does not call this ``__init__``."""

    def __init__(self, reason: str = "") -> None:
        super().__init__(reason)
        self.reason = reason


class Retry(Overrule):
    """Try again, after the given number of seconds or by the policy's back-off: ``raise Retry(after=30)``."""

    after: float | None = None

    def __init__(self, reason: str = "", *, after: float | timedelta | None = None) -> None:
        seconds: object = after.total_seconds() if isinstance(after, timedelta) else after
        if seconds is not None and not (isinstance(seconds, (int, float)) and 0 <= seconds <= LONGEST):
            raise ValueError(f"Retry(after=…) takes seconds from 0 to ten years, or a timedelta, not {after!r}.")
        super().__init__(reason)
        self.after = seconds


class Park(Overrule):
    """Set the message aside for a person: ``raise Park("The account is frozen")``."""


class Discard(Overrule):
    """Drop the message on purpose; the log keeps the reason: ``raise Discard("Superseded")``."""
