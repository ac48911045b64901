# SPDX-License-Identifier: Apache-2.0
"""Shrunk scripts whose replies differed once, with the reason of the real server's reply."""

from __future__ import annotations

from collections.abc import Iterator

from tests.differential.script import Script, Step


def _get(**more: object) -> Step:
    return {"call": "get", "client": "a", "group": "g", "partition": 0, **more}


def _register(**more: object) -> Step:
    return {"call": "register", "client": "a", "group": "g", "partition": 0, "status": 0, **more}


def _raw(server: str, service: int, method: int, **more: object) -> Script:
    return Script("calm1", ({"call": "raw", "server": server, "service": service, "method": method, **more},))


def _scripts() -> Iterator[Script]:
    # The broker's code marks the end of a store by a negative position, and there is no -0. So in an empty store the
    # broker continues to memory and files, as the read policy says (DefaultOffsetManager.getOffset).
    for priority in (1, 202, 303, -2):
        for mode in ({"manual": True}, {"last": True}, {}):
            yield Script("calm1", (_register(priority=priority), _get(**mode), _get(**mode)))

    # A memory block has half of the size in the topic's settings: 1.5 MiB and 5120 entries (TopicMetadata).
    full = {"call": "bulk", "client": "p", "partition": 0}
    for count, size in ((5119, 10), (5120, 10), (5121, 10), (3479, 400), (3480, 400)):
        yield Script(
            "calm1",
            (
                {**full, "count": count, "size": size},
                _register(at=("base", 0), priority=101),
                _get(manual=True),
                _get(manual=True),
            ),
        )

    # The cluster has no configured sizes, so their id is -2. The reply has them if the client's id differs; a client
    # that sends no id counts as 0 (TMaster.buildApprovedClientConfig).
    producer = {"client": "x", "topics": ("calm1",), "sum": -1}
    for known in ({}, {"config": -2}, {"config": 5}):
        yield Script("calm1", ({"call": "producer_register", **producer, **known},))
        yield Script(
            "calm1",
            ({"call": "producer_register", **producer}, {"call": "producer_heartbeat", **producer, **known}),
        )

    # The server first checks the method, then the message. Only then it checks the time left, and whether the service
    # has the method (NettyRpcServer, PbEnDecoder).
    for server, service in (("master", 1), ("broker", 2), ("broker", 3), ("broker", 9)):
        for method in (0, 7, 8, 9, 10, 12, 13, 17, 20, 31, 99, -1):
            yield _raw(server, service, method, data="ff")
            yield _raw(server, service, method, data="ff", timeout=0)
            yield _raw(server, service, method, data="")

    # A stream that ends within a length is no protobuf error (protobuf's parseDelimitedFrom).
    for server in ("master", "broker"):
        for data in ("00", "ff", "0102030405", "ffffffff0f", "0208", "020800"):
            yield Script("calm1", ({"call": "no_envelope", "server": server, "data": data},))

    # The brokers' own topic is deployed like any other, and consumers may subscribe to it.
    history = {"client": "a", "group": "g", "topics": ("__offset_history__",)}
    yield Script(
        "calm1",
        (
            {"call": "member_register", **history, "sources": 0, "node": 0},
            {"call": "member_meta", "client": "a", "group": "g", "brokers": -2, "metas": -2},
            {"call": "balanced_register", **history, "group": "h"},
        ),
    )


REGRESSIONS = tuple(_scripts())
