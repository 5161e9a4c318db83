"""Findings of which alerts tell."""

from django_rmq_retry.alerts.found import AlertFinding
from django_rmq_retry.health.rules import Code, Problem

IDLE = AlertFinding.of(Problem(code=Code.IDLE, subject="pay", count=1), of_queues=True)
HALTED = AlertFinding.of(Problem(code=Code.HALTED, subject="pay", values={"span": "1 min", "attempt": 1, "cause": "x"}),
                    of_queues=False)  # fmt: skip
