"""The schedule of nemeses depends on the seed alone."""

from itertools import islice

from tests.chaos.nemeses import OFTEN, ONE_NODE, schedule


def first(seed: int, count: int) -> list[tuple[str, float, float]]:
    strikes = islice(schedule(seed, ONE_NODE, shortest=1, longest=5), count)
    return [(strike.name, strike.pause, strike.chance.random()) for strike in strikes]


def test_equal_seeds_give_equal_schedules() -> None:
    assert first(7, 60) == first(7, 60)
    assert first(7, 60) != first(8, 60)


def test_every_nemesis_occurs_in_each_turn() -> None:
    turn = len(ONE_NODE) + len(OFTEN)

    assert {name for name, _, _ in first(7, turn)} == set(ONE_NODE)


def test_pauses_are_within_their_bounds() -> None:
    assert all(1 <= pause <= 5 for _, pause, _ in first(7, 100))
