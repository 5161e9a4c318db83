"""The rules by which a breaker opens, probes and closes. They take the time as an argument."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from django_rmq_retry import (
    Breaker,
    DeadLetter,
    Discard,
    NackRequeue,
    Native,
    OneShot,
    Park,
    Retry,
    RetryThenPark,
    StopTheLine,
)
from django_rmq_retry.arguments import per_second, spelled
from django_rmq_retry.errors import ConfigurationError
from django_rmq_retry.messages import Reason
from django_rmq_retry.policies import ACK, DUPLICATE, Circuit, Kind, Policy, Verdict, discard, halt, park, retry
from django_rmq_retry.policies.breaker import CLOSED, End, FailureTally
from django_rmq_retry.policies.policy import unbreakable, uncounted_retry
from tests.handlers.factories import subscription
from tests.messages.exceptions import BankDown

NAMED = Breaker(on=BankDown)
SHARE = Breaker(share=0.5, of=10)
TRIED = retry(10)
times = st.floats(0, 1e6)
STEPS = st.lists(st.tuples(st.sampled_from(["trip", "claim", "fail", "close", "wait"]), st.sampled_from("ab"), times))


def caused(error: BaseException, by: BaseException) -> BaseException:
    error.__cause__ = by
    return error


@pytest.mark.parametrize(
    ("breaker", "verdict", "error", "end"),
    [
        (NAMED, ACK, None, End.GOOD),
        (NAMED, DUPLICATE, None, End.NEITHER),
        (SHARE, park(Reason.CRASHED, ""), None, End.NEITHER),
        (NAMED, TRIED, BankDown(), End.BAD),
        (NAMED, park(Reason.EXHAUSTED, ""), BankDown(), End.BAD),
        (NAMED, park(Reason.PERMANENT, ""), BankDown(), End.BAD),
        (NAMED, TRIED, caused(Retry(after=3), BankDown()), End.BAD),
        (NAMED, TRIED, ValueError(), End.NEITHER),
        (NAMED, park(Reason.REQUESTED, ""), caused(Park("no"), BankDown()), End.NEITHER),
        (NAMED, discard(""), caused(Discard("no"), BankDown()), End.NEITHER),
        (SHARE, TRIED, ValueError(), End.BAD),
        (SHARE, halt(1), ValueError(), End.BAD),
        (SHARE, park(Reason.EXHAUSTED, ""), ValueError(), End.BAD),
        (SHARE, park(Reason.PERMANENT, ""), ValueError(), End.NEITHER),
        (SHARE, discard(""), ValueError(), End.NEITHER),
    ],
)
def test_each_verdict_has_its_meaning_for_the_breaker(
    breaker: Breaker, verdict: Verdict, error: BaseException | None, end: End
) -> None:
    assert breaker.end(verdict, error) is end


@given(st.lists(st.sampled_from(End), max_size=60), st.floats(0.05, 1), st.integers(1, 20))
def test_the_failure_share_is_counted_over_the_last_attempts(ends: list[End], share: float, of: int) -> None:
    tally = FailureTally(Breaker(share=share, of=of))
    for end in ends:
        tally.add(end)
    counted = [end for end in ends if end is not End.NEITHER][-of:]
    failed = sum(end is End.BAD for end in counted)

    assert tally.failures == failed
    assert tally.full == (failed >= max(share * of, 1))


@given(st.integers(1, 50), st.floats(0.05, 1))
def test_the_breaker_opens_if_no_attempt_ever_succeeds(of: int, share: float) -> None:
    tally = FailureTally(Breaker(share=share, of=of))
    for _ in range(of):
        tally.add(End.BAD)

    assert tally.full


@given(STEPS)
def test_only_one_process_probes_and_only_when_it_is_due(steps: list[tuple[str, str, float]]) -> None:
    circuit, now = CLOSED, 0.0
    for step, who, span in steps:
        before = circuit
        now += span
        if step == "trip":
            circuit = circuit.trip(handler=who, kind="BankDown", cause="down", now=now, wait=30)
            assert circuit == before if before.opened else circuit.probe_at == now + 30
        elif step == "claim":
            circuit = circuit.claim(who, now=now, lease=20)
            free = before.opened and now >= before.probe_at and (not before.prober or now >= before.probe_until)
            assert (circuit.prober == who and circuit.probe_until == now + 20) if free else circuit == before
        elif step == "fail":
            circuit = circuit.fail(cause="down", now=now, wait=60)
            assert circuit.failed == (before.failed + 1 if before.opened else 0)
            assert not circuit.prober
        elif step == "close":
            circuit = circuit.close()
            assert circuit == CLOSED
        assert circuit.opened or circuit == CLOSED


@given(st.integers(0, 200), st.floats(0, 1, exclude_max=True))
def test_pauses_between_probes_grow_to_a_limit(failed: int, chance: float) -> None:
    breaker = Breaker(on=BankDown, probe_after=30, longest=600)
    wait, plain = breaker.wait(failed, chance), breaker.wait(failed, 0.0)

    assert 30 <= plain <= 600
    assert plain <= wait <= plain * 1.2
    assert plain == min(30 * 2**failed, 600)


@pytest.mark.parametrize(
    ("policy", "kind"),
    [(RetryThenPark(attempts=1), Kind.RETRY), (StopTheLine(attempts=1), Kind.HALT)],
)
def test_an_attempt_during_an_outage_is_uncounted_with_any_policy(policy: Policy, kind: Kind) -> None:
    verdict = uncounted_retry(park(Reason.EXHAUSTED, "Gave up"), policy)

    assert (verdict.kind, verdict.counted, verdict.after) == (kind, False, 0)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, "A Breaker without errors and share would never open."),
        ({"share": 0}, "Breaker(share=…) takes a share above 0 and at most 1, not 0."),
        ({"share": 1.5}, "Breaker(share=…) takes a share above 0 and at most 1, not 1.5."),
        ({"share": 0.5, "of": 0}, "Breaker(of=…) takes a whole number from 1 to 10000, not 0."),
        (
            {"on": BankDown, "probe_after": 0},
            "Breaker(probe_after=…) takes seconds above 0 and up to ten years, not 0.",
        ),
        ({"on": BankDown, "longest": 1}, "Breaker(longest=1) is below probe_after=30. Raise it."),
        ({"on": "BankDown"}, "Breaker(on=…) takes exception classes, not 'BankDown'."),
    ],
)
def test_an_invalid_breaker_is_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        Breaker(**options)

    assert str(refused.value).startswith(said)


@pytest.mark.parametrize(
    ("policy", "said"),
    [
        (OneShot(), "with OneShot a caller waits for each answer"),
        (RetryThenPark(attempts=2, via=NackRequeue()), "With via=NackRequeue the queue itself counts"),
        (RetryThenPark(via=Native(30)), "With via=Native the queue itself counts"),
        (
            RetryThenPark(via=DeadLetter(exchange="again", queue="again", after=30)),
            "With via=DeadLetter the queue itself counts",
        ),
    ],
    ids=["OneShot", "NackRequeue", "Native", "DeadLetter"],
)
def test_a_breaker_is_refused_for_policies_that_cannot_spare_an_attempt(policy: Policy, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        replace(subscription(policy=policy), breaker=NAMED)
    assert unbreakable(RetryThenPark()) is None
    assert unbreakable(StopTheLine()) is None


@pytest.mark.parametrize(
    ("said", "rate", "words"),
    [
        (20, 20.0, "20 per second"),
        (0.5, 0.5, "30 per minute"),
        ("20/s", 20.0, "20 per second"),
        ("30 / m", 0.5, "30 per minute"),
        ("1/h", 1 / 3600, "1 per hour"),
        ("2/d", 2 / 86400, "2 per day"),
    ],
)
def test_a_rate_is_a_number_per_second_or_a_text(said: object, rate: float, words: str) -> None:
    assert per_second(said) == pytest.approx(rate)
    assert spelled(per_second(said)) == words


@pytest.mark.parametrize("said", [0, -1, True, "20", "20/w", "0/s", "fast", None, float("inf"), float("nan")])
def test_an_invalid_rate_is_refused(said: object) -> None:
    with pytest.raises(ConfigurationError, match="A handler's rate is a number of runs per second"):
        per_second(said)


def test_a_closed_circuit_is_never_due() -> None:
    assert not Circuit().due(1e9)
