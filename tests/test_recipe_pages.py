"""The recipes do what they say: their code runs in the test kit, and their manifest starts what it names."""

import re
import shlex
import sys
import time
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import pytest
import yaml
from django.core.management import get_commands, load_command_class
from django.db import OperationalError
from django.dispatch import Signal

from django_rmq_retry import Handler, Raw, publish, signals
from django_rmq_retry.conf import settings
from django_rmq_retry.testing import RmqTest, isolated_handlers
from tests.tooling.pages import DOCS, blocks, page, readers_project

Recipe = Callable[[str], dict[str, Any]]


@pytest.fixture
def recipe(monkeypatch: pytest.MonkeyPatch) -> Iterator[Recipe]:
    """Execute the Python of a page, and return its names."""

    def execute(name: str) -> dict[str, Any]:
        # One module stands for all of the page's files.
        module = ModuleType("shop.handlers")
        namespace = vars(module)
        for block in blocks(page(name)):
            if block.kind == "python":
                if file := re.match(r"# (\w+)/(\w+)\.py\n", block.text):
                    package = ModuleType(file[1])
                    package.__path__ = []
                    monkeypatch.setitem(sys.modules, file[1], package)
                    monkeypatch.setitem(sys.modules, f"{file[1]}.{file[2]}", module)
                exec(compile("\n" * block.line + block.text, name, "exec"), namespace)  # noqa: S102 - our own page
        return namespace

    for one in vars(signals).values():
        if isinstance(one, Signal):
            monkeypatch.setattr(one, "receivers", [])
    monkeypatch.setenv("PAYLOAD_KEY", "x" * 43 + "=")
    with isolated_handlers():
        yield execute


def outcomes(rmq: RmqTest, handler: Handler[Any]) -> list[str]:
    return [tried.verdict.kind.value for tried in rmq.attempts(handler)]


@pytest.fixture
def codecs(recipe: Recipe) -> dict[str, Any]:
    pytest.importorskip("cryptography.fernet")
    return recipe("codecs.md")


def test_an_encrypted_message_is_read_by_its_handler_alone(
    rmq: RmqTest, codecs: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    secret = codecs["charge_secret"]
    secret.publish({"iban": "DE02"})
    rmq.drain()

    assert capsys.readouterr().out == "DE02\n"
    body = secret.message({"iban": "DE02"}).body
    assert b"DE02" not in body
    assert body.startswith(b"gAAAA")


def test_a_message_with_another_key_is_parked_and_read_once_both_keys_are_known(
    rmq: RmqTest, codecs: dict[str, Any]
) -> None:
    old, new = "o" * 43 + "=", "n" * 42 + "A="
    body = codecs["Encrypted"]([old]).encode({"iban": "DE02"})
    publish(body, routing_key="payments.secret", codec=Raw())
    rmq.drain()

    assert rmq.parked(codecs["charge_secret"]).code == "undecodable_body"
    assert codecs["Encrypted"]([new, old]).decode(body) == {"iban": "DE02"}


def test_a_small_body_that_expands_to_a_huge_one_is_refused(codecs: dict[str, Any]) -> None:
    codec = codecs["Compressed"]()
    huge = codec.encode("a" * codec.largest)

    assert len(huge) < 20_000
    assert codec.decode(codec.encode({"payment": 7})) == {"payment": 7}
    with pytest.raises(ValueError, match="larger than"):
        codec.decode(huge)


@pytest.mark.django_db
def test_a_cron_job_that_runs_three_times_has_its_effect_once(rmq: RmqTest, recipe: Recipe) -> None:
    with readers_project():
        names = recipe("cron.md")
    for _ in range(3):
        names["Command"]().handle()
    rmq.drain()

    assert len({message.id for message in rmq.published(names["write_statements"])}) == 1
    assert len(rmq.published(names["write_statements"])) == 3
    assert outcomes(rmq, names["write_statements"]) == ["ack"]


@pytest.mark.django_db
def test_a_chain_whose_first_step_runs_twice_has_its_second_effect_once(rmq: RmqTest) -> None:
    [chain] = [block.text for block in blocks(page("celery-features.md")) if "def receipt" in block.text]
    names: dict[str, Any] = {"__name__": "payments.handlers"}
    with readers_project(), isolated_handlers():
        exec(chain, names)  # noqa: S102 - our own page
        rmq.fail_next(names["charge"], "crash before ack")
        names["charge"].publish({"payment": 7})
        rmq.drain()

        assert names["charge_at_bank"].call_args_list == [((7,), {"idempotency_key": "charge-7"})] * 2
        assert len(rmq.published(names["receipt"])) == 2
        names["send_receipt"].assert_called_once_with(7)


def test_a_retry_keeps_the_priority_of_its_message(rmq: RmqTest, recipe: Recipe) -> None:
    send_mail = recipe("priorities.md")["send_mail"]
    rmq.fail_next(send_mail, ValueError("the server is busy"))
    send_mail.publish({"mail": 3}, priority=9)
    rmq.drain()

    last = rmq.attempts(send_mail)[-1]
    assert (last.number, last.message.properties.priority) == (2, 9)


def test_an_outage_of_the_database_parks_nothing_behind_a_breaker(rmq: RmqTest, recipe: Recipe) -> None:
    book = recipe("database-down.md")["book"]
    rmq.fail_next(book, OperationalError("the server closed the connection"), times=20)
    book.publish({"payment": 7})
    rmq.drain()

    assert rmq.all_parked(book) == []
    assert [(tried.number, tried.error) for tried in rmq.attempts(book)] == [(1, None)]


@pytest.mark.django_db
def test_an_untrusted_order_is_taken_once_and_must_fit(rmq: RmqTest, recipe: Recipe) -> None:
    pytest.importorskip("msgspec")
    take_order = recipe("untrusted.md")["take_order"]
    for number in ("first", "second"):
        take_order.publish({"order": "A-1", "amount": 5}, message_id=number)
    publish({"order": "A-2", "amount": "much"}, routing_key="partner.orders")
    rmq.drain()

    assert outcomes(rmq, take_order).count("ack") == 1
    assert [parked.code for parked in rmq.all_parked(take_order)] == ["invalid"]


def test_an_old_rate_is_skipped_and_a_new_one_is_not(rmq: RmqTest, recipe: Recipe) -> None:
    with readers_project():
        update_rate = recipe("recipes.md")["update_rate"]
    for age in (0, 301):
        update_rate.publish({}, timestamp=int(time.time()) - age)
    rmq.drain()

    assert outcomes(rmq, update_rate) == ["ack", "discard"]


def manifest() -> dict[str, Any]:
    text = page("kubernetes.md").with_suffix(".yaml").read_text()
    return {part["kind"]: part for part in yaml.safe_load_all(text)}


def containers() -> list[dict[str, Any]]:
    pods = [manifest()[kind]["spec"]["template"]["spec"] for kind in ("Job", "Deployment")]
    return [one for pod in pods for one in (*pod.get("initContainers", ()), *pod["containers"])]


def test_each_command_of_the_manifest_exists_and_takes_its_options() -> None:
    found = []
    for container in containers():
        words = container["command"]
        for part in [shlex.split(line) for line in words[2].split("&&")] if words[0] == "sh" else [words]:
            assert part[:2] == ["python", "manage.py"]
            name, *options = part[2:]
            found.append(name)
            parser = load_command_class(get_commands()[name], name).create_parser("manage.py", name)
            assert parser.parse_known_args(options)[1] == []

    assert found == ["migrate", "rmq_declare", "migrate", "rmq_declare", "rmq_consume"]


def test_the_parts_of_the_manifest_fit_together() -> None:
    deployment = manifest()["Deployment"]["spec"]
    pod = deployment["template"]["spec"]
    [consumer] = pod["containers"]
    [port] = consumer["ports"]

    assert deployment["selector"]["matchLabels"] == deployment["template"]["metadata"]["labels"]
    assert pod["terminationGracePeriodSeconds"] >= settings().shutdown_timeout + 10
    assert f"0.0.0.0:{port['containerPort']}" in consumer["command"]
    assert {probe: consumer[probe]["httpGet"]["path"] for probe in ("livenessProbe", "readinessProbe")} == {
        "livenessProbe": "/livez",
        "readinessProbe": "/readyz",
    }
    assert {consumer[probe]["httpGet"]["port"] for probe in ("livenessProbe", "readinessProbe")} == {port["name"]}


def test_the_secret_is_created_by_a_command_and_never_applied_with_the_manifest() -> None:
    [shown] = [block.text for block in blocks(page("kubernetes.md")) if "create secret" in block.text]
    name, *given = shlex.split(shown.replace("\\\n", "").partition("create secret generic ")[2])
    literals = dict(word.removeprefix("--from-literal=").split("=", 1) for word in given)

    assert "Secret" not in manifest()
    assert {given["secretRef"]["name"] for one in containers() for given in one["envFrom"]} == {name}
    assert list(literals) == ["SECRET_KEY", "RMQ_URL", "DATABASE_URL"]


def test_a_restricted_namespace_takes_the_pods_of_the_manifest() -> None:
    pods = [manifest()[kind]["spec"]["template"]["spec"]["securityContext"] for kind in ("Job", "Deployment")]

    assert pods == [{"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}] * 2
    for one in containers():
        assert one["securityContext"] == {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    # A user by name could be root, as far as the kubelet can tell.
    [image] = [block.text for block in blocks(page("kubernetes.md")) if block.kind == "dockerfile"]
    assert re.search(r"^USER [1-9]\d*$", image, re.MULTILINE)


def test_the_policy_of_the_manifest_guards_the_port_of_its_consumers() -> None:
    policy, template = manifest()["NetworkPolicy"]["spec"], manifest()["Deployment"]["spec"]["template"]

    assert policy["podSelector"]["matchLabels"] == template["metadata"]["labels"]
    assert policy["ingress"][0]["ports"] == [{"port": template["spec"]["containers"][0]["ports"][0]["name"]}]


def test_the_index_leads_to_every_recipe() -> None:
    index = page("recipes.md").read_text()
    recipes = sorted(path.name for path in (DOCS / "recipes").glob("*.md"))

    assert len(recipes) > 10
    assert [name for name in recipes if f"](recipes/{name})" not in index] == []
