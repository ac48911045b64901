# SPDX-License-Identifier: Apache-2.0
"""Fixed scripts: those whose replies differed once, with the reason of the real server's reply; and all refusals."""

from __future__ import annotations

from collections.abc import Iterator

from tests.differential.script import Script, Step


def _get(**more: object) -> Step:
    return {"call": "get", "client": "a", "group": "g", "partition": 0, **more}


def _register(**more: object) -> Step:
    return {"call": "register", "client": "a", "group": "g", "partition": 0, "status": 0, **more}


def _send(**more: object) -> Step:
    return {"call": "send", "client": "p", "topic": None, "partition": 0, "size": 10, **more}


def _member(**more: object) -> Step:
    usual: Step = {"call": "member_register", "client": "a", "group": "g", "host": "h", "sources": -1, "node": 0}
    return {**usual, "topics": ("calm1",), **more}


def _balanced(**more: object) -> Step:
    return {"call": "balanced_register", "client": "a", "group": "g", "host": "h", "topics": ("calm1",), **more}


def _bound(**more: object) -> Step:
    return _balanced(bound=True, session="k", total=2, **more)


def _producer(call: str, **more: object) -> Step:
    return {"call": f"producer_{call}", "client": "x", "host": "h", "topics": ("calm1",), "sum": -1, **more}


def _of_claims(call: str, **more: object) -> Step:
    return {"call": call, "client": "a", "group": "g", "topic": None, "partition": 0, **more}


def _of_members(call: str, **more: object) -> Step:
    return {"call": f"member_{call}", "client": "a", "group": "g", **more}


_META = _of_members("meta", brokers=-2, metas=-2)
_TOO_MANY = tuple(f"t{number}" for number in range(1025))


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

    # A stream that ends within a length is not a protobuf error (protobuf's parseDelimitedFrom).
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

    yield from _refused()
    yield from _disagreeing()
    yield from _reading()


def _refused() -> Iterator[Script]:
    """Yield requests with a wrong parameter, after which the server answers as before."""
    to_broker = (
        _send(),
        *(_of_claims(call, status=0) for call in ("register", "unregister", "get", "commit")),
        _of_claims("heartbeat", partitions=(0,)),
    )
    to_master = (
        _member(),
        _balanced(),
        {"call": "balanced_heartbeat", "client": "a", "group": "g"},
        *(_of_members(call) for call in ("heartbeat", "close")),
        _META,
        *(_producer(call) for call in ("register", "heartbeat", "close")),
    )
    wrong: tuple[Step, ...] = (
        *({"client": text} for text in (" ", "\t")),
        *({"topic": text} for text in ("", "nowhere", "__offset_history__", " calm1 ")),
        *({"topics": names} for names in ((), (" ", ""), ("nowhere",), ("calm1", "nowhere"), _TOO_MANY)),
        {"topics": ("calm1", " __offset_history__ ")},
        *({"partition": number} for number in (1, 7)),
        {"group": ""},
        {"host": ""},
        {"client": "", "host": ""},
        {"host": "", "group": ""},
        {"group": "", "topic": ""},
    )
    too_long: tuple[Step, ...] = ({"client": "x" * 1025}, {"group": "x" * 1025}, {"host": "h" * 257})
    for step in (*to_broker, *to_master):
        for fields in (*wrong, *too_long):
            if fields.keys() <= step.keys():
                yield Script("calm1", ({**step, **fields}, _META, step))

    odd_sends: tuple[Step, ...] = (
        *({"size": 0}, {"sum": "wrong"}, {"sum": "none"}),
        *({"flag": 1, "size": size} for size in (1, 3, 4, 5, 8)),
        *({"size": 1024 * 1024 + 10240 + more} for more in (0, 1)),
    )
    for fields in odd_sends:
        yield Script("calm1", (_send(**fields), _send(), _register(at=("base", 0)), _get(manual=True), _get()))
    for op in (0, 7, 30, 33, -1):
        yield Script("calm1", (_register(op=op),))
    for shape in ("colons", "short", "word"):
        yield Script("calm1", (_register(), _of_claims("heartbeat", partitions=(0,), shape=shape)))

    for filters in ("calm1", "calm1#", "#", "calm1 calm3#x", "", "\t#x", "calm1#\t", "calm3#x"):
        for member in (_member, _balanced):
            yield Script("calm1", (member(conditions=tuple(filters.split(" "))), member(client="b"), _META))
    for node in (-1, 2):
        yield Script("calm1", (_member(sources=2, node=node),))
    odd_bounds: tuple[Step, ...] = (
        {"session": " "},
        {"total": 0},
        *({"required": text} for text in ("1:calm1:0", "1:a=5", "1:calm3:0=5", "1:calm1:0=x", f"1:calm1:0={1 << 63}")),
    )
    for fields in odd_bounds:
        yield Script("calm1", ({**_bound(), **fields},))
    known = {"brokers": -2, "metas": -2}
    for text in ("a", "a#1", "a#x:1", "a#1:x", "a-1:0", "a#", "a#1:0,,1:1", "", " ", "a#1:0", "a#1:0,2:1,", "a#9:0"):
        yield Script("calm1", (_member(), _of_members("heartbeat", **known, reported=(text,))))
        yield Script("calm1", (_member(**known, reported=(text,)),))


def _disagreeing() -> Iterator[Script]:
    """Yield registrations of two members of a group, most of them with different settings."""
    filtered = {"conditions": ("calm1#y,x",)}
    counted = {"sources": 2}
    both = {"topics": ("calm1", "calm3")}
    for first, second in (
        (_member(), _balanced()),
        (_balanced(), _member()),
        (_balanced(), _bound()),
        (_member(), _member(topics=("calm3",))),
        (_balanced(topics=("calm3", "calm1")), _balanced()),
        (_member(), _member(**filtered)),
        (_member(**filtered), _member()),
        (_member(**filtered), _member(conditions=("calm1#x",))),
        (_bound(), {**_bound(), "session": "l"}),
        (_bound(), _bound(select_big=False)),
        (_bound(), {**_bound(), "total": 3}),
        (_member(**counted), _member(sources=3, node=1)),
        (_member(**counted), _member()),
        (_member(**counted), _member(**counted)),
        (_member(**both, conditions=("calm3#x,y",)), _member(**both, conditions=("calm3# y , x",))),
        (_member(**both), _member(topics=("calm3", "calm1", "calm1"), sources=5, node=3)),
    ):
        other = {**second, "client": "b"}
        steps = (first, other, _META, {**_META, "client": "b"}, _of_members("close"), other, _META)
        yield Script("calm1", (*steps, {"call": "balanced_heartbeat", "client": "b", "group": "g"}))

    # The lists come only to clients that do not know them.
    last = {"brokers": "last", "metas": "last"}
    known = (_META, {**_META, **last}, _member(**last), _of_members("heartbeat", **last), _of_members("heartbeat"))
    yield Script("calm1", (_META, _of_members("heartbeat"), _member(), *known, _of_members("close"), _META))
    yield Script("calm1", (_member(brokers=-2, metas=-2, reported=(), assigned=0), *known))
    beats = (_producer("heartbeat"), _producer("heartbeat", sum="last"), _producer("heartbeat", topics=()))
    yield Script("calm1", (*beats, _producer("register"), *beats, _producer("close"), _producer("close"), *beats))
    yield Script("calm1", (_producer("register"), _producer("heartbeat", topics=(" calm3 ", "calm1", "calm3", " "))))


def _reading() -> Iterator[Script]:
    """Yield claims and reads of one store with six messages."""
    types = ("even", "odd", None)
    sends = tuple(_send(type=types[n % 3], partition=n % 2, flag="attributes" if n == 4 else 0) for n in range(6))
    more = tuple(_get(manual=True) for _ in range(2))

    # Where a register sets the position: for a new group, and for one that has a position.
    for known in ((), (_register(at=("base", 56)),)):
        for status in (0, 1, 2):
            for at in (None, ("base", 0), ("base", 28), ("base", 55), ("base", 10**9), ("abs", 0), ("abs", -5)):
                asked = {} if at is None else {"at": at}
                yield Script("calm3", (*sends, *known, _register(status=status, **asked), _of_claims("commit"), *more))

    # Reads move the cursor, and confirm it or not, in each mode.
    register = _register(at=("base", 0))
    modes: tuple[Step, ...] = ({"manual": True}, {"last": True}, {"last": False}, {})
    for mode in modes:
        for fields in ({}, {"last": True}, {"last": False}):
            commit = _of_claims("commit", **fields)
            yield Script("calm3", (*sends, register, _get(**mode), commit, _get(**mode), *sends, _get(**mode), commit))
        nobodys = ({**register, "partition": 2}, _get(partition=2, **mode), _of_claims("commit", partition=2))
        yield Script("calm3", (*sends, *nobodys, *sends, *nobodys[1:], *nobodys[1:]))
        yield Script("calm3", (*sends, *nobodys[:2], _register(partition=2), *sends, *nobodys[1:]))
        for status in (0, 1):
            leave = _of_claims("unregister", status=status)
            yield Script("calm3", (*sends, register, _get(**mode), leave, leave, _register(), _get(**mode)))

    # Policies: what readers of files and of memory see, with and without filters.
    for priority in (1, -2, 101, 103, 201, 203, 301, 303):
        for filters in ((), (" even ", " "), ("even", "odd")):
            reader = _register(at=("base", 0), priority=priority, filters=filters)
            beats = (_of_claims("heartbeat", partitions=(0,), priority=301), *more, _of_claims("commit"))
            yield Script("calm3", (*sends, reader, *more, *beats, _of_claims("heartbeat", partitions=(0,)), *more))

    # A partition has one reader in a group; a register of a wrong partition fails, and leaves its claim.
    other = {"client": "b"}
    calls = (_get(**other), _of_claims("commit", **other), _of_claims("unregister", **other), _register(**other))
    beat = _of_claims("heartbeat", partitions=(0, 1, 2))
    yield Script("calm3", (*sends, _register(), _register(partition=1, **other), beat, {**beat, **other}, *calls))
    yield Script("calm3", (_register(), *calls, _register(), _of_claims("unregister"), *calls, *calls[:3], beat))
    strange = (_get(group="h"), _of_claims("commit", group="h"), _get(partition=2), _of_claims("commit", partition=2))
    yield Script("calm3", (_register(), _register(group="h", **other), *strange))
    for number in (3, 9999):
        steps = tuple(
            {**step, "partition": number} for step in (_register(), *calls, _get(), _register(), _of_claims("commit"))
        )
        yield Script("calm3", steps)


REGRESSIONS = tuple(_scripts())
