"""What an import brings along. Contracts of import-linter in pyproject.toml hold that imports only go down."""

import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import django_rmq_retry
from django_rmq_retry import amqp, handlers, messages, policies, topology

PACKAGE = Path(__file__).parents[1] / "django_rmq_retry"


def test_the_public_names_need_no_settings_and_no_consumer() -> None:
    code = (
        "import sys, django_rmq_retry\n"
        "print([name for name in sys.modules if name.startswith('django_rmq_retry.consumer.consumer')])"
    )
    told = subprocess.run([sys.executable, "-c", code], cwd=PACKAGE.parent, capture_output=True, text=True, check=False)

    assert (told.stdout.strip(), told.stderr) == ("[]", "")


@pytest.mark.parametrize("front", [messages, topology, policies, amqp, handlers])
def test_a_front_module_exports_no_name_of_the_public_package(front: ModuleType) -> None:
    assert front.__all__
    assert set(front.__all__) & set(django_rmq_retry.__all__) == set()
    assert [name for name in front.__all__ if isinstance(getattr(front, name), ModuleType)] == []


def test_the_web_process_never_imports_the_consumer() -> None:
    code = (
        "import sys, django\n"
        "django.setup()\n"
        "from django.contrib import admin\n"
        "admin.autodiscover()\n"
        "import tests.urls\n"
        "print([name for name in sys.modules if name.startswith('django_rmq_retry.consumer')])"
    )
    env = {**os.environ, "DJANGO_SETTINGS_MODULE": "tests.settings"}
    ended = subprocess.run(
        [sys.executable, "-c", code], cwd=PACKAGE.parent, env=env, capture_output=True, text=True, check=False
    )

    assert (ended.stdout.strip(), ended.stderr) == ("[]", "")
