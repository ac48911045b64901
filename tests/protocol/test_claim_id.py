# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tubemq_spark.protocol.claim_id import (
    APPLICATION_PREFIX,
    DRIVER,
    NO_STAGE,
    PLANNER,
    ClaimId,
    Relation,
    holder_in,
    label_of,
)
from tubemq_spark.protocol.constants import MAX_CLIENT_ID

numbers = st.integers(0, 10**18 - 1)
roles = st.just((DRIVER, NO_STAGE)) | st.just((PLANNER, NO_STAGE)) | st.tuples(numbers, st.just(NO_STAGE) | numbers)
applications = st.sampled_from([APPLICATION_PREFIX + "0123456789abcdef", APPLICATION_PREFIX + "0123456789abcdef-4711"])
names = st.lists(st.text() | applications, max_size=4).map(lambda texts: label_of(*texts))
claims = st.builds(
    lambda role, **given: ClaimId(task=role[0], stage=role[1], **given),
    roles,
    query=st.from_regex(r"[0-9a-z-]{1,36}", fullmatch=True),
    run=numbers,
    batch=numbers,
    attempt=numbers,
    reader=st.from_regex(r"([0-9a-f]{1,8})?", fullmatch=True),
    label=names,
)


@given(claims)
def test_a_claim_survives_its_text_form(claim: ClaimId) -> None:
    assert ClaimId.parse(str(claim)) == claim
    assert len(str(claim)) <= MAX_CLIENT_ID
    assert not set(str(claim)) & set("@#:, ")


@given(claims)
def test_every_claim_has_a_description(claim: ClaimId) -> None:
    described = claim.description
    assert claim.task != DRIVER or f"streaming query {claim.query}" in described or claim.query.startswith("cli-")
    assert described.isprintable()


def test_the_text_form_of_a_claim() -> None:
    assert str(ClaimId("q-1", 1700, 3)) == "spark_q-1_r1700_b3_driver_a0"
    assert str(ClaimId("app-1", 0, 0, task=PLANNER, reader="5f")) == "spark_app-1_r0_b0_planner_a0_n5f"
    task = ClaimId("q-1", 1700, 3, task=12, attempt=40, stage=8, reader="c0de", label=label_of("host_1", "my app", ""))
    assert str(task) == "spark_q-1_r1700_b3_s8_p12_a40_nc0de_whost-1+my-app"


def test_claims_of_earlier_releases_are_parsed() -> None:
    assert ClaimId.parse("spark_q-1_r1700_b3_p12_a40") == ClaimId("q-1", 1700, 3, task=12, attempt=40)
    assert ClaimId.parse("spark_q-1_r1700_b3_driver_a0") == ClaimId("q-1", 1700, 3)


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
        "spark_q_r1_b2_s3_a4",
        "spark_q_r1_b2_s3_driver_a4",
        "spark_q_r1_b2_p3_a4_n",
        "spark_q_r1_b2_p3_a4_wa b",
    ],
)
def test_other_client_ids_are_no_claims(client_id: str) -> None:
    assert ClaimId.parse(client_id) is None


TASK = ClaimId("q", run=5, batch=5, task=5, attempt=5, stage=5, reader="5")


@pytest.mark.parametrize(
    ("holder", "relation"),
    [
        (replace(TASK, query="r"), Relation.FOREIGN),
        (replace(TASK, run=4, batch=9, attempt=9), Relation.PREDECESSOR),
        (ClaimId("q", 4, 9, task=9, attempt=9), Relation.PREDECESSOR),  # of an earlier release
        (replace(TASK, run=6, batch=1), Relation.UNCLEAR),
        (ClaimId("q", 6, 1), Relation.UNCLEAR),
        (replace(TASK, batch=4, attempt=9), Relation.PREDECESSOR),
        (replace(TASK, batch=6, attempt=1), Relation.SUCCESSOR),
        (ClaimId("q", 5, 6), Relation.SUCCESSOR),
        (ClaimId("q", 5, 5), Relation.PREDECESSOR),  # the driver of the batch
        (replace(TASK, attempt=4), Relation.PREDECESSOR),
        (replace(TASK, attempt=6), Relation.SUCCESSOR),
        (replace(TASK, reader="6"), Relation.ITSELF),
        (replace(TASK, stage=4, attempt=9), Relation.SIBLING),  # another action
        (replace(TASK, task=4, attempt=9), Relation.SIBLING),  # the other side of a union
        (replace(TASK, task=PLANNER, stage=NO_STAGE), Relation.SIBLING),
    ],
)
def test_the_relation_of_a_holder_to_a_task(holder: ClaimId, relation: Relation) -> None:
    assert TASK.relation(holder) is relation


def test_the_relation_of_a_holder_to_a_driver_or_a_planner() -> None:
    driver, planner = ClaimId("q", 5, 6), replace(TASK, task=PLANNER, stage=NO_STAGE)
    assert driver.relation(TASK) is Relation.PREDECESSOR
    assert driver.relation(replace(TASK, batch=6)) is Relation.SUCCESSOR
    assert planner.relation(TASK) is Relation.SIBLING
    assert planner.relation(replace(planner, reader="6")) is Relation.SIBLING


MIRRORED = {
    Relation.FOREIGN: {Relation.FOREIGN},
    Relation.SIBLING: {Relation.SIBLING},
    Relation.ITSELF: {Relation.ITSELF},
    Relation.PREDECESSOR: {Relation.SUCCESSOR, Relation.UNCLEAR},
    Relation.SUCCESSOR: {Relation.PREDECESSOR},
    Relation.UNCLEAR: {Relation.PREDECESSOR},
}


@given(claims, claims)
def test_two_claims_never_fence_each_other(one: ClaimId, other: ClaimId) -> None:
    for holder in (other, replace(other, query=one.query), replace(other, query=one.query, run=one.run)):
        if (one.task, holder.task) != (DRIVER, DRIVER) or one.run != holder.run or one.query != holder.query:
            assert holder.relation(one) in MIRRORED[one.relation(holder)]
        assert (one.relation(holder) is Relation.FOREIGN) == (one.query != holder.query)


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
def test_finds_the_holder_in_a_brokers_text(message: str, holder: str) -> None:
    assert holder_in(message) == holder
