# SPDX-License-Identifier: Apache-2.0
"""All decoders under test, the encoder of sends, and how a million inputs are shared among them."""

from __future__ import annotations

from typing import Any

from tests.fuzz import brokers, checkpoints, contents, masters, wire
from tests.fuzz.run import Decoder

DECODERS: tuple[Decoder[Any], ...] = (
    Decoder("frames", 125_000, wire.make_frames, wire.accepts_frames),
    Decoder("prefixed-frames", 100_000, wire.make_prefixed_frames, wire.accepts_frames),
    Decoder("replies", 120_000, wire.make_envelope, wire.accepts_envelope),
    Decoder("requests", 40_000, wire.make_request, wire.accepts_request),
    Decoder("master-replies", 80_000, masters.make_answer, masters.accepts_answer),
    Decoder("master-texts", 100_000, masters.make_text, masters.accepts_text),
    Decoder("flow-rules", 30_000, masters.make_rule, masters.accepts_rule),
    Decoder("broker-replies", 80_000, brokers.make_answer, brokers.accepts_answer),
    Decoder("fetched-messages", 60_000, brokers.make_fetches, brokers.accepts_fetches),
    Decoder("acknowledgements", 20_000, brokers.make_seed, brokers.accepts_acknowledgements),
    Decoder("sends", 25_000, brokers.make_seed, brokers.accepts_sends),  # a million records
    Decoder("payloads", 60_000, contents.make_payload, contents.accepts_payload),
    Decoder("stamps", 40_000, contents.make_attributes, contents.accepts_stamp),
    Decoder("inlong-packs", 50_000, contents.make_pack, contents.accepts_pack),
    Decoder("inlong-protobuf", 20_000, contents.make_objs, contents.accepts_objs),
    Decoder("compressed-bodies", 19_000, contents.make_compressed, contents.accepts_compressed),
    Decoder("offsets", 30_000, checkpoints.make_offset, checkpoints.accepts_offset),
    Decoder("claims", 20_000, checkpoints.make_claim, checkpoints.accepts_claim),
    Decoder("receipts", 1_000, checkpoints.make_file, checkpoints.accepts_file),
)
