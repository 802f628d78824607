"""What the service is told: every frame, in order, numbered, and what is lost is counted."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from deploy.acp.copies import Copies
from deploy.acp.delivery import Delivery, Verdict
from deploy.acp.lines import LINE_LIMIT, Lines, frames, head_frame
from deploy.acp.outbox import BATCH_LINES, Outbox
from deploy.acp.wire import HEADER, Kind, Record, Records, encode
from tests.acp.harness import NOWHERE, TEE, Service, running, start
from tests.acp.test_transparency import read_line, through

WAIT = 60
ASK = b'{"jsonrpc":"2.0","id":1,"method":"session/prompt","params":{"sessionId":"s"}}'


def test_frames_in_order_with_cursor_direction_and_end() -> None:
    other = b'\n\r\nnot json\n{"no":"frame"}\n\xff\n' + ASK + b"\r\n"
    with Service() as service:
        through(start("echo", url=service.url), ASK + b"\n" + other)
        lines = service.lines
    assert [line["n"] for line in lines] == [1, 2, 3, 4, 5]
    assert len({line["conn"] for line in lines}) == 1
    assert sorted(line["dir"] for line in lines) == ["a2c", "a2c", "c2a", "c2a", "end"]
    assert [line["frame"] for line in lines[:-1]] == [json.loads(ASK)] * 4
    assert lines[-1]["frame"] == {"exit": 0, "lost": 0}
    assert all(isinstance(line["t"], int) for line in lines)


def test_a_question_is_told_before_its_answer() -> None:
    count = 2_000
    with Service() as service:
        with running(start("echo", url=service.url)) as process:
            assert process.stdin is not None
            for _ in range(count):
                process.stdin.write(ASK + b"\n")
                assert read_line(process) == ASK + b"\n"
            process.stdin.close()
            assert process.wait(WAIT) == 0
        told = [line["dir"] for line in service.lines]
    assert told == ["c2a", "a2c"] * count + ["end"]


def test_the_token_comes_from_the_environment_or_a_file(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("from-a-file\n")
    with Service() as service:
        env = {**os.environ, "AEP_TOKEN": "from-the-environment", "AEP_URL": service.url}
        through(start("echo", url=service.url, env=env), ASK + b"\n")
        command = [*TEE, "--token-file", str(file), "--", sys.executable, "-c", "print('{\"method\":1}')"]
        subprocess.run(
            command, env=env, stdin=subprocess.DEVNULL, capture_output=True, timeout=WAIT, check=True
        )
        told = [headers["authorization"] for headers in service.headers]
    assert told[0] == "Bearer from-the-environment"
    assert told[-1] == "Bearer from-a-file"
    assert service.headers[0]["content-type"] == "application/x-ndjson"


def test_a_service_that_comes_back_gets_what_it_missed() -> None:
    with Service(503, 401, 404, 200) as service, running(start("echo", url=service.url)) as process:
        assert process.stdin is not None
        process.stdin.write(ASK + b"\n")
        waiting = threading.Event()
        for _ in range(WAIT * 20):
            if len(service.lines) >= 2:
                break
            waiting.wait(0.05)
        process.stdin.close()
        assert process.wait(WAIT) == 0
        assert [line["n"] for line in service.lines] == [1, 2, 3]


@pytest.mark.slow
def test_ten_thousand_lines_a_second_are_told_or_counted() -> None:
    count = 50_000
    with Service() as service:
        out, _, code = through(start("burst", str(count), "100", url=service.url), b"x")
        lines = service.lines
    assert (out.count(b"\n"), code) == (count, 0)
    told = [line for line in lines if line["dir"] == "a2c"]
    assert [line["n"] for line in lines] == sorted(line["n"] for line in lines)
    if lines and lines[-1]["dir"] == "end":
        assert len(told) + lines[-1]["frame"]["lost"] == count


def feed(lines: Lines, *parts: bytes) -> list[tuple[bytes | None, bool]]:
    return [line for part in parts for line in lines.feed(part)]


def test_lines_are_found_across_any_cut() -> None:
    assert feed(Lines(), b"a", b"b\nc", b"\n", b"\nd\ne") == [
        (b"ab", False),
        (b"c", False),
        (b"", False),
        (b"d", False),
    ]


def test_a_line_beyond_the_limit_keeps_its_head() -> None:
    lines = Lines()
    part = b"x" * 65536
    for _ in range(LINE_LIMIT // len(part) + 2):
        assert lines.feed(part) == []
    ((line, cut), after) = feed(lines, b"yy\nnext\n")
    assert (line, cut, after) == (b"x" * 4096, True, (b"next", False))


def test_a_loss_tears_one_line() -> None:
    lines = Lines()
    lines.feed(b"begun")
    lines.lose()
    assert feed(lines, b"rest\nwhole\n") == [(None, False), (b"whole", False)]


@pytest.mark.parametrize(
    ("line", "found"),
    [
        (ASK, [ASK]),
        (b"  " + ASK + b"\r", [ASK]),
        (b'{"id":1,"result":null}', [b'{"id":1,"result":null}']),
        (b"[" + ASK + b',3,{"x":1}]', [json.dumps(json.loads(ASK)).encode()]),
        (b"", []),
        (b"3", []),
        (b"null", []),
        (b"{}", []),
        (b'{"method":', []),
        (b"[" * 50_000, []),
        (b'{"method":"\xff"}', []),
    ],
)
def test_which_lines_are_frames(line: bytes, found: list[bytes]) -> None:
    assert frames(line) == found


@pytest.mark.parametrize(
    ("head", "frame"),
    [
        (
            b'{"jsonrpc":"2.0","id":6,"method":"session/prompt","params":{"sessionId":"s\\u0031","prompt":[{"t',
            {"id": 6, "method": "session/prompt", "params": {"sessionId": "s1"}},
        ),
        (
            b'{"jsonrpc": "2.0", "method": "session/update", "params": {"sessionId": "s", "update": '
            b'{"sessionUpdate": "tool_call_update", "toolCallId": "2:c", "status": "completed", "content": [',
            {
                "method": "session/update",
                "params": {
                    "sessionId": "s",
                    "update": {
                        "sessionUpdate": "tool_call_update",
                        "toolCallId": "2:c",
                        "status": "completed",
                    },
                },
            },
        ),
        (b'{"jsonrpc":"2.0","id":"a","result":{"content":"xxxx', {"id": "a", "result": {}}),
        (b'{"params":{"x":"xxxxx', None),
        (b"xxxx", None),
    ],
)
def test_what_the_head_of_a_giant_says(head: bytes, frame: dict[str, object] | None) -> None:
    told = head_frame(head)
    assert (None if told is None else json.loads(told)) == (
        None if frame is None else {"jsonrpc": "2.0", **frame}
    )


def test_copies_never_wait_and_count_what_they_drop() -> None:
    reading, writing = os.pipe()
    copies = Copies(writing, limit=1_000_000)
    copies.start()
    for _ in range(500):
        copies.offer(Kind.TO_AGENT, b"0123456789\n" * 1000)
    copies.offer(Kind.TO_CLIENT, b"small\n")
    records: list[Record] = []

    def drain() -> None:
        parser = Records()
        while chunk := os.read(reading, 65536):
            records.extend(parser.feed(chunk))
        os.close(reading)

    thread = threading.Thread(target=drain)
    thread.start()
    copies.finish(-9, WAIT)
    thread.join(WAIT)
    told = sum(record.payload.count(b"\n") for record in records if record.kind is Kind.TO_AGENT)
    lost = sum(record.number for record in records if record.kind is Kind.LOST_TO_AGENT)
    assert (told + lost, lost > 0) == (500_000, True)
    assert (records[-1].kind, records[-1].number) == (Kind.END, -9)


def test_records_are_read_however_they_are_cut() -> None:
    written = [
        Record(Kind.TO_AGENT, 5, b"ab\n"),
        Record(Kind.LOST_TO_CLIENT, 6, number=3),
        Record(Kind.END, 7),
    ]
    data = b"".join(part for record in written for part in encode(record))
    for step in (1, 7, len(data)):
        parser = Records()
        found = [r for at in range(0, len(data), step) for r in parser.feed(data[at : at + step])]
        assert found == written
    assert Records().feed(b"\0" * (HEADER.size - 1)) == []


def test_the_outbox_is_bounded_and_keeps_what_tells_most() -> None:
    outbox = Outbox(limit=1000)
    chunk = b'{"frame":"agent_message_chunk"}'.ljust(100)
    for _ in range(20):
        outbox.put(chunk)
    assert outbox.lost == 14
    for number in range(20):
        outbox.put(b"%100d" % number)
    batch = outbox.take(0)
    assert len(b"".join(batch)) <= 1000
    assert batch[-1].strip() == b"19"
    assert outbox.lost + len(batch) == 40


def test_batches_are_bounded_and_a_giant_goes_alone() -> None:
    outbox = Outbox()
    outbox.put(b"x" * 3_000_000)
    for _ in range(BATCH_LINES + 5):
        outbox.put(b"y")
    outbox.close()
    assert [len(outbox.take(0)) for _ in range(4)] == [1, BATCH_LINES, 5, 0]


@pytest.mark.parametrize(
    ("status", "verdict"),
    [
        (200, Verdict.TAKEN),
        (204, Verdict.TAKEN),
        (400, Verdict.REFUSED),
        (413, Verdict.REFUSED),
        (401, Verdict.UNKNOWN),
        (404, Verdict.UNKNOWN),
        (503, Verdict.UNKNOWN),
    ],
)
def test_what_an_answer_means(status: int, verdict: Verdict) -> None:
    with Service(status) as service:
        delivery = Delivery(service.url, None)
        assert delivery.post(b"{}\n", 5) is verdict
        delivery.close()


def test_nobody_there() -> None:
    assert Delivery(NOWHERE, None).post(b"{}\n", 5) is Verdict.UNKNOWN
