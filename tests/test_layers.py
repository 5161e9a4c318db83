"""The layers: every module has one, and imports only go down."""

import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import django_rmq_retry
from django_rmq_retry import amqp, handlers, messages, policies, topology
from tests.tooling.layers import Layers

PACKAGE = Path(__file__).parents[1] / "django_rmq_retry"
LONGEST = 600

# bottom first; `package.*` is a package whose modules import each other in any order, though never in a circle
LAYERS = (
    "errors",
    "arguments",
    "signals",
    "forks",
    "messages.*",
    "topology.*",
    "policies.*",
    "amqp.*",
    "embedded.*",
    "env",
    "conf",
    "hooks",
    "server",
    "migrations.*",
    "models.*",
    "publishing.*",
    "handlers.*",
    "ordering.*",
    "breakers.*",
    "parked.*",
    "inbox.*",
    "__init__",
    "telemetry.*",
    "consumer.*",
    "checks.*",
    "templatetags.*",
    "admin.*",
    "apps",
    "management.*",
    "testing.*",
)
PURE = frozenset({"asyncio", "random", "secrets", "socket", "threading", "time"})
ORDER = Layers(
    layers=LAYERS,
    foreign={
        "messages": frozenset(),
        "topology": frozenset(),
        "policies": frozenset(),
        "amqp": frozenset({"pika"}),
        "embedded.wire": frozenset({"pika"}),
        "embedded": frozenset(),
        "env": frozenset({"environ"}),
        "telemetry.opentelemetry": frozenset({"opentelemetry"}),
        "telemetry.sentry": frozenset({"sentry_sdk"}),
        "telemetry.log_fields": frozenset({"structlog"}),
        "telemetry.prometheus": frozenset({"django", "prometheus_client"}),
        "telemetry": frozenset({"django"}),
        "testing.plugin": frozenset({"pytest"}),
        "": frozenset({"django", "asgiref"}),
    },
    forbidden={"messages": PURE, "topology": PURE, "policies": PURE},
    narrow={},
)

MADE_UP = Layers(
    layers=("core.low", "core.pair.*", "core.high", "broker.base", "broker.wire", "runtime.*", "__init__"),
    foreign={"core": frozenset(), "broker": frozenset({"pika"}), "": frozenset({"django"})},
    forbidden={"core": frozenset({"time"})},
    narrow={"runtime": ("core", "broker.base", "runtime")},
)


def breaches(folder: Path, **files: str) -> list[str]:
    for name, text in files.items():
        path = folder / "made_up" / (name.replace("__", "/") + ".py" if name != "root" else "__init__.py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return MADE_UP.broken(folder / "made_up")


def test_imports_only_go_down_the_layers() -> None:
    assert ORDER.broken(PACKAGE) == []


def test_no_file_is_too_long() -> None:
    lines = {
        path: len(path.read_text().splitlines()) for path in PACKAGE.rglob("*.py") if "migrations" not in path.parts
    }

    assert {str(path.relative_to(PACKAGE)): count for path, count in lines.items() if count > LONGEST} == {}


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


def test_imports_downwards_and_within_a_pair_are_allowed(tmp_path: Path) -> None:
    assert not breaches(
        tmp_path,
        core__low="import json\n",
        core__pair__one="from . import two\nfrom .. import low\n",
        core__pair__two="from made_up.core.low import x\n",
        core__high="from .pair.one import x\nimport made_up.core.low\n",
        broker__wire="import pika\nfrom made_up.core import high\n",
        runtime__work="from made_up.broker.base import x\n",
        broker__base="",
        root="from made_up.runtime.work import x\nfrom django.apps import apps\n",
    )


@pytest.mark.parametrize(
    "line",
    [
        "from made_up.core.high import x",
        "from made_up.core import high",
        "from .high import x",
        "from . import high",
        "import made_up.core.high",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING: from .high import x",
    ],
)
def test_an_upward_import_is_reported_with_both_layers(tmp_path: Path, line: str) -> None:
    number = line.count("\n") + 1
    sentence = (
        f"core/low.py:{number} imports core.high: imports only go down, but core.high is in layer 2"
        " (core.high), above core.low in layer 0 (core.low)."
    )

    assert breaches(tmp_path, core__low=line, core__high="") == [sentence]


def test_an_import_inside_a_function_is_reported(tmp_path: Path) -> None:
    assert breaches(tmp_path, core__high="def f():\n    from .low import x\n", core__low="") == [
        "core/high.py:2 imports core.low inside a function: imports stand at the top of a module."
    ]


def test_a_module_without_a_layer_is_reported(tmp_path: Path) -> None:
    assert breaches(tmp_path, core__new="") == ["core/new.py has no layer: add 'core.new' to LAYERS where it belongs."]


def test_an_import_cycle_within_a_layer_is_reported(tmp_path: Path) -> None:
    assert breaches(tmp_path, core__pair__one="from . import two", core__pair__two="from . import one") == [
        "core.pair.one imports itself in a circle through core.pair.two.",
        "core.pair.two imports itself in a circle through core.pair.one.",
    ]


@pytest.mark.parametrize(
    ("module", "line", "sentence"),
    [
        ("core__low", "import pika", "core/low.py:1 imports pika: core may import the standard library only."),
        ("core__low", "import time", "core/low.py:1 imports time: core gets such things handed in."),
        (
            "broker__wire",
            "from django.db import models",
            "broker/wire.py:1 imports django: broker may import the standard library and pika only.",
        ),
        (
            "root",
            "import pika",
            "__init__.py:1 imports pika: the package root may import the standard library and django only.",
        ),
        (
            "runtime__work",
            "from made_up.broker.wire import x",
            "runtime/work.py:1 imports broker.wire: runtime knows only core, broker.base, runtime of the project.",
        ),
    ],
)
def test_an_import_that_its_package_may_not_have_is_reported(
    tmp_path: Path, module: str, line: str, sentence: str
) -> None:
    files = {"broker__wire": "", module: line}

    assert breaches(tmp_path, **files) == [sentence]
