# SPDX-License-Identifier: Apache-2.0
"""The client's options: masters, credentials, TLS, timeouts and connections."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.certificates import Authority, Certificate, tls_files
from tests.clocks import SkippingClock, UseTimings
from tests.network.proxy import Network
from tests.peers import refused_address
from tests.source_options.conftest import Start
from tests.waiting import wait_until
from tests.without_spark.source import Stream, bodies, fill, options, read, read_batch
from tubemq_spark.client.net import pool
from tubemq_spark.client.net.connection import Connection, connect
from tubemq_spark.datasource import TubeMQDataSource
from tubemq_spark.errors import AuthError, ServerError, TransportError, TubeMQError
from tubemq_spark.protocol.auth import Credentials, master_certificate
from tubemq_spark.protocol.metadata import Address, Broker, parse_addresses
from tubemq_spark.protocol.pb import MasterService_pb2 as master_pb
from tubemq_spark.testing import EmbeddedTubeMQ, ServerConfig
from tubemq_spark.testing.authentication import AccessCheck

# Masters


@pytest.mark.option("tubemq.master")
def test_any_master_that_answers_is_used(start: Start) -> None:
    tubemq = start({"t": 1}, masters=2)
    sent = fill(tubemq, "t", 5)
    first, second = tubemq.master.split(",")
    tubemq.switch_master()
    tubemq.stop_master(1)
    assert bodies(read_batch(tubemq, "t", tubemq_master=f"{first},{second}")) == sent
    with pytest.raises(TransportError, match=rf"no master answered: .*{first}"):
        read_batch(tubemq, "t", tubemq_master=first, tubemq_retry_maxElapsedMs=0)


@pytest.mark.option("tubemq.master")
def test_task_follows_a_broker_that_moved_after_the_plan(start: Start, use_timings: UseTimings) -> None:
    """A DataFrame may be used long after it was planned; the broker may be on another host then."""
    use_timings(broker_lookup_after=0.0)
    tubemq = start({"t": 2})
    sent = fill(tubemq, "t", 20)
    source = TubeMQDataSource(options(tubemq, "t"))
    reader: Any = source.reader(source.schema())
    old = Broker(1, refused_address())
    tasks = [
        replace(task, ranges=tuple((one, replace(snapshot, broker=old)) for one, snapshot in task.ranges))
        for task in reader.partitions()
    ]
    assert sorted(bodies(read(reader, tasks))) == sorted(sent)


# Credentials


@pytest.fixture
def strict(start: Start) -> EmbeddedTubeMQ:
    """A cluster whose master requires credentials."""
    tubemq = start({"t": 1}, config=ServerConfig(start_consume_authenticate=True))
    fill(tubemq, "t", 5)
    return tubemq


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> list[master_pb.AuthenticateInfo]:
    """The credentials that clients send to the master."""
    found: list[master_pb.AuthenticateInfo] = []
    check = AccessCheck.check_credentials

    def note(access: AccessCheck, info: master_pb.MasterCertificateInfo, *, produce: bool) -> None:
        found.append(info.authInfo)
        check(access, info, produce=produce)

    monkeypatch.setattr(AccessCheck, "check_credentials", note)
    return found


@pytest.mark.option("tubemq.user", "tubemq.password", "tubemq.passwordFile")
@pytest.mark.parametrize("by_file", [False, True])
def test_credentials_are_sent_to_the_master(
    strict: EmbeddedTubeMQ, shown: list[master_pb.AuthenticateInfo], tmp_path: Path, by_file: bool
) -> None:
    """The user's name, and a signature that needs the password."""
    file = tmp_path / "password"
    file.write_text("p4ssw0rd\nnot this\n")
    secret = {"tubemq_passwordFile": str(file)} if by_file else {"tubemq_password": "p4ssw0rd"}
    assert len(read_batch(strict, "t", tubemq_user="ann", **secret)) == 5
    assert shown
    for claim in shown:
        made = master_certificate(Credentials("ann", "p4ssw0rd"), claim.timestamp, claim.nonce).authInfo
        assert (claim.userName, claim.signature) == ("ann", made.signature)


@pytest.mark.option("tubemq.user")
def test_strict_master_refuses_a_client_without_a_user(strict: EmbeddedTubeMQ) -> None:
    with pytest.raises(AuthError, match="415"):
        read_batch(strict, "t")


# TLS


@pytest.fixture(scope="module")
def secure(authority: Authority, server_cert: Certificate) -> Iterator[EmbeddedTubeMQ]:
    """A cluster that requires client certificates."""
    with EmbeddedTubeMQ({"t": 1}, tls=tls_files(server_cert, authority)) as tubemq:
        fill(tubemq, "t", 5)
        yield tubemq


@pytest.fixture
def known(authority: Authority, client_cert: Certificate) -> dict[str, object]:
    """The options of a client that the cluster accepts."""
    return {"tubemq_tls_ca": authority.own.cert, "tubemq_tls_cert": client_cert.cert, "tubemq_tls_key": client_cert.key}


def read_securely(tubemq: EmbeddedTubeMQ, **given: object) -> int:
    """Return how many rows are read over TLS."""
    options = {"tubemq_master": tubemq.tls_master, "tubemq_tls_enabled": "true", "tubemq_retry_maxElapsedMs": 0}
    return len(read_batch(tubemq, "t", **{**options, **given}))


@pytest.mark.option("tubemq.tls.enabled", "tubemq.tls.ca", "tubemq.tls.cert", "tubemq.tls.key")
def test_two_way_tls_needs_all_certificates(secure: EmbeddedTubeMQ, known: dict[str, object]) -> None:
    """Without any one of them, the connection fails."""
    assert read_securely(secure, **known) == 5
    for left_out in (["tubemq_tls_ca"], ["tubemq_tls_cert", "tubemq_tls_key"]):
        with pytest.raises(TubeMQError):
            read_securely(secure, **{name: value for name, value in known.items() if name not in left_out})
    with pytest.raises(TubeMQError):
        read_batch(secure, "t", tubemq_master=secure.tls_master, tubemq_retry_maxElapsedMs=0)


@pytest.mark.option("tubemq.tls.keyPassword")
def test_key_may_be_encrypted(
    secure: EmbeddedTubeMQ, known: dict[str, object], client_cert: Certificate, tmp_path: Path
) -> None:
    locked = tmp_path / "locked.key"
    encrypt = ("openssl", "pkey", "-in", client_cert.key, "-aes256", "-passout", "pass:s3cret", "-out", locked)
    subprocess.run(encrypt, check=True, capture_output=True)
    given = {**known, "tubemq_tls_key": locked}
    assert read_securely(secure, **given, tubemq_tls_keyPassword="s3cret") == 5
    for password in (None, "another"):
        with pytest.raises(TubeMQError, match=r"tubemq\.tls\.key") as caught:
            read_securely(secure, **given, tubemq_tls_keyPassword=password)
        assert "another" not in str(caught.value)


@pytest.mark.option("tubemq.tls.verifyHostname")
def test_verify_hostname_checks_the_certificates_host(secure: EmbeddedTubeMQ, known: dict[str, object]) -> None:
    """The certificate names 127.0.0.1; the server can also be reached as localhost."""
    given = {**known, "tubemq_master": secure.tls_master.replace("127.0.0.1", "localhost")}
    for verify in (None, "true"):
        with pytest.raises(TubeMQError, match="localhost"):
            read_securely(secure, **given, tubemq_tls_verifyHostname=verify)
    assert read_securely(secure, **given, tubemq_tls_verifyHostname="false") == 5


# Requests


@pytest.mark.option("tubemq.rpc.timeoutMs")
def test_request_ends_at_its_timeout(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    tubemq = start({"t": 1})
    given = {"tubemq_rpc_timeoutMs": 200, "tubemq_retry_maxElapsedMs": 0}
    waits: list[float] = []
    submit = Connection.submit

    def note(made: Connection, *args: Any) -> int:
        waits.append(args[-1])
        return submit(made, *args)

    monkeypatch.setattr(Connection, "submit", note)
    with tubemq.on("consumer_register_v2").silence(), pytest.raises(TransportError, match="in time"):
        read_batch(tubemq, "t", **given)
    assert set(waits) == {0.2}


@pytest.mark.option("tubemq.rpc.framing")
@pytest.mark.parametrize("spoken", ["standard", "prefixed"])
@pytest.mark.parametrize("asked", ["standard", "prefixed", "auto", None])
def test_framing_is_the_given_one_or_detected(start: Start, spoken: str, asked: str | None) -> None:
    tubemq = start({"t": 1}, release="1.2" if spoken == "prefixed" else "2.5")
    assert tubemq.framing.value == spoken
    sent = fill(tubemq, "t", 5)
    if asked in (spoken, "auto", None):
        assert bodies(read_batch(tubemq, "t", tubemq_rpc_framing=asked)) == sent
    else:
        with pytest.raises(TubeMQError, match=rf"'tubemq\.rpc\.framing' \({asked} was used\)"):
            read_batch(tubemq, "t", tubemq_rpc_framing=asked, tubemq_rpc_timeoutMs=200, tubemq_retry_maxElapsedMs=0)


@pytest.mark.option("tubemq.retry.maxElapsedMs")
@pytest.mark.parametrize(("given", "enough"), [(0, False), (30_000, True)])
def test_operation_is_retried_up_to_the_maximum_time(start: Start, given: int, enough: bool) -> None:
    """The time counts from the last progress."""
    tubemq = start({"t": 1})
    sent = fill(tubemq, "t", 5)
    with tubemq.on("get_message", times=5).fail(503) as refused:
        if enough:
            assert bodies(read_batch(tubemq, "t", tubemq_retry_maxElapsedMs=given)) == sent
            assert refused.fired == 5
        else:
            with pytest.raises(ServerError, match="nothing came for 0 s, the last answer to a fetch was 503"):
                read_batch(tubemq, "t", tubemq_retry_maxElapsedMs=given)


# Connections


@pytest.fixture
def connections(monkeypatch: pytest.MonkeyPatch) -> list[Connection]:
    """All connections that are opened from now on."""
    made: list[Connection] = []

    def note(address: Address, *args: Any) -> Connection:
        made.append(connect(address, *args))
        return made[-1]

    monkeypatch.setattr(pool, "connect", note)
    return made


@pytest.mark.option("tubemq.brokers.addresses")
def test_brokers_are_reached_at_the_given_addresses(start: Start) -> None:
    """Of one broker; the others are reached where the master says."""
    tubemq = start({"t": 2}, brokers=2)
    sent = fill(tubemq, "t", 20)
    with Network() as network:
        forwarded = network.proxy(parse_addresses(tubemq.broker_address(2))[0])
        assert sorted(bodies(read_batch(tubemq, "t", tubemq_brokers_addresses=f"2={forwarded.address}"))) == sorted(
            sent
        )
        assert forwarded.connections
    with pytest.raises(TransportError, match=rf"broker 2 at {forwarded.address}"):
        read_batch(tubemq, "t", tubemq_brokers_addresses=f"2={forwarded.address}", tubemq_retry_maxElapsedMs=0)


@pytest.mark.option("tubemq.connections.shared")
@pytest.mark.parametrize("given", [None, "true", "false"])
def test_tasks_share_connections_or_open_their_own(
    start: Start, connections: list[Connection], given: str | None
) -> None:
    tubemq = start({"t": 6})
    fill(tubemq, "t", 60)
    assert len(read_batch(tubemq, "t", tubemq_connections_shared=given)) == 60
    if given == "false":
        assert len(connections) >= 6
        assert all(one.closed for one in connections)
    else:
        assert len(connections) == 2  # the master and the broker
        assert not any(one.closed for one in connections)


@pytest.mark.option("tubemq.connections.idleMs")
@pytest.mark.parametrize(("given", "closed"), [(None, False), (60_000, True)])
def test_idle_connection_is_closed(
    start: Start, connections: list[Connection], skipping_clock: SkippingClock, given: int | None, closed: bool
) -> None:
    tubemq = start({"t": 1})
    fill(tubemq, "t", 5)
    stream = Stream(tubemq, "t", tubemq_connections_idleMs=given)
    with stream.running() as run:
        run.next()
        before = list(connections)
        assert not any(one.closed for one in before)
        skipping_clock.advance(120.0)
        run.latest()
        if closed:  # a connection that a heartbeat uses now is closed a little later
            wait_until(lambda: (run.latest(), all(one.closed for one in before))[1])
        else:
            assert not any(one.closed for one in before)
