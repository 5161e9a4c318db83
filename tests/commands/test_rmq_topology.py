"""rmq_topology: drawings and definitions of what the handlers need, without a broker."""

import json
from typing import Any
from xml.etree import ElementTree

import pytest

from tests.commands.running import Exit, run
from tests.tooling.vhosts import Vhost

pytestmark = pytest.mark.usefixtures("charge")


@pytest.fixture(autouse=True)
def no_broker(settings: Any) -> None:
    settings.RMQ_RETRY = {"URL": "amqp://app:secret@127.0.0.1:1/pay"}


def test_the_mermaid_format_is_a_flowchart() -> None:
    ran = run("rmq_topology", "--format", "mermaid")

    assert ran.lines[0] == ["flowchart LR"]
    assert '  n0 -->|"charge.#35;"| n1\n' in ran.out


def test_the_svg_format_is_a_well_formed_document() -> None:
    root = ElementTree.fromstring(run("rmq_topology", "--format", "svg").out)  # noqa: S314  # our own

    assert root.tag == "{http://www.w3.org/2000/svg}svg"


def test_the_definitions_name_the_virtual_host_of_the_url() -> None:
    told = json.loads(run("rmq_topology", "--format", "definitions").out)

    assert {one["vhost"] for kind in told.values() for one in kind} == {"pay"}
    assert [one["name"] for one in told["exchanges"]] == ["payments"]


def test_an_unknown_format_is_refused() -> None:
    assert run("rmq_topology", "--format", "png").code == Exit.ERROR


@pytest.mark.contract
def test_imported_definitions_equal_a_declaration(vhost: Vhost, settings: Any) -> None:
    settings.RMQ_RETRY = {"URL": vhost.url, "OPERATORS": {"MANAGEMENT_URL": vhost.management.url}}
    told = json.loads(run("rmq_topology", "--format", "definitions").out)

    vhost.management.call("POST", f"definitions/{vhost.name}", told)

    assert run("rmq_declare", "--check").code == Exit.DONE
    assert vhost.bindings() == {("payments", "payments.charge", "charge.#")}
