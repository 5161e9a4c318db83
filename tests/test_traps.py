"""Defects of other consumers that no other file of tests covers: see docs/evidence/failures.md."""

import ast
import pickle
from pathlib import Path
from typing import Any

import pytest
from django.core.checks.registry import registry as checks

import django_rmq_retry
from django_rmq_retry import Delivery, Json, handler
from django_rmq_retry.errors import UndecodableBody
from django_rmq_retry.models import ItemReason, ItemState, RequeueItem
from django_rmq_retry.parked.requeue import requeue
from django_rmq_retry.testing import isolated_handlers
from tests.admin.conftest import Kept
from tests.operators.made import ANN, QUEUE, record
from tests.tooling.brokers import replaced_by

RUNS_WHAT_IT_READS = {"pickle", "marshal", "shelve", "dill", "cloudpickle", "jsonpickle", "yaml", "joblib"}


def test_no_module_imports_pickle_or_another_code_executing_decoder() -> None:
    found = {}
    for path in Path(django_rmq_retry.__file__).parent.rglob("*.py"):
        tree = ast.walk(ast.parse(path.read_text()))
        names = {one.names[0].name if isinstance(one, ast.Import) else str(one.module) for one in tree
                 if isinstance(one, (ast.Import, ast.ImportFrom))}  # fmt: skip
        if bad := {name.split(".")[0] for name in names} & RUNS_WHAT_IT_READS:
            found[path.name] = bad

    assert found == {}


def test_a_pickle_is_an_undecodable_body() -> None:
    with pytest.raises(UndecodableBody):
        Json().decode(pickle.dumps({"amount": 1}))


def test_our_system_checks_query_no_database() -> None:
    """This test may ask none: a check that did would fail it. So they also run before the first migrate."""
    known = checks.get_checks(include_deployment_checks=True)
    ours = [check for check in known if check.__module__.startswith("django_rmq_retry.")]
    problems = [problem for check in ours for problem in check(app_configs=None, databases=None) or ()]

    assert ours
    assert [problem.msg for problem in problems if not str(problem.id).startswith("rmq_retry.")] == []


@pytest.mark.django_db(transaction=True)
def test_a_message_that_cannot_be_sent_does_not_stop_the_others() -> None:
    kept = Kept()
    with isolated_handlers(), replaced_by(kept):

        @handler(QUEUE)
        def charge(message: Delivery) -> None:
            """Nothing."""

        large: dict[str, Any] = {f"h{number}": "x" * 30_000 for number in range(10)}
        messages = [record(), record(headers=large), record()]
        run = requeue([one.pk for one in messages], by=ANN, wait=5.0)

    ended = RequeueItem.objects.filter(run=run).order_by("place").values_list("state", "skip_code")
    assert list(ended) == [(ItemState.SENT, ""), (ItemState.SKIPPED, ItemReason.UNWRITABLE), (ItemState.SENT, "")]
    assert len(kept.messages) == 2
