"""The bounded box of a consumer, and the rendering of events."""

from __future__ import annotations

import asyncio

import orjson
import pytest

from handlers.aep.levels import Capture, Severity
from handlers.delivery import Item, Outbox

DEBUG, INFO, NOTICE = Severity.DEBUG.rank, Severity.INFO.rank, Severity.NOTICE.rank


def test_a_full_box_drops_the_small_talk() -> None:
    box = Outbox(limit=2)
    for payload in (b"a", b"b", b"c"):
        box.put(INFO, payload)
    assert box.dropped == 1
    assert box.take() == [b"a", b"b"]
    assert not box.overrun


def test_a_notice_takes_the_place_of_small_talk() -> None:
    box = Outbox(limit=3)
    box.put(NOTICE, b"n1")
    box.put(DEBUG, b"d")
    box.put(INFO, b"i")
    box.put(NOTICE, b"n2")
    assert box.take() == [b"n1", b"n2"]
    assert box.dropped == 2


def test_a_notice_without_a_place_ends_the_consumer() -> None:
    told: list[str] = []
    box = Outbox(limit=2)
    box.on_overrun = lambda: told.append("overrun")
    for _ in range(3):
        box.put(NOTICE, b"n")
    assert box.overrun
    assert told == ["overrun"]
    assert box.take() == [b"n", b"n"]


def test_bytes_are_bounded_too() -> None:
    box = Outbox(limit_bytes=10)
    box.put(INFO, b"12345678")
    box.put(INFO, b"12345678")
    assert box.dropped == 1


def test_a_control_frame_always_finds_a_place() -> None:
    box = Outbox(limit=1)
    box.put(NOTICE, b"n")
    box.force(b"frame")
    assert box.take() == [b"n", b"frame"]


async def test_waiting_ends_with_something_to_take() -> None:
    box = Outbox()
    waiter = asyncio.create_task(box.ready(10))
    await asyncio.sleep(0)
    box.put(INFO, b"x")
    assert await waiter
    assert box.take() == [b"x"]
    assert not await box.ready(0.001)
    box.close()
    assert await box.ready(10)


def item(**more: object) -> Item:
    event = {
        "aep": "0.1",
        "id": "1",
        "type": "run.started",
        "source": "s",
        "agent": "a",
        "session": "s",
        **more,
    }
    return Item.parse("own", orjson.dumps(event))


def test_a_message_carries_type_data_and_position() -> None:
    message = item(seq=7).message(None)
    assert message.startswith(b"event: run.started\ndata: {")
    assert message.endswith(b"}\nid: s:0:7\n\n")


def test_without_a_position_there_is_no_id() -> None:
    assert b"id: " not in item().message(None)
    assert b"\nid: " not in item(session="a\nb", seq=1).message(None)


def test_a_ceiling_lowers_and_never_raises() -> None:
    full = item(seq=1, capture="full", data={"trigger": "user", "prompt": "hello"})
    assert full.render(None) == full.render(Capture.FULL) == full.body
    lowered = orjson.loads(full.render(Capture.METADATA))
    assert lowered["capture"] == "metadata"
    assert lowered["data"] == {"trigger": "user"}


@pytest.mark.parametrize("severity", ["loud", 3, None])
def test_an_unknown_severity_counts_as_info(severity: object) -> None:
    assert item(severity=severity).rank == INFO
