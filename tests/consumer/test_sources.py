"""Which files are the project's."""

import collections
import importlib
import os
import sysconfig
from pathlib import Path

import pika
import pytest
from django.db import models

from django_rmq_retry.messages.tracebacks import projects_own
from django_rmq_retry.policies import policy


@pytest.mark.parametrize(
    "file",
    [
        collections.__file__,
        importlib.__file__,
        os.__file__,
        models.__file__,
        pika.__file__,
        policy.__file__,
        str(Path(sysconfig.get_path("stdlib"), "dist-packages", "x.py")),
        "/usr/lib/python3/dist-packages/bank.py",
        "/srv/bank/.venv/lib/python3.13/site-packages/x/y.py",
        "<frozen importlib._bootstrap>",
        "<string>",
        "",
    ],
)
def test_installed_and_package_code_is_not_the_projects(file: str) -> None:
    assert not projects_own(file)


@pytest.mark.parametrize("file", [__file__, "/srv/bank/payments/handlers.py", "manage.py", "/srv/\udcff\0.py"])
def test_other_code_is_the_projects(file: str) -> None:
    assert projects_own(file)
