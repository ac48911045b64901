# SPDX-License-Identifier: Apache-2.0
"""Faults that the checks must find. Each plants one, and says which results it must give.

The faults do not know who looks for them: `tubemq_spark.check` and the command `doctor` get the same options,
environment variables and servers. `seen_by` names who looks for a fault: only tasks see an executor's network and
clock. The driver's part is the same for both, so `check` looks for one of each kind only: each costs a Spark job.
"""

from __future__ import annotations

import errno
import os
import socket
import sys
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import google.protobuf
import pytest

from tests.certificates import Authority, Certificate, tls_files
from tubemq_spark.client import forget_servers
from tubemq_spark.client.consumer.broker_requests import GroupRequests
from tubemq_spark.client.net.rpc import send_requests
from tubemq_spark.client.settings import ClientSettings
from tubemq_spark.protocol.metadata import Address, Broker, Partition
from tubemq_spark.testing import EmbeddedTubeMQ
from tubemq_spark.testing.config import ServerConfig

Options = dict[str, str]
DOCTOR, CHECK = frozenset({"doctor"}), frozenset({"check"})
BOTH = DOCTOR | CHECK
QUICK = {"tubemq.rpc.timeoutMs": "400"}  # for servers that do not answer


@dataclass
class Ground:
    """Where faults are planted: a folder, this process's environment, and clusters that end with the test."""

    folder: Path
    monkeypatch: pytest.MonkeyPatch
    stack: ExitStack
    authority: Callable[[], Authority]
    other_authority: Callable[[], Authority]

    def cluster(self, **settings: Any) -> EmbeddedTubeMQ:
        """Return a cluster of one master and one broker with topic `orders` of 3 partitions."""
        return self.stack.enter_context(EmbeddedTubeMQ({"orders": 3}, **settings))

    def over_tls(self, certificate: Certificate, trusted: Authority, **options: str) -> tuple[EmbeddedTubeMQ, Options]:
        """Return a cluster with this certificate, and the options of a client that trusts `trusted`."""
        tubemq = self.cluster(tls=tls_files(certificate))
        tls = {"tubemq.tls.enabled": "true", "tubemq.tls.ca": str(trusted.own.cert)}
        return tubemq, {**reading(tubemq), "tubemq.master": tubemq.tls_master, **tls, **options}

    def use_python(self, code: str) -> None:
        """Let Spark's workers run an interpreter that runs `code` when it starts."""
        (self.folder / "sitecustomize.py").write_text(code)
        program = self.folder / "python"
        program.write_text(f'#!/bin/sh\nPYTHONPATH="{self.folder}:$PYTHONPATH" exec "{sys.executable}" "$@"\n')
        program.chmod(0o755)
        self.monkeypatch.setenv("PYSPARK_PYTHON", str(program))


@contextmanager
def open_ground(
    request: pytest.FixtureRequest, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> Generator[Ground, None, None]:
    """Yield the ground of a test. At the end its clusters stop, and the process forgets them."""
    monkeypatch.setattr("tubemq_spark.shipping._is_used", False)  # as `register` without `ship`
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    monkeypatch.delenv("PYSPARK_DRIVER_PYTHON", raising=False)
    with ExitStack() as stack:
        yield Ground(
            folder,
            monkeypatch,
            stack,
            lambda: request.getfixturevalue("authority"),  # only tests of TLS need openssl
            lambda: request.getfixturevalue("other_authority"),
        )
    forget_servers()


@dataclass(frozen=True)
class Fault:
    """`plant` returns the options to check. The checks in `finds`, and no others, must report problems; the details or
    remedies of one must contain `words`."""

    plant: Callable[[Ground], Options]
    finds: frozenset[str]
    words: str
    seen_by: frozenset[str] = DOCTOR


FAULTS: dict[str, Fault] = {}


def fault(
    *finds: str, words: str, seen_by: frozenset[str] = DOCTOR
) -> Callable[[Callable[[Ground], Options]], Callable[[Ground], Options]]:
    def add(plant: Callable[[Ground], Options]) -> Callable[[Ground], Options]:
        FAULTS[plant.__name__] = Fault(plant, frozenset(finds), words, seen_by)
        return plant

    return add


def reading(tubemq: EmbeddedTubeMQ, **options: str) -> Options:
    return {"tubemq.master": tubemq.master, "subscribe": "orders", "tubemq.group": "readers", **options}


# -- options -------------------------------------------------------------------------------------------------------


@fault("options", words="did you mean 'tubemq.group'?", seen_by=BOTH)
def unknown_option(ground: Ground) -> Options:
    return reading(ground.cluster(), **{"tubemq.grup": "readers"})


@fault("options", words="'headsIntervalMs' is 'soon'")
def bad_option_value(ground: Ground) -> Options:
    return reading(ground.cluster(), headsIntervalMs="soon")


@fault("options", words="'subscribe' or 'assign', not both")
def options_that_exclude_each_other(ground: Ground) -> Options:
    return reading(ground.cluster(), assign='{"orders":["1:0"]}')


@fault("options", words="cannot read /nonexistent/ca.pem")
def missing_file(ground: Ground) -> Options:
    return reading(ground.cluster(), **{"tubemq.tls.enabled": "true", "tubemq.tls.ca": "/nonexistent/ca.pem"})


# -- servers -------------------------------------------------------------------------------------------------------


@fault("master", words="answers like a TubeMQ broker")
def wrong_port(ground: Ground) -> Options:
    tubemq = ground.cluster()
    return reading(tubemq) | {"tubemq.master": tubemq.broker_address(1)}


@fault("connection", words="start the master")
def closed_port(ground: Ground) -> Options:
    tubemq = ground.cluster()
    tubemq.stop_master()
    return reading(tubemq)


@fault("connection", words="check that the name no-such-host.invalid can be resolved")
def unknown_host(ground: Ground) -> Options:
    return reading(ground.cluster()) | {"tubemq.master": "no-such-host.invalid:8715"}


@fault("framing", words="speaks the standard framing")
def wrong_framing(ground: Ground) -> Options:
    return reading(ground.cluster(), **{"tubemq.rpc.framing": "prefixed"})


@fault("framing", words="is the port of a TubeMQ master")
def another_kind_of_server(ground: Ground) -> Options:
    listener = ground.stack.enter_context(socket.create_server(("127.0.0.1", 0)))
    return reading(ground.cluster(), **QUICK) | {"tubemq.master": f"127.0.0.1:{listener.getsockname()[1]}"}


@fault("master", words="not a standby")
def only_a_standby(ground: Ground) -> Options:
    tubemq = ground.cluster(masters=2)
    return reading(tubemq) | {"tubemq.master": tubemq.master.split(",")[1]}


@fault("connection", words="start the broker", seen_by=BOTH)
def broker_down(ground: Ground) -> Options:
    tubemq = ground.cluster(brokers=2)
    tubemq.crash_broker(2)
    return reading(tubemq)


@fault("connection", words="open the port from this machine")
def broker_unreachable(ground: Ground) -> Options:
    """A socket whose queue is full answers no attempt to connect, as a firewall that drops packets."""
    tubemq = ground.cluster(brokers=2)
    host, _, port = tubemq.broker_address(2).partition(":")
    tubemq.crash_broker(2)
    full = ground.stack.enter_context(socket.create_server((host, int(port)), backlog=0))
    for _ in range(4):
        waiting = ground.stack.enter_context(socket.socket())
        waiting.setblocking(False)
        assert waiting.connect_ex(full.getsockname()) in (0, errno.EINPROGRESS)
    return reading(tubemq, **QUICK)


# -- TLS -----------------------------------------------------------------------------------------------------------


@fault("framing", words="set option 'tubemq.tls.enabled' to true")
def tls_expected_by_the_server(ground: Ground) -> Options:
    authority = ground.authority()
    tubemq, _ = ground.over_tls(authority.certify("expecting"), authority)
    return reading(tubemq, **QUICK) | {"tubemq.master": tubemq.tls_master}


@fault("tls", words="Check that it is the TLS port")
def tls_not_expected_by_the_server(ground: Ground) -> Options:
    tubemq, options = ground.over_tls(ground.authority().certify("plain"), ground.authority(), **QUICK)
    return options | {"tubemq.master": tubemq.master}


@fault("tls", words="'tubemq.tls.ca'", seen_by=BOTH)
def wrong_authority(ground: Ground) -> Options:
    return ground.over_tls(ground.authority().certify("unknown"), ground.other_authority())[1]


@fault("tls", words="certificate has expired")
def expired_certificate(ground: Ground) -> Options:
    authority = ground.authority()
    expired = authority.certify_between("expired", "20200101000000Z", "20210101000000Z")
    return ground.over_tls(expired, authority)[1]


@fault("tls", words="'tubemq.tls.verifyHostname'")
def host_name_that_does_not_match(ground: Ground) -> Options:
    authority = ground.authority()
    return ground.over_tls(authority.certify("elsewhere", "DNS:elsewhere.example"), authority)[1]


# -- topics, groups, credentials -----------------------------------------------------------------------------------


@fault("topic", words="the cluster has no topic order")
def unknown_topic(ground: Ground) -> Options:
    return reading(ground.cluster()) | {"subscribe": "order"}


@fault("topic", words="check its name")
def unknown_topic_to_write(ground: Ground) -> Options:
    return {"tubemq.master": ground.cluster().master, "topic": "order"}


@fault("topic", words="'tubemq.admin.address'")
def http_api_at_another_port(ground: Ground) -> Options:
    options = reading(ground.cluster(), subscribePattern="orders", **{"tubemq.admin.address": "127.0.0.1:1"})
    return {name: value for name, value in options.items() if name != "subscribe"}


@fault("topic", words="closed on broker 1, and Spark reads it")
def topic_closed_for_consumers(ground: Ground) -> Options:
    tubemq = ground.cluster()
    tubemq.close_topic("orders")
    return reading(tubemq)


@fault("group", words="authorise the group for the topic", seen_by=BOTH)
def group_not_allowed(ground: Ground) -> Options:
    tubemq = ground.cluster()
    tubemq.authorize("orders", "others")
    return reading(tubemq)


@fault("credentials", words="userName is Blank")
def no_credentials(ground: Ground) -> Options:
    return reading(ground.cluster(config=ServerConfig(start_consume_authenticate=True)))


@fault("credentials", words="options 'tubemq.user' and 'tubemq.password'")
def wrong_credentials(ground: Ground) -> Options:
    """TubeMQ's own authentication compares no password; others, which users may plug in, do."""
    tubemq = ground.cluster()
    tubemq.on("consumer_register_v2").fail(415, "the signature is wrong")
    return reading(tubemq, **{"tubemq.user": "reader", "tubemq.password": "wrong"})


@fault("holders", words="client another-client holds 3 of 3 partitions", seen_by=BOTH)
def somebody_holds_all_partitions(ground: Ground) -> Options:
    tubemq = ground.cluster()
    hold(tubemq, "readers", "another-client")
    return reading(tubemq)


def hold(tubemq: EmbeddedTubeMQ, group: str, client_id: str) -> None:
    """Claim all partitions of `orders` as a foreign client does."""
    host, _, port = tubemq.broker_address(1).partition(":")
    requests = GroupRequests(ClientSettings.from_options({"tubemq.master": tubemq.master}), group)
    for number in range(3):
        partition = Partition(1, "orders", number)
        send_requests(
            requests.settings,
            [requests.register(Broker(1, Address(host, int(port))), partition, client_id, position=0)],
        )


# -- clocks --------------------------------------------------------------------------------------------------------


@fault("clock", words="more than 20 s")
def clock_skew_with_authentication(ground: Ground) -> Options:
    tubemq = ground.cluster(config=ServerConfig(start_consume_authenticate=True))
    tubemq.clock.advance(60)
    return reading(tubemq, **{"tubemq.user": "reader", "tubemq.password": "secret"})


@fault("clock", words="behind the master's")
def clock_skew(ground: Ground) -> Options:
    tubemq = ground.cluster()
    tubemq.clock.advance(3600)
    return reading(tubemq)


@fault("clock", words="ahead of the driver's clock", seen_by=CHECK)
def clock_skew_of_executors(ground: Ground) -> Options:
    ground.use_python("import time\nnow = time.time\ntime.time = lambda: now() + 100\n")
    return reading(ground.cluster())


@fault("message-size", words="Spark can miss longer ones, because")
def a_long_limit_that_an_old_master_does_not_tell(ground: Ground) -> Options:
    tubemq = ground.cluster(release="1.2")
    tubemq.create_topic("orders", max_msg_size=4 << 20)
    return reading(tubemq, **{"tubemq.admin.address": tubemq.web_master})


@fault("message-size", words="if a topic's limit is above the cluster's, name the topic")
def a_master_that_does_not_tell_limits(ground: Ground) -> Options:
    tubemq = ground.cluster()
    tubemq.on("producer_register").fail(400, "no producer")
    return reading(tubemq)


# -- Python --------------------------------------------------------------------------------------------------------

_WITHOUT = """
import sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "{0}":
            raise ModuleNotFoundError("No module named " + name, name=name)

sys.meta_path.insert(0, Missing())
"""


@fault("tubemq-spark", words="does not have the package", seen_by=BOTH)
def package_missing_on_executors(ground: Ground) -> Options:
    ground.use_python(_WITHOUT.format("tubemq_spark"))
    return reading(ground.cluster())


@fault("tubemq-spark", words="0.0.9")
def other_version_on_executors(ground: Ground) -> Options:
    ground.use_python("import tubemq_spark\ntubemq_spark.__version__ = '0.0.9'\n")
    return reading(ground.cluster())


@fault("numpy", words="it is not installed pip install 'numpy>=1.21.3,<3'")
def numpy_missing_on_executors(ground: Ground) -> Options:
    ground.use_python(_WITHOUT.format("numpy"))
    return reading(ground.cluster())


@fault("protobuf", words="3.20.3 is too old")
def old_protobuf_on_executors(ground: Ground) -> Options:
    ground.use_python("import google.protobuf\ngoogle.protobuf.__version__ = '3.20.3'\n")
    return reading(ground.cluster())


@fault("protobuf", words="3.20.3 is too old")
def old_protobuf(ground: Ground) -> Options:
    ground.monkeypatch.setattr(google.protobuf, "__version__", "3.20.3")
    return reading(ground.cluster())


@fault("interpreter", words="PYSPARK_PYTHON is")
def two_interpreters(ground: Ground) -> Options:
    other = ground.folder / "other-python"
    os.symlink("/bin/sh", other)
    ground.monkeypatch.setenv("PYSPARK_DRIVER_PYTHON", str(other))
    return reading(ground.cluster())


@fault("connection", words="Connection refused", seen_by=CHECK)
def broker_unreachable_from_executors(ground: Ground) -> Options:
    tubemq = ground.cluster()
    port = tubemq.broker_address(1).partition(":")[2]
    ground.use_python(
        "import socket\n"
        "class Blocked(socket.socket):\n"
        "    def connect(self, address):\n"
        f"        if address[1] == {port}:\n"
        "            raise ConnectionRefusedError(111, 'Connection refused')\n"
        "        super().connect(address)\n"
        "socket.socket = Blocked\n"
    )
    return reading(tubemq)
