"""A server that was killed before its journal had its last frames gives their numbers to other ones."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from aep_sdk.projection import StateProjection

from tests.app.replica import Replica, until
from tests.web.fake import Fake, faking
from tests.web.frames import Journal
from tests.web.linked import linking_to, quicken, told
from tests.web.stage import EPOCH, SESSION, Stage

GAP = "x.kimi-code.web.gap"


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    quicken(monkeypatch)


async def _begun(replica: Replica, fake: Fake) -> Journal:
    """Two turns are told, and the server is killed."""
    journal = fake.session("session_1")
    journal.turn(0, calls=["a"])
    journal.turn(1, calls=["b"])
    await told(replica, *["run.finished"] * 2)
    await fake.stop(file=False)
    return journal


def _sound(events: list[dict[str, Any]]) -> Counter[str]:
    projection = StateProjection()
    for event in events:
        projection.apply(event)
    assert projection.state()["violations"] == []
    return Counter(event["type"] for event in events)


@pytest.mark.parametrize("lost", [1, 4])
@pytest.mark.parametrize("meanwhile", [0, 1, 3])
async def test_numbers_that_are_given_again_are_told_as_a_gap_and_then_taken(
    replica: Replica, tmp_path: Path, lost: int, meanwhile: int
) -> None:
    async with faking(tmp_path) as fake, linking_to(replica, tmp_path) as link:
        journal = await _begun(replica, fake)
        journal.rewind(lost)
        fake.turns["session_1"] = None
        for number in range(meanwhile):
            journal.turn(2 + number, calls=["m"])
        await fake.start(fake.port)
        await told(replica, GAP)
        await until(lambda: link.report()["servers"][0]["sessions"] == 1)
        await fake.send(journal, *journal.turn(9, calls=["z"]))
        events = await told(replica, *["run.finished"] * 3)
    kinds = _sound(events)
    assert kinds[GAP] == 1
    assert kinds["run.started"] == kinds["run.finished"] == 3
    gap = next(event for event in events if event["type"] == GAP)
    assert gap["data"] == {"reason": "rewound"}


async def test_a_server_that_lost_nothing_repeats_nothing(replica: Replica, tmp_path: Path) -> None:
    async with faking(tmp_path) as fake, linking_to(replica, tmp_path) as link:
        journal = await _begun(replica, fake)
        journal.turn(2)
        await fake.start(fake.port)
        events = await told(replica, *["run.finished"] * 3)
        assert link.report()["servers"][0]["resyncs"] == 0
        assert replica.service.counters.snapshot().get("frames.web.repeated", 0) == 0
    assert _sound(events)[GAP] == 0


def test_only_who_saw_the_last_frame_can_rewind() -> None:
    stage = Stage()
    assert stage.resync(number=9) == []
    assert stage.resync(number=3, reason="rewound", rewound="2026-11-30T14:00:09.000Z") == []
    assert stage.state(SESSION).cursors == {f"web.{EPOCH}": 9}
