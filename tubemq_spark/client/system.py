# SPDX-License-Identifier: Apache-2.0
"""What client, source and sink ask the operating system for: threads, locks, waits for sockets, random numbers, names.

Besides it, only `clock` asks for the time, and `net.open_socket` and `http_post` for sockets. Callers name the module,
as in `system.Lock()`, so that a simulated world can take the system's place.
"""

from __future__ import annotations

import os
import platform
import random
import select
import selectors
import socket
import threading
from uuid import UUID

Thread = threading.Thread
Lock = threading.Lock
RLock = threading.RLock
Condition = threading.Condition

EVENT_READ, EVENT_WRITE = selectors.EVENT_READ, selectors.EVENT_WRITE
Selector: type[selectors.BaseSelector] = selectors.DefaultSelector
# epoll would need a descriptor and three more system calls.
SelectorForOneWait: type[selectors.BaseSelector] = getattr(selectors, "PollSelector", selectors.SelectSelector)

random_bytes = os.urandom
randomizer: random.Random = random.SystemRandom()  # has no state that a forked child could share with its parent

process_id = os.getpid
host_name = platform.node


def is_running(process: int) -> bool:
    """Return False if this machine has no process with this id."""
    if os.name != "posix":  # where the question would end the process
        return True
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):  # the id may be from a text that anybody can have made
        return False
    except PermissionError:  # it is another user's
        return True
    return True


def is_shut_down(descriptor: int) -> bool | None:
    """Return whether the other end of a connection sends no more, even if what it has sent is not read yet. Return None
    on a system that does not show it before the end is read: all but Linux."""
    if not hasattr(select, "POLLRDHUP"):
        return None
    poll = select.poll()
    poll.register(descriptor, select.POLLRDHUP)
    return bool(poll.poll(0))


def host_address() -> str:
    """Return this machine's IPv4 address on its way to other networks, 127.0.0.1 without one. Nothing is sent."""
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as route:
            route.connect(("192.0.2.1", 9))  # an address for examples (RFC 5737): the system only chooses a route
            return str(route.getsockname()[0])
    except OSError:
        return "127.0.0.1"


def token_hex(size: int) -> str:
    """Return `size` random bytes, as twice as many digits."""
    return random_bytes(size).hex()


def new_uuid() -> UUID:
    """Return a random UUID."""
    return UUID(bytes=random_bytes(16), version=4)
