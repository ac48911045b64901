# SPDX-License-Identifier: Apache-2.0
"""Texts of the connector in the words of the command line.

The client's errors and warnings name options as a Spark program sets them. A user of a command gives them with flags
(`--master`, `-X user`), as variables, or in the profile. All texts for people pass here before they are printed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

_FLAGS = {"tubemq.master": "--master", "tubemq.admin.address": "--admin", "tubemq.group": "--group"}
# Options of queries, and advice that a command cannot follow.
_PHRASES = {
    "another 'tubemq.group'": "another group",
    "another tubemq.group": "another group",
    "option 'subscribe'": "the topic's name",
    "option 'msgTimeZone'": "--time-zone",
    "option 'filters'": "--filter",
    ": use option 'compression'": "",
    ", and use option 'compression'": "",
    ", with 'startingOffsets' and 'endingOffsets'": "",
    ", with 'startingOffsets'": "",
    "; to begin at the end, set option 'startingOffsetsByTimestampStrategy' to latest": "",
    ", because option 'failOnDataLoss' is false": "",
    ". If that is more than the cluster's limit, name the topic in option 'longMessageTopics'": "",
    ", for example with url_encode": "",
    "leave broker_id and partition out": "leave --partition out",
}
_QUERY = re.compile("|".join(map(re.escape, _PHRASES)))
_OPTION = re.compile(r"(?P<noun>(?i:options?) )?(?P<quote>['`])(?P<name>tubemq\.[\w.…]+)(?P=quote)")


def of_commands(text: str, places: Mapping[str, str] | None = None) -> str:
    """Return `text` with flags instead of options. `places` are other words for some options, by full name."""
    return of_options(_QUERY.sub(lambda found: _PHRASES[found[0]], text), places)


def of_options(text: str, places: Mapping[str, str] | None = None) -> str:
    """Return the same as `of_commands`, but with the options of queries as they are: for checks of a query."""
    known = {**_FLAGS, **(places or {})}

    def word(found: re.Match[str]) -> str:
        name = found["name"]
        if found["noun"] is None and name not in _known():  # a value, such as the name of a host
            return found[0]
        return known.get(name) or f"-X {name.removeprefix('tubemq.')}"

    return _OPTION.sub(word, text)


def of_profile(text: str) -> str:
    """Return `text` with the names that options have in a profile."""
    return _OPTION.sub(lambda found: f"{found['noun'] or ''}'{found['name'].removeprefix('tubemq.')}'", text)


def _known() -> set[str]:
    from tubemq_spark.client.settings import CLIENT_OPTIONS  # here, because an installation may lack what it imports

    return {*_FLAGS, "tubemq.tls.…", *(option.name for option in CLIENT_OPTIONS)}
