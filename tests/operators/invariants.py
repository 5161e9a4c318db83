"""What holds after every act of an operator and every end of an attempt."""

from collections import Counter

from django_rmq_retry.models import ItemState, RequeueRun
from django_rmq_retry.models.runs import STILL_TO_SEND
from django_rmq_retry.parked.audit import verify
from django_rmq_retry.parked.groups import recount


def check_counters() -> None:
    """The counters of the groups are those of their messages."""
    assert recount() == 0


def check_audit_log() -> None:
    """No row of the audit log is missing or was changed."""
    assert list(verify()) == []


def check_runs() -> None:
    """The numbers of a run add up to its messages, and are those of their states."""
    for run in RequeueRun.objects.all():
        states = Counter(run.parts.values_list("state", flat=True))
        known = {state: states[state] for state in ItemState if state not in (*STILL_TO_SEND, ItemState.SKIPPED)}
        told, tally = {state: run.tally[state] for state in known}, run.tally

        assert (sum(tally.values()), min(tally.values()) >= 0) == (run.total, True)
        assert told == known
        assert tally[ItemState.SKIPPED] >= states[ItemState.SKIPPED]
        if run.complete:
            assert tally[ItemState.PENDING] == sum(states[state] for state in STILL_TO_SEND)


def check_books() -> None:
    """All of them."""
    check_counters()
    check_runs()
    check_audit_log()
