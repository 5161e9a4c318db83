"""Kill -9 of the consumer at each step of an attempt: no message is lost, and only documented duplicates occur."""

from collections import Counter
from typing import Any

import pytest

from django_rmq_retry import Delivery
from django_rmq_retry.messages import Headers, Properties, encode_properties
from django_rmq_retry.models import ParkedMessage
from django_rmq_retry.parked.may_have_run import may_have_run
from django_rmq_retry.parked.store import RecordStore
from tests.amqp.declared import ready
from tests.faults.handlers import PARKED, QUEUE
from tests.faults.scene import Scene
from tests.tooling.marks import nightly_but
from tests.tooling.waiting import wait_until

pytestmark = pytest.mark.slow

VICTIM = 7
IDS = range(20)
LATER = range(20, 25)
ONE_AT_A_TIME, MANY = 1, 10


def killed_then_finished(scene: Scene, way: str, prefetch: int) -> None:
    """Let one consumer be killed at the step, and a new one handle the rest."""
    assert scene.worker(prefetch=prefetch, breaks=(way, VICTIM)).ended() == -9
    scene.finish(IDS, scene.worker(prefetch=prefetch))


def more_than_once(counts: Counter[int]) -> dict[int, int]:
    return {one: count for one, count in counts.items() if count > 1}


def unacked(prefetch: int) -> set[int]:
    """Return messages that may have been unacked at the kill: possibly handled, but not yet acked."""
    return set(range(VICTIM - prefetch + 1, VICTIM + prefetch)) if prefetch > 1 else set()


@pytest.mark.parametrize("prefetch", [ONE_AT_A_TIME, MANY])
def test_a_kill_before_the_handler_costs_nothing(scene: Scene, prefetch: int) -> None:
    scene.declare()
    scene.publish(IDS)

    killed_then_finished(scene, "before_the_handler", prefetch)

    assert scene.lost(IDS) == set()
    assert set(more_than_once(scene.did())) <= unacked(prefetch) - {VICTIM}
    assert scene.did()[VICTIM] == 1


@pytest.mark.parametrize("prefetch", nightly_but([MANY], [ONE_AT_A_TIME, MANY]))
@pytest.mark.parametrize("way", ["after_the_handler", "before_the_ack"])
def test_a_kill_between_handler_and_ack_runs_the_handler_twice(scene: Scene, way: str, prefetch: int) -> None:
    scene.declare()
    scene.publish(IDS)

    killed_then_finished(scene, way, prefetch)

    assert scene.lost(IDS) == set()
    assert set(more_than_once(scene.did())) - {VICTIM} <= unacked(prefetch)
    assert scene.did()[VICTIM] == 2


@pytest.mark.django_db
def test_what_a_killed_worker_had_done_is_requeued_by_no_bulk_run_after_later_failures(scene: Scene) -> None:
    """It was paid, its worker was killed, and three ordinary failures later an operator would have paid it again."""
    scene.declare()
    scene.publish([VICTIM], dies_done=True, fails=3)
    scene.publish(LATER, fails=3)

    assert scene.worker(prefetch=ONE_AT_A_TIME).ended() == -9
    worker = scene.worker(prefetch=ONE_AT_A_TIME)
    with scene.channel() as channel:
        wait_until(lambda: ready(channel, PARKED) == 1 + len(LATER), 60, what="all are parked", step=0.1)
        arrivals = [channel.basic_get(PARKED, auto_ack=True) for _ in range(1 + len(LATER))]
    assert worker.stopped() == 0

    RecordStore({PARKED: QUEUE}, []).store([parked(arrival) for arrival in arrivals])
    assert [one.message_id for one in ParkedMessage.objects.filter(may_have_run())] == [str(VICTIM)]
    assert set(ParkedMessage.objects.values_list("reason", "attempts")) == {("retries_exhausted", 3)}


def parked(arrival: tuple[Any, Any, Any]) -> Delivery:
    _method, properties, body = arrival
    raw = encode_properties(Properties(message_id=properties.message_id, headers=Headers.of(properties.headers)))
    return Delivery(queue=PARKED, body=body, raw=raw)


@pytest.mark.nightly
@pytest.mark.parametrize("prefetch", [ONE_AT_A_TIME, MANY])
def test_a_kill_between_a_retrys_confirm_and_the_ack_leaves_two_live_copies(scene: Scene, prefetch: int) -> None:
    scene.declare()
    scene.publish(IDS, fails=1)

    killed_then_finished(scene, "after_the_copys_confirm", prefetch)

    assert scene.lost(IDS) == set()
    assert set(more_than_once(scene.did())) - {VICTIM} <= unacked(prefetch)
    assert scene.did()[VICTIM] == 2
    assert {entry["attempt"] for entry in scene.diary.entries("did")} == {2}


@pytest.mark.nightly
@pytest.mark.parametrize("prefetch", [ONE_AT_A_TIME, MANY])
def test_a_kill_between_the_parked_copys_confirm_and_the_ack_parks_twice(scene: Scene, prefetch: int) -> None:
    scene.declare()
    scene.publish(IDS, hopeless=True)

    killed_then_finished(scene, "after_the_copys_confirm", prefetch)

    parked = Counter(scene.parked_ids())
    assert set(parked) == set(IDS)
    assert set(more_than_once(parked)) - {VICTIM} <= unacked(prefetch)
    assert parked[VICTIM] == 2
    assert {reason for _, reason in scene.parked()} == {"permanent"}


@pytest.mark.nightly
@pytest.mark.parametrize("prefetch", [ONE_AT_A_TIME, MANY])
def test_a_kill_before_a_retrys_copy_repeats_the_attempt_only(scene: Scene, prefetch: int) -> None:
    scene.declare()
    scene.publish(IDS, fails=1)

    killed_then_finished(scene, "before_the_copy", prefetch)

    assert scene.lost(IDS) == set()
    assert set(more_than_once(scene.did())) <= unacked(prefetch) - {VICTIM}
    assert scene.began()[VICTIM] == 3


@pytest.mark.nightly
def test_a_kill_between_ack_and_copy_loses_the_message_with_ack_first(scene: Scene) -> None:
    scene.declare("ack_first")
    scene.publish(set(IDS) - {VICTIM})  # None of them fails: the same kill could lose a copy of theirs.
    scene.publish([VICTIM], fails=1)

    assert scene.worker(prefetch=ONE_AT_A_TIME, breaks=("instead_of_the_copy", VICTIM)).ended() == -9
    scene.publish(LATER)
    scene.finish({*IDS, *LATER} - {VICTIM}, scene.worker(prefetch=ONE_AT_A_TIME))

    assert scene.lost({*IDS, *LATER}) == {VICTIM}


COPYING = ("ladder", "wait_queue", "republish")


@pytest.mark.nightly
@pytest.mark.parametrize("carrier", [*COPYING, "loop", "requeue", "ack_first"])
def test_a_kill_before_the_handler_costs_nothing_with_any_carrier(scene: Scene, carrier: str) -> None:
    scene.declare(carrier)
    scene.publish(IDS)

    killed_then_finished(scene, "before_the_handler", ONE_AT_A_TIME)

    assert scene.did() == dict.fromkeys(IDS, 1)
    assert scene.parked() == []


@pytest.mark.nightly
@pytest.mark.parametrize("carrier", COPYING)
def test_a_kill_between_copy_and_ack_duplicates_with_carriers_that_copy(scene: Scene, carrier: str) -> None:
    scene.declare(carrier)
    scene.publish(IDS, fails=1)

    killed_then_finished(scene, "after_the_copys_confirm", ONE_AT_A_TIME)

    assert scene.lost(IDS) == set()
    assert more_than_once(scene.did()) == {VICTIM: 2}


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("carrier", "way"),
    [
        ("loop", "before_it_is_given_back"),
        ("loop", "after_it_is_given_back"),
        ("requeue", "before_it_is_given_back"),
    ],
)
def test_a_kill_while_settling_duplicates_nothing_without_a_copy(scene: Scene, carrier: str, way: str) -> None:
    scene.declare(carrier)
    scene.publish(IDS, fails=1)

    killed_then_finished(scene, way, ONE_AT_A_TIME)

    assert scene.lost(IDS) == set()
    assert scene.did()[VICTIM] == 1
