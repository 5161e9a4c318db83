"""The parameters that pika gets; and on a real node that TLS refuses what it must, with the reason."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pika
import pytest
from pika.credentials import PlainCredentials

from django_rmq_retry.amqp import Access, Host, Line, Tls
from django_rmq_retry.amqp.connection import parameters
from django_rmq_retry.amqp.session import Session
from django_rmq_retry.errors import BrokerRefused, BrokerUnreachable, ConfigurationError
from django_rmq_retry.messages import DONE
from tests.amqp.live import consuming, publishing, to
from tests.tooling.node import free_ports
from tests.tooling.services import Services, Unavailable, go_without
from tests.tooling.waiting import longer

# from Python 3.13 on certificates are held to the letter of RFC 5280, key identifiers included
CA = "-addext basicConstraints=critical,CA:true -addext keyUsage=critical,keyCertSign -addext subjectKeyIdentifier=hash"
LEAF = "[leaf]\nsubjectAltName=DNS:localhost,DNS:rabbit.bank\nauthorityKeyIdentifier=keyid\n"


def dialled(url: str, **options: Any) -> pika.ConnectionParameters:
    access = Access.parse(url, **options)
    return parameters(access, access.hosts[0], purpose="consume")


def login(found: pika.ConnectionParameters) -> tuple[str, str]:
    assert isinstance(found.credentials, PlainCredentials)
    return found.credentials.username, found.credentials.password


def test_pika_gets_every_part_of_an_access() -> None:
    found = dialled("amqp://app:pw@h1:5673,h2/v", heartbeat=5, blocked_timeout=6, connect_timeout=7)

    assert (found.host, found.port, found.virtual_host) == ("h1", 5673, "v")
    assert login(found) == ("app", "pw")
    assert (found.heartbeat, found.blocked_connection_timeout, found.stack_timeout) == (5, 6, 7)
    assert (found.socket_timeout, found.connection_attempts, found.ssl_options) == (7, 1, None)


def test_the_socket_timeout_is_shorter_than_the_connect_timeout() -> None:
    assert dialled("amqp://h", connect_timeout=60).socket_timeout == 10


def test_a_connection_has_a_name_an_operator_can_read() -> None:
    found = dialled("amqp://h", name="bank").client_properties

    assert found is not None
    assert found["connection_name"].startswith(f"django-rmq-retry consume bank {os.getpid()}@")


def test_credentials_are_asked_for_again_each_time() -> None:
    passwords = iter(["first", "second"])
    access = Access.parse("amqp://app@h", password="first")
    asked = Access.parse("amqp://app@h", password=lambda: next(passwords))

    assert login(parameters(access, Host("h", 1), purpose="publish")) == ("app", "first")
    assert login(parameters(asked, Host("h", 1), purpose="publish")) == ("app", "second")


def test_amqps_verifies_the_chain_and_the_host_name() -> None:
    options = dialled("amqps://rabbit.bank").ssl_options

    assert options is not None
    assert options.context.verify_mode.name == "CERT_REQUIRED"
    assert options.context.check_hostname
    assert options.server_hostname == "rabbit.bank"


def test_neither_parameters_nor_options_show_the_password() -> None:
    assert "s3cret" not in repr(dialled("amqps://app:s3cret@h"))


@pytest.mark.parametrize("tls", [Tls(ca_file="/nowhere.pem"), Tls(cert_file="/nowhere.pem")])
def test_a_certificate_that_is_not_there_is_named(tls: Tls) -> None:
    with pytest.raises(ConfigurationError, match=r"The TLS c.*_file.* '/nowhere\.pem' cannot be used: .*No such file"):
        dialled("amqps://h", tls=tls)


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two CAs, certificates that the first has signed for a server and a client, and that client's key encrypted."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl makes the certificates")
    folder = tmp_path_factory.mktemp("tls")
    folder.chmod(0o755)
    (folder / "ext").write_text(LEAF)

    def openssl(words: str) -> None:
        subprocess.run(["openssl", *words.split()], cwd=folder, check=True, capture_output=True)

    key = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes"
    for name in ("ca", "stranger"):
        openssl(f"req -x509 {key} -keyout {name}.key -out {name}.pem -days 2 -subj /CN={name} -config /dev/null {CA}")
    for name in ("server", "client"):
        openssl(f"req {key} -keyout {name}.key -out {name}.csr -subj /CN={name} -config /dev/null")
        openssl(
            f"x509 -req -in {name}.csr -CA ca.pem -CAkey ca.key -CAcreateserial -out {name}.pem -days 2"
            " -extfile ext -extensions leaf"
        )
        (folder / f"{name}.key").chmod(0o644)
    openssl("ec -in client.key -aes256 -passout pass:s3cret -out encrypted.key")
    return folder


@pytest.fixture(scope="module")
def tls_port(services: Services, certificates: Path) -> Iterator[int]:
    """The address at which this module's own node speaks TLS, and requires a certificate from its clients."""
    (port,) = free_ports(1)
    conf = (
        f"listeners.ssl.1 = 127.0.0.1:{port}",
        f"ssl_options.cacertfile = {certificates}/ca.pem",
        f"ssl_options.certfile = {certificates}/server.pem",
        f"ssl_options.keyfile = {certificates}/server.key",
        "ssl_options.verify = verify_peer",
        "ssl_options.fail_if_no_peer_cert = true",
    )
    try:
        node = services.private(conf=conf)
    except Unavailable as lack:
        go_without(lack)
    yield port
    node.remove()


def connected(port: int, tls: Tls, *, host: str = "localhost", scheme: str = "amqps") -> str:
    """Return 'open', or the error of a connection."""
    given = tls if scheme == "amqps" else None
    try:
        with Session(Access.parse(f"{scheme}://guest:guest@{host}:{port}", tls=given)):
            return "open"
    except (BrokerUnreachable, BrokerRefused) as error:
        return str(error)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("parts", "host", "outcome"),
    [
        ({"ca_file": "ca.pem"}, "localhost", "open"),
        ({"ca_file": "ca.pem", "server_name": "rabbit.bank"}, "127.0.0.1", "open"),
        ({"ca_file": "stranger.pem", "verify": False}, "127.0.0.1", "open"),
        ({"ca_file": "stranger.pem"}, "localhost", "certificate verify failed"),
        ({}, "localhost", "certificate verify failed"),
        ({"ca_file": "ca.pem"}, "127.0.0.1", "IP address mismatch"),
        ({"ca_file": "ca.pem", "server_name": "other.bank"}, "localhost", "Hostname mismatch"),
    ],
)
def test_tls_connects_with_valid_settings_and_names_the_reason_otherwise(
    tls_port: int, certificates: Path, parts: dict[str, Any], host: str, outcome: str
) -> None:
    files: dict[str, Any] = {
        "cert_file": str(certificates / "client.pem"),
        "key_file": str(certificates / "client.key"),
    }
    if "ca_file" in parts:
        parts = {**parts, "ca_file": str(certificates / parts["ca_file"])}

    assert outcome in connected(tls_port, Tls(**files, **parts), host=host)


@pytest.mark.slow
def test_a_client_without_its_certificate_is_turned_away(tls_port: int, certificates: Path) -> None:
    assert connected(tls_port, Tls(ca_file=str(certificates / "ca.pem"))) != "open"


@pytest.mark.slow
def test_plain_amqp_to_a_tls_port_never_opens(tls_port: int) -> None:
    assert connected(tls_port, Tls(), scheme="amqp") != "open"


@pytest.mark.slow
def test_messages_of_all_sizes_pass_through_tls_in_both_directions(tls_port: int, certificates: Path) -> None:
    tls = Tls(
        ca_file=str(certificates / "ca.pem"),
        cert_file=str(certificates / "client.pem"),
        key_file=str(certificates / "client.key"),
    )
    url = f"amqps://guest:guest@localhost:{tls_port}"
    bodies = [b"small %d" % number for number in range(500)] + [bytes(range(256)) * 16_000, b"", b"x" * 70_000, b"last"]
    with Session(Access.parse(url, tls=tls)) as session:
        session.ask(lambda channel, done: channel.queue_declare("q", callback=done))
    with publishing(url, tls=tls) as publisher:
        publisher.publish_many(to("q", body) for body in bodies)
    with consuming(url, Line(queue="q", prefetch=1000), tls=tls) as (source, seen):
        arrivals = [seen.next() for _ in bodies]
        for arrival in arrivals:
            source.settle(arrival, DONE)
        source.stop()
        assert seen.has_closed.wait(longer(5))

    assert [arrival.body for arrival in arrivals] == bodies
    with Session(Access.parse(url, tls=tls)) as session:
        left = session.ask(lambda channel, done: channel.queue_declare("q", callback=done))
    assert left.method.message_count == 0


def test_an_encrypted_key_is_refused_instead_of_asked_for_on_the_terminal(certificates: Path) -> None:
    tls = Tls(cert_file=str(certificates / "client.pem"), key_file=str(certificates / "encrypted.key"))

    with pytest.raises(ConfigurationError, match="key_file is encrypted"):
        dialled("amqps://h", tls=tls)
