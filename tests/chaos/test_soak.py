"""The audit of the soak, with invented sums."""

from itertools import product

from tests.chaos.paying import Money, made_up
from tests.chaos.soak import LEGS, audit

PAID = {1: Money(1, 100), 2: Money(1, 50), 3: Money(2, 7)}
SUMS = {1: 150, 2: 7}
BOOKED = list(product(PAID, LEGS))


def test_payments_booked_and_reported_once_have_no_findings() -> None:
    assert list(audit(PAID, BOOKED, cents=SUMS, reported=SUMS)) == []


def test_a_payment_booked_twice_is_found_by_number_and_sum() -> None:
    assert list(audit(PAID, [*BOOKED, (3, "book")], cents={1: 150, 2: 14}, reported=SUMS)) == [
        "D: booked more than once: 3",
        "D: the wrong sum is booked for account: 2",
        "D: 164 cents are booked in total, but 157 were paid",
    ]


def test_missing_and_invented_payments_are_found() -> None:
    booked = [one for one in BOOKED if one != (2, "report")] + [(9, "report")]

    assert list(audit(PAID, booked, cents=SUMS, reported={1: 100, 2: 7})) == [
        "A: never reported: 2",
        "I2: reported, but never paid: 9",
        "D: the wrong sum is reported for account: 1",
        "D: 107 cents are reported in total, but 157 were paid",
    ]


def test_the_same_seed_makes_up_the_same_payments() -> None:
    assert [made_up(7, number) for number in range(3)] == [made_up("7", number) for number in range(3)]
    assert made_up(7, 1) != made_up(8, 1)
