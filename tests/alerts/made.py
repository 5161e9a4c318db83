"""Findings of which alerts tell."""

from django_rmq_retry.alerts.found import AlertFinding
from django_rmq_retry.health.rules import Code, Problem

IDLE = AlertFinding.of(Problem(code=Code.IDLE, subject="pay", count=1), of_queues=True)
_HALT = {"span": "1 min", "attempt": 1, "cause": "x", "named": "", "waiting": ""}
HALTED = AlertFinding.of(Problem(code=Code.HALTED, subject="pay", values=_HALT), of_queues=False)
