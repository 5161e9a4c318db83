"""The buttons of a page: what one may do there, and why not where one may not."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Act:
    """A button that leads to a page, or that posts to an address; disabled where `why` says so."""

    label: str
    address: str
    why: str = ""
    post: bool = False
    values: tuple[tuple[str, str], ...] = ()
    kind: str = ""
    """`main` for the one that most people come for, `danger` for what takes something away."""
    describes: str = ""
    """What it is about, for people who hear the button alone."""
