"""What is wrong, as the rules of the judge say it."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

EXAMPLES = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """An invariant that was broken, by its letter in TRAPS or its number in FAULTS."""

    rule: str
    said: str


def told(said: str, names: Iterable[str]) -> Iterator[Finding]:
    """One finding for all of a kind, with a few of them."""
    some = sorted(names)
    if some:
        rule, _, words = said.partition(": ")
        more = f" and {len(some) - EXAMPLES} more" if len(some) > EXAMPLES else ""
        yield Finding(rule=rule, said=f"{words}: {', '.join(some[:EXAMPLES])}{more}")
