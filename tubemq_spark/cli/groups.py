# SPDX-License-Identifier: Apache-2.0
"""`tubemq-spark groups`: list consumer groups, and say which of them may read a topic, through the HTTP APIs.

A master keeps one record for each group and topic, which allows or forbids (wire: WebGroupConsumeCtrlHandler).
"""

from __future__ import annotations

from typing import Annotated

import typer

from tubemq_spark.cli.commands import Commands
from tubemq_spark.cli.connection import Connection
from tubemq_spark.cli.lag import missing, states_by_group, total_lag
from tubemq_spark.cli.new_group import propose
from tubemq_spark.cli.output import note, print_result, print_rows
from tubemq_spark.cli.parameters import Group, Json, OnlyTopic, Topic, connected
from tubemq_spark.cli.topics import existing
from tubemq_spark.client.admin_api import AdminApi, check_rows
from tubemq_spark.client.consumer.working_group import own_groups

app = Commands(help="List consumer groups, allow and block them. Uses the HTTP APIs of master and brokers.")


@app.command("list")
@connected(admin=True)
def list_groups(
    connection: Connection,
    topic: OnlyTopic = None,
    every: Annotated[bool, typer.Option("--all", "-a", help="Also the groups of the connector itself.")] = False,
    as_json: Json = False,
) -> None:
    """List the groups that brokers know, with the topics, the lag and the number of clients of each.

    Groups of the connector itself are left out: their lag means nothing. With --all, the last column says what each of
    them is for.
    """
    brokers = connection.admin.brokers()
    if warning := missing(brokers):
        note(warning)
    found = states_by_group(connection.admin, brokers, topic=topic)
    own = own_groups(found)
    rows = [
        {
            "group": group,
            "topics": sorted({one.partition.topic for one in states}),
            "lag": None if any(one.lag is None for one in states) else total_lag(states),
            "clients": len({one.holder for one in states} - {None}),
            **({"connector": own[group].value if group in own else None} if every else {}),
        }
        for group, states in sorted(found.items())
        if every or group not in own
    ]
    columns = ("group", "topics", "lag", "clients", *(["connector"] if every else []))
    print_rows(rows, {name: name for name in columns}, as_json=as_json, spare=("clients", "topics"))


@app.command("allow")
@connected(token=True)
def allow_group(connection: Connection, topic: Topic, group: Group) -> None:
    """Authorise a group for a topic, and take it off the topic's black list.

    Only topics that require authorisation (admin_set_topic_authorize_control) need that.
    """
    _change(connection.admin, topic, group, "admin_add_authorized_consumergroup_info")
    print_result(f"group {group} is authorised for topic {topic}")


@app.command("block")
@connected(token=True)
def block_group(connection: Connection, topic: Topic, group: Group) -> None:
    """Put a group on a topic's black list.

    If the topic requires authorisation, the master refuses the group when a client registers the next time. Of other
    topics, TubeMQ's own consumers get no partitions, but Spark queries go on.
    """
    _change(connection.admin, topic, group, "admin_add_black_consumergroup_info")
    print_result(f"group {group} is on the black list of topic {topic}")


def _change(admin: AdminApi, topic: str, group: str, method: str) -> None:
    existing(admin, topic)
    propose(admin, group)
    check_rows(admin.change(method, topicName=topic, groupName=group), f"changing what group {group} may read")
