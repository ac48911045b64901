# SPDX-License-Identifier: Apache-2.0
"""Configuration files of ZooKeeper, a master and brokers, with short periods for tests."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

AUTH_TOKEN = "abc"

_ZK_ROOT = "/tubemq"
_WEB_RESOURCES = {  # the master reads them at start; without them its HTTP API executes calls but answers 500
    "templates/screen/webapi.vm": "$sb",
    "templates/layout/webapi.vm": "$screen_placeholder",
    "templates/layout/default.vm": "$screen_placeholder",
    "templates/macro.vm": "",
    "assets/.keep": "",
    "velocity.properties": "resource.loader=file\nfile.resource.loader.path=resources/templates\n",
}


@dataclass(frozen=True)
class Node:
    """The address of a master or broker. TubeMQ announces ``host`` but binds its ports on all addresses."""

    host: str
    port: int
    web_port: int

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}"

    @property
    def web_address(self) -> str:
        return f"{self.host}:{self.web_port}"


def write_zookeeper(folder: Path, host: str, port: int) -> str:
    """Write the file and return its name. The admin server is off, because it would take port 8080."""
    lines = [
        f"clientPortAddress={host}",
        f"clientPort={port}",
        "dataDir=./zookeeper",
        "tickTime=2000",
        "admin.enableServer=false",
    ]
    (folder / "zoo.cfg").write_text("\n".join(lines))
    return "./zoo.cfg"


def write_master(folder: Path, name: str, node: Node, zookeeper: str, options: Mapping[str, str]) -> str:
    """Write the file of master ``name`` and the resources of its HTTP server; return the file's name.

    ``options`` are lines of ``[master]`` that override the defaults here.
    """
    master: dict[str, object] = {
        "hostName": node.host,
        "port": node.port,
        "webPort": node.web_port,
        "webResourcePath": "resources",
        "confModAuthToken": AUTH_TOKEN,
        "consumerBalancePeriodMs": 5000,
        "firstBalanceDelayAfterStartMs": 5000,
        "consumerHeartbeatTimeoutMs": 30000,
        "producerHeartbeatTimeoutMs": 30000,
        "brokerHeartbeatTimeoutMs": 25000,
        **options,
    }
    meta = {"zkNodeRoot": _ZK_ROOT, "zkServerAddr": zookeeper, "zkSessionTimeoutMs": 10000}
    for resource, content in _WEB_RESOURCES.items():
        path = folder / "resources" / resource
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    return _write(folder / f"{name}.ini", master=master, meta_zookeeper=meta)


def write_broker(
    folder: Path, broker_id: int, node: Node, data: Path, master: str, zookeeper: str, options: Mapping[str, str]
) -> str:
    """Write the file and return its name; ``options`` are lines of ``[broker]`` that override the defaults here."""
    broker: dict[str, object] = {
        "brokerId": broker_id,
        "hostName": node.host,
        "port": node.port,
        "webPort": node.web_port,
        "masterAddressList": master,
        "primaryPath": data,
        "maxSegmentSize": 1073741824,
        "maxIndexSegmentSize": 22020096,
        "transferSize": 524288,
        "consumerRegTimeoutMs": 35000,
        "heartbeatPeriodMs": 1000,
        "groupOffsetScanDurMs": 30000,
        **options,
    }
    offsets = {"zkNodeRoot": _ZK_ROOT, "zkServerAddr": zookeeper}
    return _write(folder / f"broker-{broker_id}.ini", broker=broker, zookeeper=offsets)


def _write(path: Path, **sections: Mapping[str, object]) -> str:
    lines: list[str] = []
    for section, values in sections.items():
        lines += [f"[{section}]", *(f"{key}={value}" for key, value in values.items()), ""]
    path.write_text("\n".join(lines))
    return path.name
