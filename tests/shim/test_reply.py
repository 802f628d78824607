"""What reaches the agent: a denial or a message out of a whole JSON reply, and nothing else."""

from __future__ import annotations

import socket

import pytest

from tests.shim.service import Service, assert_silent, ok, say, shim

DENY = b'{"hookSpecificOutput":{"permissionDecision":"deny","permissionDecisionReason":"no"}}'
STEER = b'{"message":"try the other file \xe2\x9c\x93"}'
NESTED = b'{"hookSpecificOutput":{"message":"look again"}}'


def chunked(*chunks: bytes, end: bytes = b"0\r\n\r\n") -> bytes:
    head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json; charset=utf-8\r\n"
    coding = b"Transfer-Encoding: Chunked\r\n\r\n"
    return head + coding + b"".join(b"%x;x=y\r\n%s\r\n" % (len(chunk), chunk) for chunk in chunks) + end


@pytest.mark.parametrize("body", [DENY, STEER, NESTED], ids=["deny", "steer", "nested"])
def test_a_decision_or_a_message_is_relayed_as_it_came(body: bytes) -> None:
    for reply in (ok(body), chunked(body[:9], body[9:]), b"HTTP/1.1 100 Continue\r\n\r\n" + ok(body)):
        with Service(say(reply)) as service:
            done = shim(service.url)
        assert (done.returncode, done.stdout, done.stderr) == (0, body, b"")


BODIES = {
    "empty object": b"{}",
    "spaced object": b" { }\n",
    "nothing": b"",
    "blank": b" \r\n",
    "null": b"null",
    "array": b'[{"message":"m"}]',
    "string": b'"message"',
    "empty message": b'{"message":""}',
    "message of another type": b'{"message":{"message":"m"}}',
    "ask": b'{"hookSpecificOutput":{"permissionDecision":"ask"}}',
    "allow": b'{"hookSpecificOutput":{"permissionDecision":"allow","x":"message"}}',
    "decision in the wrong place": b'{"permissionDecision":"deny","hookSpecificOutput":null}',
    "word only": b'{"detail":"message"}',
    "two objects": b'{"message":"m"}{"message":"m"}',
    "cut": b'{"message":"m"',
    "not JavaScript's JSON": b'{"message":"m","x":NaN}',
    "not UTF-8": b'{"message":"\xff"}',
    "byte order mark": b'\xef\xbb\xbf{"message":"m"}',
    "nesting": b'{"message":"m","x":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
}


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
def test_any_other_body_is_withheld(body: bytes) -> None:
    with Service(say(ok(body))) as service:
        assert_silent(shim(service.url))


REPLIES = {
    "500": ok(DENY, status="500 Internal Server Error"),
    "201": ok(DENY, status="201 Created"),
    "2000": ok(DENY, status="2000 OK"),
    "redirect": b"HTTP/1.1 302 Found\r\nlocation: /x\r\n" + ok(DENY).partition(b"\r\n")[2],
    "html": ok(b"<html>message</html>", kind="text/html"),
    "json as text": ok(DENY, kind="text/plain"),
    "html as json": ok(b'<html>"message"</html>'),
    "no type": b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%s" % (len(DENY), DENY),
    "no length": b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n\r\n" + DENY,
    "half": ok(DENY)[:-20],
    "half a head": ok(DENY)[:40],
    "longer than its length": ok(DENY) + b"more",
    "two lengths": ok(DENY).replace(b"\r\n\r\n", b"\r\ncontent-length: 2\r\n\r\n"),
    "negative length": ok(DENY).replace(b"length: ", b"length: -"),
    "a length beyond all": ok(DENY).replace(b"length: ", b"length: 999999999999"),
    "length and chunks": ok(DENY).replace(b"\r\n\r\n", b"\r\ntransfer-encoding: chunked\r\n\r\n"),
    "compressed": ok(DENY).replace(b"\r\n\r\n", b"\r\ncontent-encoding: gzip\r\n\r\n"),
    "chunks without end": chunked(DENY, end=b""),
    "chunks with half an end": chunked(DENY, end=b"0\r\n"),
    "chunk shorter than said": chunked(DENY).replace(b"\r\n\r\n5", b"\r\n\r\n4"),
    "chunk of negative size": chunked(end=b"-5\r\nabc"),
    "chunk of no size": chunked(end=b"\r\n\r\n"),
    "another protocol": b"+PONG\r\n",
    "nothing": b"",
    "huge": ok(b'{"message":"' + b"x" * (8 << 20) + b'"}'),
    "endless head": b"HTTP/1.1 200 OK\r\nx: " + b"y" * (8 << 20),
}


@pytest.mark.parametrize("reply", REPLIES.values(), ids=REPLIES)
def test_a_reply_counts_only_whole(reply: bytes) -> None:
    with Service(say(reply)) as service:
        assert_silent(shim(service.url))


@pytest.mark.parametrize("reply", [ok(STEER), chunked(STEER)], ids=["length", "chunks"])
def test_a_reply_that_comes_in_pieces_is_whole_at_its_end(reply: bytes) -> None:
    def drip(connection: socket.socket) -> None:
        for at in range(0, len(reply), 3):
            connection.sendall(reply[at : at + 3])

    with Service(drip) as service:
        assert shim(service.url).stdout == STEER
