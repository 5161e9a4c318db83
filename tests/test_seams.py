"""Tests speak to public seams: the number of internal names that they import may only fall."""

from pathlib import Path

import pytest

from tests.tooling import seams

TESTS = Path(__file__).parent
ALLOWED = 740
"""Internal names that the files of tests import. Lower it with each import that you remove; never raise it."""

ALLOWED_STATEMENTS = 450
"""Import statements of tests that name an internal. Lower it with each one that you remove; never raise it."""


def test_tests_import_no_more_internal_names_than_allowed() -> None:
    found = seams.count(TESTS)
    table = "\n".join(f"{number:4} {module}" for module, number in found.most_common())

    assert found.total() <= ALLOWED, (
        f"Tests import {found.total()} internal names, and {ALLOWED} are allowed. "
        f"Test through a public name, a front or a builder of tests. By module:\n{table}"
    )


def test_tests_have_no_more_imports_of_internals_than_allowed() -> None:
    found = seams.count_statements(TESTS)
    table = "\n".join(f"{number:4} {module}" for module, number in found.most_common())

    assert found.total() <= ALLOWED_STATEMENTS, (
        f"{found.total()} import statements of tests name internals, and {ALLOWED_STATEMENTS} are allowed. "
        f"Test through a public name, a front or a builder of tests. By module:\n{table}"
    )


@pytest.mark.parametrize(
    "line",
    [
        "from django_rmq_retry import handler, signals",
        "from django_rmq_retry.errors import ConfigurationError",
        "from django_rmq_retry.models.parked import State",
        "from django_rmq_retry.messages import Properties, encode_properties",
        "from django_rmq_retry.handlers import work_queues_of",
        "from django_rmq_retry.parked.operators import Actor, Refused",
        "import django_rmq_retry",
    ],
)
def test_public_names_are_not_counted(line: str) -> None:
    assert seams.internals(line) == set()


@pytest.mark.parametrize(
    ("line", "pairs"),
    [
        ("from django_rmq_retry import server", {("", "server")}),
        ("from django_rmq_retry.messages import history", {("messages", "history")}),
        ("from django_rmq_retry.parked.requeue import requeue, start", {("parked.requeue", "start")}),
        ("from django_rmq_retry.parked.requeue import pause", {("parked.requeue", "pause")}),
        ("import django_rmq_retry.amqp.frames", {("amqp.frames", "*")}),
        (
            "def f():\n    from django_rmq_retry.inbox.once import once, insert",
            {("inbox.once", "once"), ("inbox.once", "insert")},
        ),
    ],
)
def test_internal_names_are_counted_each(line: str, pairs: set[tuple[str, str]]) -> None:
    assert seams.internals(line) == pairs


def test_a_statement_importing_several_internals_counts_once(tmp_path: Path) -> None:
    (tmp_path / "test_one.py").write_text(
        "from django_rmq_retry.inbox.once import once, insert\n"
        "from django_rmq_retry.parked.requeue import pause, requeue\n"
        "from django_rmq_retry.errors import ConfigurationError\n"
        "def f():\n    from django_rmq_retry.inbox.once import once\n"
        "import pytest\n"
    )

    assert seams.count_statements(tmp_path) == {"inbox.once": 2, "parked.requeue": 1}
