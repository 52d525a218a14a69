# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""What a silence covers, and for how long one may be."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from relight.events import SilenceAdded, SilenceEnded, from_json, to_json
from relight.silences import LONGEST, Matchers, Silence, Topic, about_something, ending
from relight.types import ClusterId, FailureName, NodeName, SignatureId, WorkloadId

NOON = datetime(2026, 11, 2, 12, 0, tzinfo=UTC)
TOPIC = Topic(
    cluster=ClusterId("east"), workload=WorkloadId("llm"), nodes=frozenset({NodeName("n2"), NodeName("n3")}),
    failure=FailureName("gpu_fell_off_bus"), signature=SignatureId("xid.catalogue#79"),
)  # fmt: skip


def silence(cluster: str = "east", **matchers: str) -> Silence:
    return Silence(
        id="s", cluster=ClusterId(cluster), matchers=Matchers(**matchers), starts_at=NOON,  # type: ignore[arg-type]
        ends_at=NOON + timedelta(hours=1), actor="ada", reason="bench",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("matchers", "is_covered"),
    [
        ({"workload": "llm"}, True),
        ({"workload": "llm-2"}, False),
        ({"node": "n3"}, True),
        ({"node": "n30"}, False),
        ({"failure": "gpu_fell_off_bus"}, True),
        ({"signature": "xid.catalogue#79"}, True),
        ({"signature": "xid.catalogue"}, True),
        ({"signature": "xid.catalogue#7"}, False),
        ({"signature": "xid"}, False),
        ({"workload": "llm", "node": "n2"}, True),
        ({"workload": "llm", "node": "n4"}, False),
    ],
)
def test_everything_that_is_given_must_hold(matchers: dict[str, str], is_covered: bool) -> None:
    assert silence(**matchers).covers(TOPIC) is is_covered


def test_another_clusters_incidents_are_not_covered() -> None:
    assert not silence("west", workload="llm").covers(TOPIC)


def test_what_is_not_known_yet_is_not_covered() -> None:
    assert not silence(failure="gpu_fell_off_bus").covers(Topic(cluster=ClusterId("east"), workload=WorkloadId("llm")))


def test_a_silence_stands_from_its_beginning_to_just_before_its_end() -> None:
    one = silence(node="n2")
    moments = [NOON - timedelta(seconds=1), NOON, NOON + timedelta(minutes=59), NOON + timedelta(hours=1)]
    assert [one.stands(at) for at in moments] == [False, True, True, False]


def test_a_silence_of_everything_or_for_good_cannot_be() -> None:
    with pytest.raises(ValueError, match="at least one"):
        about_something(Matchers())
    assert not silence().covers(TOPIC)
    assert ending(NOON, NOON + LONGEST) == NOON + LONGEST
    for wrong in (NOON, NOON - timedelta(hours=1), NOON + LONGEST + timedelta(seconds=1)):
        with pytest.raises(ValueError, match="within 30 days"):
            ending(NOON, wrong)


def test_its_events_are_read_back_as_they_were_written() -> None:
    added = SilenceAdded(at=NOON, silence=silence(node="n2", workload="llm"), actor="ada", cluster=ClusterId("east"))
    ended = SilenceEnded(at=NOON, silence="s", actor="ada", reason="done", cluster=ClusterId("east"))
    assert [from_json(to_json(one)) for one in (added, ended)] == [added, ended]
    assert (added.node, added.workload) == ("n2", "llm")
