# SPDX-License-Identifier: Apache-2.0
"""Check `clock`: this machine's clock compared with the master's and with other machines'.

The protocol has no request for the time. The visit token that a master gives is the master's time (ms) when it made
the token: not in the future, and not older than two periods of tokens, 8 minutes by default (wire:
SimpleVisitTokenManager). A server with authentication refuses a request whose time differs by more than 20 s.
"""

from __future__ import annotations

from tubemq_spark.checks.result import CheckResult, failed, ok, warning

_ACCEPTED = 20.0  # seconds: authValidTimeStampPeriodMs of the servers
_TOKEN_AGE = 480.0  # seconds: two periods of visit tokens
_SLACK = 2.0  # seconds that clocks may differ without a result
_REMEDY = "synchronise the clocks of all machines (chrony or another NTP client)"
_WHY = "requests with credentials are refused from 20 s on; times of messages and the order of restarts are wrong too"


def check_token_clock(token: int, now: float, *, has_credentials: bool, subject: str) -> CheckResult | None:
    """Compare a visit token with this machine's time `now`, in seconds since the epoch. Return None if the token has no
    time."""
    if token <= 0:
        return None
    behind = token / 1000 - now
    if behind > _SLACK:
        judge = failed if has_credentials and behind > _ACCEPTED else warning
        return judge(
            "clock", subject, f"this machine's clock is at least {behind:.0f} s behind the master's; {_WHY}", _REMEDY
        )
    if -behind > _TOKEN_AGE + _SLACK:
        return warning(
            "clock",
            subject,
            f"this machine's clock may be up to {-behind:.0f} s ahead of the master's, whose token is so old; {_WHY}",
            f"{_REMEDY}; ignore this if the master's visitTokenValidPeriodMs is longer than 5 minutes",
        )
    return ok("clock", subject, "no difference from the master's clock was seen (to 8 minutes)")


def refused_clock(text: str, subject: str) -> CheckResult:
    """Return the result for a request that the server refused because of its time; `text` is the server's."""
    return failed("clock", subject, f"the master's clock differs by more than 20 s: {text}", _REMEDY)


def check_other_clock(theirs: float, before: float, after: float, subject: str) -> CheckResult:
    """Compare a time of another machine, taken between `before` and `after` of this one; seconds since the epoch."""
    off = theirs - after if theirs > after else theirs - before if theirs < before else 0.0
    if abs(off) <= _SLACK:
        return ok("clock", subject, "as the driver's")
    return warning(
        "clock", subject, f"{abs(off):.0f} s {'ahead of' if off > 0 else 'behind'} the driver's clock; {_WHY}", _REMEDY
    )
