from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tubemq_spark.protocol.constants import MAX_CLIENT_ID
from tubemq_spark.protocol.consume import DRIVER, ClaimId, holder_in, not_found_kind
from tubemq_spark.protocol.exact_range import NotFound

numbers = st.integers(0, 10**18 - 1)
claims = st.builds(
    ClaimId, st.from_regex(r"[0-9a-z-]{1,36}", fullmatch=True), numbers, numbers, st.just(DRIVER) | numbers, numbers
)


@given(claims)
def test_claims_come_back(claim: ClaimId) -> None:
    assert ClaimId.parse(str(claim)) == claim
    assert len(str(claim)) <= MAX_CLIENT_ID
    assert not set(str(claim)) & set("@#:, ")


def test_a_claim_names_itself() -> None:
    assert str(ClaimId("q-1", 1700, 3)) == "spark_q-1_r1700_b3_driver_a0"
    assert str(ClaimId("q-1", 1700, 3, task=12, attempt=40)) == "spark_q-1_r1700_b3_p12_a40"


@pytest.mark.parametrize(
    "client_id",
    [
        "",
        "127.0.0.1-4711-1700000000000-1-1.13.0",
        "spark_q_r1_b2_p3",
        "spark_q_r1_b2_x3_a4",
        "spark_q_r1_b2_p-1_a4",
        "spark_q_r1_b2_p3_a4 ",
        "spark_q_r1_b2_p3_a4\n",
        "spark__r1_b2_p3_a4",
        "spark_q_r1_b2_p٣_a4",
        "spark_q_r1_b2_p3_a" + "9" * 19,
    ],
)
def test_anybody_elses_client_id_is_no_claim(client_id: str) -> None:
    assert ClaimId.parse(client_id) is None


@given(st.text() | st.from_regex(r"spark_\w*_r\d+_b\d+_(driver|p\d+)_a\d+"))
def test_any_text_is_a_claim_or_none(client_id: str) -> None:
    claim = ClaimId.parse(client_id)
    assert claim is None or ClaimId.parse(str(claim)) == claim


OLD_TO_NEW = [
    ClaimId("q", 1, 1),
    ClaimId("q", 1, 1, task=5, attempt=0),
    ClaimId("q", 1, 1, task=2, attempt=1),
    ClaimId("q", 1, 2),
    ClaimId("q", 1, 2, task=0, attempt=2),
    ClaimId("q", 2, 0),
]


@pytest.mark.parametrize("new", range(len(OLD_TO_NEW)))
@pytest.mark.parametrize("old", range(len(OLD_TO_NEW)))
def test_only_the_newer_takes_from_the_older(old: int, new: int) -> None:
    assert OLD_TO_NEW[new].may_fence(OLD_TO_NEW[old]) is (new > old)


@given(claims, claims)
def test_of_two_claims_at_most_one_may_fence_the_other_and_only_within_a_query(one: ClaimId, other: ClaimId) -> None:
    assert not (one.may_fence(other) and other.may_fence(one))
    assert one.query == other.query or not one.may_fence(other)


@pytest.mark.parametrize(
    ("message", "holder"),
    [
        (
            "[Duplicated Register] Partition 1#g:demo:0 has been registered by spark_q_r1_b2_p3_a4",
            "spark_q_r1_b2_p3_a4",
        ),
        ("[Duplicated Request] Partition=g:demo:0 of Broker=1 has been consumed by a;Current consumer b", "a"),
        ("[Duplicated Register] Remove Invalid Consumer Register a#g:demo:0", ""),
        ("UnRegistered Consumer:a, you have to register firstly!", ""),
        ("", ""),
    ],
)
def test_the_holder_in_a_brokers_text(message: str, holder: str) -> None:
    assert holder_in(message) == holder


@pytest.mark.parametrize(
    ("message", "kind"),
    [
        ("The request offset reached maxOffset!", NotFound.END),
        ("Can't found Message by index!", NotFound.PASSED),
        ("Can't found Message by index in cache", NotFound.WAIT),
        ("Request offset reached cache maxOffset", NotFound.WAIT),
        ("current offset is exceed max file offset", NotFound.WAIT),
        ("current offset is exceed max offset!", NotFound.WAIT),
        ("RpcServer consume speed limit!", NotFound.WAIT),
        ("", NotFound.WAIT),
    ],
)
def test_what_a_404_means(message: str, kind: NotFound) -> None:
    assert not_found_kind(message) is kind
