# SPDX-License-Identifier: Apache-2.0
"""RealTubeMQ: ZooKeeper, masters and brokers as processes of this machine."""

from __future__ import annotations

import atexit
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any

from tests.real import admin, ini, jars, topics
from tests.real.processes import Ports, Processes, is_listening
from tests.real.topics import FLUSH_SOON, TopicSpec
from tubemq_spark.protocol.constants import NO_POSITION

__all__ = ["FLUSH_SOON", "RealTubeMQ", "TopicSpec"]

START_TIMEOUT = 120.0

_JVM = (
    "--add-exports=java.base/sun.nio.ch=ALL-UNNAMED",  # or a resized memory block of a live topic loses its messages
    "--add-exports=java.base/jdk.internal.ref=ALL-UNNAMED",
    "-XX:MaxDirectMemorySize=2g",  # each open store takes about 7 MB of it
    "-XX:-UsePerfData",
    "-Dorg.apache.logging.log4j.level=WARN",
    "-Dtubemq.home=.",
    "-Duser.timezone=UTC",  # of times that brokers record
    "-Dzookeeper.forceSync=no",  # nothing here survives a crash of the machine
)
_QUICK_START = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")  # halves the CPU time of a start


class RealTubeMQ:
    """A TubeMQ cluster, best used as a context manager.

    A pickled copy in another process can use the servers, and cannot start or stop them.

    Masters and brokers are numbered from 1. Broker n listens on 127.0.0.n, because a master refuses two brokers with
    one address. So does master n, because two masters with one address redirect clients in a loop.

    Args:
        topics: shapes by name. They are declared before the brokers start, which is many times faster than afterwards.
        brokers, masters: how many. The first master that starts is the active one, the others are standbys.
        release: a published one; TUBEMQ_SERVER_JARS, a folder with the jars of another one, goes before it.
        framing: of release 1.2.0: as published (``prefixed``) or as 1.3.0 and later. Others have ``standard`` only.
        broker_options, master_options: additional lines of ``[broker]`` and ``[master]`` in the configuration files.
        quick_start: use a JVM that starts quickly and runs long work more slowly.
        folder: for data and logs, kept afterwards. By default a temporary folder, which is removed.

    Raises:
        MissingTool: Java 17 or Maven is missing.
        RuntimeError, TimeoutError: a process ended or was not ready in time; the message ends with its log.
    """

    release: str
    """The server's release, from the name of its jar, without ``-incubating``."""
    master: str
    """The ``host:port`` of each master, in the form of option ``tubemq.master``."""
    broker_ids: tuple[int, ...]

    def __init__(
        self,
        *,
        topics: Mapping[str, TopicSpec],
        brokers: int = 1,
        masters: int = 1,
        release: jars.Release = "1.2.0",
        framing: jars.Framing = "standard",
        broker_options: Mapping[str, str] | None = None,
        master_options: Mapping[str, str] | None = None,
        quick_start: bool = True,
        folder: Path | None = None,
    ) -> None:
        self._java = [jars.tool("java"), *_JVM, *(_QUICK_START if quick_start else ())]
        self.release, self._class_path = jars.server(release, framing)
        self.framing = framing
        self.topics = dict(topics)
        self.broker_ids = tuple(range(1, brokers + 1))
        self._master_options = dict(master_options or {})
        self._broker_options = dict(broker_options or {})
        self._ports = ports = Ports()
        self._zookeeper = ("127.0.0.1", ports.free())
        self._masters = {n: ini.Node(f"127.0.0.{n}", ports.free(), ports.free()) for n in range(1, masters + 1)}
        self._brokers = {id_: ini.Node(f"127.0.0.{id_}", ports.free(), ports.free()) for id_ in self.broker_ids}
        self.master = ",".join(node.address for node in self._masters.values())
        self._last_registration: dict[int, object] = {}
        self._kept_folder = folder
        self._folder = Path()
        self._processes: Processes | None = None

    def __enter__(self) -> RealTubeMQ:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def start(self) -> None:
        """Start all servers and wait until every topic can be read and written; after a failure none is left."""
        self._folder = (self._kept_folder or Path(tempfile.mkdtemp(prefix="tubemq-"))).resolve()
        self._folder.mkdir(parents=True, exist_ok=True)
        self._processes = Processes(self._folder, remove=self._kept_folder is None)
        atexit.register(self.close)
        try:
            self._start_zookeeper()
            for number in self._masters:
                self._start_master(number)
            self._declare()
            for broker_id in self.broker_ids:
                self._start_broker(broker_id)
            self.wait_ready()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Kill every process and remove the temporary folder. May be called again."""
        atexit.unregister(self.close)
        if self._processes is not None:
            self._processes.close()
            self._processes = None
        self._ports.close()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_processes": None, "_ports": None}

    @property
    def pids(self) -> dict[str, int]:
        """Process ids by name: ``zookeeper``, ``master``, ``master-2``, ``broker-1`` and so on."""
        return self._running.pids()

    @property
    def web_master(self) -> str:
        """The ``host:port`` of the first master's HTTP API."""
        return self._masters[1].web_address

    @property
    def web_masters(self) -> str:
        """Those of all masters, separated by commas."""
        return ",".join(master.web_address for master in self._masters.values())

    @property
    def admin_token(self) -> str:
        return ini.AUTH_TOKEN

    def broker_address(self, broker_id: int) -> str:
        return self._brokers[broker_id].address

    def kill_broker(self, broker_id: int) -> None:
        """Send SIGKILL: acknowledged messages that were not flushed are lost."""
        self._running.end(_name(broker_id), signal.SIGKILL)

    def stop_broker(self, broker_id: int) -> None:
        """Send SIGTERM: all messages are flushed, and what is in flight on held claims becomes confirmed."""
        self._running.end(_name(broker_id), signal.SIGTERM)

    def start_broker(self, broker_id: int) -> None:
        """Start a stopped broker, and wait until its topics can be read and written again.

        That takes 2 to 3 s. Release 2.5 needs over 30 s for a broker that ``stop_broker`` has stopped.
        """
        self._start_broker(broker_id)
        self.wait_ready()

    def swap_addresses(self, first: int, second: int) -> None:
        """Let two stopped brokers start at each other's port, which listens on all addresses of this machine.

        So each of them also answers where the other one did. The active master restarts: release 1.2.0 lists no broker
        to clients after a change of its port.
        """
        one, other = self._brokers[first], self._brokers[second]
        for broker_id, ports in ((first, other), (second, one)):
            node = self._brokers[broker_id]
            self._brokers[broker_id] = ini.Node(node.host, ports.port, ports.web_port)
            self.admin(
                method="admin_update_broker_configure",
                brokerId=broker_id,
                brokerPort=ports.port,
                brokerWebPort=ports.web_port,
            )
        number = self.active_master
        self.kill_master(number)
        self.start_master(number)

    def remove_data(self, broker_id: int) -> None:
        """Remove the files of a stopped broker, as if its disk were lost."""
        shutil.rmtree(self._data(broker_id))

    def pause_broker(self, broker_id: int) -> None:
        """Send SIGSTOP: connections stay open, and the broker does not answer."""
        self._running.send(_name(broker_id), signal.SIGSTOP)

    def resume_broker(self, broker_id: int) -> None:
        self._running.send(_name(broker_id), signal.SIGCONT)

    @property
    def active_master(self) -> int:
        """The number of the master that answers calls; raises `OSError` if none does."""
        number, _ = self._first_answer(method="admin_query_broker_run_status")
        return number

    def kill_master(self, number: int = 1) -> None:
        """Send SIGKILL. Brokers still serve the clients that they have."""
        self._running.end(_master_name(number), signal.SIGKILL)

    def start_master(self, number: int = 1) -> None:
        """Start a stopped master, and wait until brokers and topics are registered at the active one."""
        is_alone = not self._running_masters
        self._start_master(number)
        if is_alone:  # then the brokers register again
            self._last_registration.clear()
        self.wait_ready()

    def admin(self, **params: object) -> dict[str, Any]:
        """Call the active master's HTTP API, as in ``admin(method="admin_query_topic_info", topicName="demo")``.

        Raises:
            AdminError: the master refused it.
            OSError: no master was reached that is active.
        """
        return self._first_answer(**params)[1]

    def _first_answer(self, **params: object) -> tuple[int, dict[str, Any]]:
        problem = OSError("there is no master")
        for number, node in self._masters.items():
            try:
                return number, admin.call(f"http://{node.web_address}/webapi.htm", params)
            except OSError as error:  # it is down, or a standby, which redirects
                problem = error
        raise problem

    def broker_admin(self, broker_id: int, **params: object) -> dict[str, Any]:
        """Call a broker's HTTP API; raises as ``admin`` does."""
        return admin.call(f"http://{self._brokers[broker_id].web_address}/broker.htm", params)

    def group_offset(self, group: str, topic: str, broker_id: int, partition: int) -> int | None:
        """Return a group's confirmed position, or None if the broker has no record of it.

        ``admin_query_offset`` changes nothing; ``admin_query_group_offset`` with ``requireRealOffset`` would create a
        missing record. Release 2.x shows a new group only about 7 s after its first register. After a restart, a broker
        shows only the partitions that the group has registered again.
        """
        answer = self.broker_admin(broker_id, method="admin_query_offset", groupName=group, topicName=topic)
        for info in (info for row in answer["dataSet"] for info in row["subInfo"] if info["topicName"] == topic):
            for offset in info["offsets"]:
                if offset["partitionId"] == partition and offset["curOffset"] != NO_POSITION:
                    return int(offset["curOffset"])
        return None

    def wait_ready(self, timeout: float = START_TIMEOUT) -> None:
        """Wait until all running brokers have registered since their start and their topics are open to clients.

        Raises:
            RuntimeError: a process has ended.
            TimeoutError: not ready in time; the message ends with the logs.
        """
        brokers = [id_ for id_ in self.broker_ids if self._running.is_running(_name(id_))]

        def is_ready() -> bool:
            return all(map(self._is_registered, brokers)) and topics.are_open(self.admin, self.topics, brokers)

        self._wait([*self._running_masters, *map(_name, brokers)], is_ready, timeout)

    def wait_flushed(self, topic: str, timeout: float = 60.0) -> None:
        """Wait until all messages of ``topic`` are in the brokers' files, where a SIGKILL does not lose them.

        The topic's settings determine how long that takes, see ``FLUSH_SOON``. Clients can still read the last block
        from memory; after a stop and start, a broker reads from files only.
        """
        brokers = self.topics[topic].on(self.broker_ids)

        def is_flushed(broker_id: int) -> bool:
            return topics.are_flushed(partial(self.broker_admin, broker_id), self._data(broker_id), topic)

        self._wait(list(map(_name, brokers)), lambda: all(map(is_flushed, brokers)), timeout)

    @property
    def _running(self) -> Processes:
        if self._processes is None:
            raise RuntimeError("this TubeMQ is not running, or another process owns its servers")
        return self._processes

    def _data(self, broker_id: int) -> Path:
        return self._folder / f"data-{broker_id}"

    def _zookeeper_address(self) -> str:
        return "{}:{}".format(*self._zookeeper)

    def _start_zookeeper(self) -> None:
        config = ini.write_zookeeper(self._folder, *self._zookeeper)
        self._java_start("zookeeper", "192m", "org.apache.zookeeper.server.ZooKeeperServerMain", config)
        self._wait(["zookeeper"], lambda: is_listening(*self._zookeeper), START_TIMEOUT)

    @property
    def _running_masters(self) -> list[str]:
        return [name for name in map(_master_name, self._masters) if self._running.is_running(name)]

    def _start_master(self, number: int) -> None:
        name, node = _master_name(number), self._masters[number]
        config = ini.write_master(self._folder, name, node, self._zookeeper_address(), self._master_options)
        self._java_start(name, "768m", "org.apache.inlong.tubemq.server.tools.MasterStartup", "-f", config)

        def answers() -> bool:
            # A standby listens, too.
            return is_listening(node.host, node.web_port) and bool(self.admin(method="admin_query_broker_run_status"))

        self._wait(["zookeeper", name], answers, START_TIMEOUT)

    def _start_broker(self, broker_id: int) -> None:
        self._last_registration[broker_id] = self._registration(broker_id).get("createId")
        config = ini.write_broker(
            self._folder,
            broker_id,
            self._brokers[broker_id],
            self._data(broker_id),
            self.master,
            self._zookeeper_address(),
            self._broker_options,
        )
        main_class = "org.apache.inlong.tubemq.server.tools.BrokerStartup"
        self._java_start(_name(broker_id), "768m", main_class, "-f", config)

    def _java_start(self, name: str, heap: str, main_class: str, *arguments: str) -> None:
        command = [*self._java, f"-Xmx{heap}", "-cp", self._class_path, main_class, *arguments]
        self._running.start(name, command)

    def _declare(self) -> None:
        for broker_id, node in self._brokers.items():
            self.admin(
                method="admin_add_broker_configure",
                brokerId=broker_id,
                brokerIp=node.host,
                brokerPort=node.port,
                brokerWebPort=node.web_port,
            )
            self.admin(method="admin_online_broker_configure", brokerId=broker_id)
        topics.declare(self.admin, self.topics, self.broker_ids)

    def _registration(self, broker_id: int) -> dict[str, Any]:
        """Return the master's BrokerRunStatusInfo, empty until the broker registers."""
        answer = self.admin(method="admin_query_broker_run_status", brokerId=broker_id, withDetail=True)
        (row,) = answer["data"]
        status: dict[str, Any] = row.get("BrokerRunStatusInfo", {})
        return status

    def _is_registered(self, broker_id: int) -> bool:
        """Return True if the broker has registered since its last start, and the master has published that.

        The master lists a killed broker as online until it misses a heartbeat, so the age of the registration matters.
        """
        status = self._registration(broker_id)
        is_new = status.get("createId") not in (None, self._last_registration.get(broker_id))
        return is_new and all(status[step] for step in ("isOnline", "isDoneDataSub", "isDoneDataPub"))

    def _wait(self, names: list[str], is_done: Callable[[], bool], timeout: float) -> None:
        """Poll until ``is_done`` returns True; an error of its HTTP calls counts as False."""
        deadline = time.monotonic() + timeout
        problem: Exception | None = None
        while True:
            try:
                if is_done():
                    return
            except (OSError, admin.AdminError) as error:
                problem = error
            processes = self._processes  # None in a copy
            for name in names if processes else []:
                if not self._running.is_running(name):
                    raise RuntimeError(f"{name} ended unexpectedly\n{self._running.tail(name)}")
            if time.monotonic() > deadline:
                logs = "\n".join(map(processes.tail, names)) if processes else ""
                raise TimeoutError(f"{', '.join(names)}: not done after {timeout:.0f} s; last error: {problem}\n{logs}")
            time.sleep(0.1)


def _master_name(number: int) -> str:
    return "master" if number == 1 else f"master-{number}"


def _name(broker_id: int) -> str:
    return f"broker-{broker_id}"
