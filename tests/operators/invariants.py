"""What holds after every act of an operator and every end of an attempt."""

from django_rmq_retry.parked.audit import verify
from django_rmq_retry.parked.groups import recount


def check_counters() -> None:
    """The counters of the groups are those of their messages."""
    assert recount() == 0


def check_audit_log() -> None:
    """No row of the audit log is missing or was changed."""
    assert list(verify()) == []


def check_books() -> None:
    """Both of them."""
    check_counters()
    check_audit_log()
