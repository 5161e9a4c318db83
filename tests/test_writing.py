"""Plain English, as far as a program can judge it: docs/contributing names the rules, this holds them."""

from pathlib import Path

import pytest

from tests.tooling.writing import in_file, in_markup, in_python

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "django_rmq_retry"
PLAIN: tuple[str, ...] = (
    "tests/tooling/writing.py",
    "tests/test_writing.py",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "README.md",
    "SECURITY.md",
    "django_rmq_retry/admin",
    "django_rmq_retry/amqp",
    "django_rmq_retry/apps.py",
    "django_rmq_retry/arguments.py",
    "django_rmq_retry/breakers/gate.py",
    "django_rmq_retry/breakers/rates.py",
    "django_rmq_retry/breakers/table.py",
    "django_rmq_retry/checks",
    "django_rmq_retry/conf.py",
    "django_rmq_retry/consumer",
    "django_rmq_retry/embedded",
    "django_rmq_retry/env.py",
    "django_rmq_retry/errors.py",
    "django_rmq_retry/handlers",
    "django_rmq_retry/hooks.py",
    "django_rmq_retry/inbox",
    "django_rmq_retry/management",
    "django_rmq_retry/messages",
    "django_rmq_retry/models",
    "django_rmq_retry/ordering",
    "django_rmq_retry/parked",
    "django_rmq_retry/policies",
    "django_rmq_retry/publishing",
    "django_rmq_retry/server.py",
    "django_rmq_retry/signals.py",
    "django_rmq_retry/telemetry",
    "django_rmq_retry/templates",
    "django_rmq_retry/templatetags",
    "django_rmq_retry/testing",
    "django_rmq_retry/topology",
    "docs",
    "testproject",
    "tests/admin",
    "tests/bank",
    "tests/bench",
    "tests/amqp",
    "tests/browser",
    "tests/chaos",
    "tests/commands",
    "tests/handlers",
    "tests/messages",
    "tests/policies",
    "tests/topology",
    "tests/embedded",
    "tests/faults",
    "tests/foreign",
    "tests/consumer",
    "tests/shop",
    "tests/telemetry",
    "tests/breakers",
    "tests/tooling",
)
"""The folders and files that were rewritten so far, below the root."""
ALLOWED: frozenset[tuple[str, str]] = frozenset()
"""Files and words in them that are right as they are: at most twenty."""
SUFFIXES = (".py", ".md", ".html")


def files() -> list[Path]:
    found = [ROOT / name for name in PLAIN]
    every = [path for one in found for path in ([one] if one.is_file() else sorted(one.rglob("*")))]
    every = [path for path in every if "_build" not in path.parts]  # left by `make docs`
    return [path for path in every if path.suffix in SUFFIXES and path.name not in ("writing.py", "test_writing.py")]


def test_rewritten_pages_stay_plain() -> None:
    found = [(str(path.relative_to(ROOT)), finding) for path in files() for finding in in_file(path)]

    assert [f"{name}: {one}" for name, one in found if (name, one.found) not in ALLOWED] == []


def test_docstrings_and_comments_of_the_product_are_plain() -> None:
    found = [
        f"{path.relative_to(ROOT)}: {finding}"
        for path in sorted(PACKAGE.rglob("*.py"))
        for finding in in_python(path.read_text(), literals=False)
    ]

    assert found == []


def test_literals_can_be_excluded() -> None:
    text = '"""Nobody."""\nx = "anew"  # told\n'

    assert [one.found for one in in_python(text)] == ["Nobody", "anew", "told"]
    assert [one.found for one in in_python(text, literals=False)] == ["Nobody", "told"]


def test_the_allowed_words_are_few_and_all_needed() -> None:
    needed = {(str(path.relative_to(ROOT)), finding.found) for path in files() for finding in in_file(path)}

    assert len(ALLOWED) <= 20
    assert needed >= ALLOWED


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ('"""Whether it is open."""', ["Whether"]),
        ('def f():\n    """What is sent."""', ["What"]),
        ('LIMIT = 3\n"""How many."""', ["How"]),
        ("x = 'Nobody consumes it.'", ["Nobody"]),
        ("# go on when it is done", ["go on"]),
        ("x = f'{name} is told'", ["told"]),
        ("told = nobody = 1", []),
        ('"""Return the queue. What follows is free."""', []),
    ],
)
def test_forbidden_words_are_found_in_prose_and_docstring_openings(text: str, found: list[str]) -> None:
    assert [one.found for one in in_python(text)] == found


def test_a_finding_shows_its_line_and_the_better_word() -> None:
    assert [str(one) for one in in_markup("One\nTwo is told\n```\nnobody\n```\n`whoever` anew\n")] == [
        "line 2: 'told'; write: report, return, pass, say which",
        "line 6: 'anew'; write: again, or from the start",
    ]
