"""A small model provider for tests: OpenAI-compatible chat completions, scripted by a marker in the prompt.

The last `MOCK:<scenario>` in the user messages chooses the script; what follows an equals sign
on its line is the script's argument (``MOCK:bash_ok=ls -la``). The number of assistant messages after that
message is the step. A script shorter than the conversation answers `LATER`. Every request is kept, so that a
test can say what reached the model.

Speaks what `kimi-code 2.1.0` and `0.28.0` need of provider types ``openai`` and ``kimi``: `POST
/v1/chat/completions` with ``stream`` true or false, `GET /v1/models`.
"""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

LATER = "Noted."
MARKER = re.compile(r"MOCK:([A-Za-z0-9_]+)(?:=([^\n]*))?")


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One tool call of an answer; `arguments` goes as JSON, a string as it is (for bad arguments)."""

    name: str
    arguments: Mapping[str, Any] | str


@dataclass(frozen=True, slots=True)
class Reply:
    """One answer of the model. `delay_s` before the first byte, `pace_s` between text chunks (seconds);
    `hold` waits for `ModelServer.release` (at most 60 s) after the first chunk; `status` other than 200 is a
    provider error."""

    text: str = ""
    tools: tuple[ToolCall, ...] = ()
    reasoning: str = ""
    status: int = 200
    delay_s: float = 0.0
    pace_s: float = 0.0
    hold: bool = False
    prompt_tokens: int = 100


@dataclass(frozen=True, slots=True)
class ModelRequest:
    """What the model was asked: the parsed body, the scenario and step it was answered from."""

    at: float
    path: str
    scenario: str
    argument: str
    step: int
    body: dict[str, Any] = field(repr=False)

    @property
    def messages(self) -> list[dict[str, Any]]:
        return [m for m in self.body.get("messages", []) if isinstance(m, dict)]

    @property
    def tools(self) -> list[str]:
        return [t["function"]["name"] for t in self.body.get("tools") or []]

    def texts(self, role: str) -> list[str]:
        """The text of each message of a role, in order."""
        return [text_of(m.get("content")) for m in self.messages if m.get("role") == role]


def text_of(content: object) -> str:
    """The text of an OpenAI message content: a string, or text parts joined by newlines."""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "\n".join(p["text"] for p in content if isinstance(p, dict) and isinstance(p.get("text"), str))
    return ""


Script = Callable[[str, int], Reply]


def steps(*replies: Reply) -> Script:
    """A script that answers the replies in order, then `LATER`."""
    return lambda _argument, step: replies[step] if step < len(replies) else Reply(LATER)


def _bash(default: str, answer: str) -> Script:
    def script(argument: str, step: int) -> Reply:
        call = ToolCall("Bash", {"command": argument or default})
        return (Reply("Running a command.", (call,)), Reply(answer), Reply(LATER))[min(step, 2)]

    return script


def _agent(child: str, *, background: bool = False) -> Script:
    def script(argument: str, step: int) -> Reply:
        arguments: dict[str, Any] = {
            "description": "a small errand",
            "prompt": argument or f"MOCK:{child} Reply with one short sentence.",
            "subagent_type": "coder",
        }
        if background:
            arguments["run_in_background"] = True
        first = Reply("Asking a helper.", (ToolCall("Agent", arguments),))
        # not at once: hooks that the vendor does not wait for would arrive after the end of the run
        return (first, Reply("The helper was asked.", delay_s=0.5), Reply(LATER))[min(step, 2)]

    return script


QUESTION = {
    "questions": [
        {
            "question": "Which colour?",
            "header": "Colour",
            "options": [
                {"label": "Red", "description": "warm"},
                {"label": "Blue", "description": "cold"},
            ],
            "multi_select": False,
        }
    ]
}

LONG_ANSWER = "The errand is done: the files were read, nothing had to change, and nothing is left open. " * 4

SCRIPTS: dict[str, Script] = {
    "plain": steps(Reply("Hello from the mock model.")),
    "think": steps(Reply("Thought about it.", reasoning="Let me think about it.")),
    "bash_ok": _bash("echo mock-ok", "The command printed mock-ok."),
    "bash_fail": _bash("echo mock-bad >&2; exit 3", "The command failed."),
    "bash_slow": _bash("sleep 5", "The command took its time."),
    "bash_bg": steps(
        Reply(
            "Starting a task.",
            (ToolCall("Bash", {"command": "sleep 0.5", "run_in_background": True, "description": "nap"}),),
        ),
        Reply("The task was started."),
    ),
    "last_tool": steps(Reply("", (ToolCall("Bash", {"command": "true"}),)), Reply("Ok.")),
    "read_missing": steps(
        Reply("Reading.", (ToolCall("Read", {"path": "does-not-exist.txt"}),)),
        Reply("There is no such file."),
    ),
    "write": lambda argument, step: (
        Reply("Writing.", (ToolCall("Write", {"path": argument or "note.txt", "content": "note\n"}),)),
        Reply("Written."),
        Reply(LATER),
    )[min(step, 2)],
    "several": steps(
        Reply(
            "Three at once.",
            (
                ToolCall("Bash", {"command": "echo one"}),
                ToolCall("Bash", {"command": "echo two"}),
                ToolCall("Bash", {"command": "exit 4"}),
            ),
        ),
        Reply("Two worked, one failed."),
    ),
    "unknown_tool": steps(Reply("", (ToolCall("NoSuchTool", {"a": 1}),)), Reply("No such tool.")),
    "bad_args": steps(Reply("", (ToolCall("Bash", {"no_command": True}),)), Reply("Bad arguments.")),
    "ask": steps(Reply("A question.", (ToolCall("AskUserQuestion", QUESTION),)), Reply("Thank you.")),
    "todo": steps(
        Reply("", (ToolCall("TodoList", {"todos": [{"title": "first", "status": "in_progress"}]}),)),
        Reply("Planned."),
    ),
    "subagent": _agent("child"),
    "subagent_bg": _agent("child", background=True),
    "subagent_tool": _agent("child_tool"),
    "child": steps(Reply(LONG_ANSWER)),
    "child_tool": steps(
        Reply("Looking.", (ToolCall("Bash", {"command": "echo child"}),)),
        Reply(LONG_ANSWER),
    ),
    "err500": lambda _argument, _step: Reply(status=500),
    "err401": lambda _argument, _step: Reply(status=401),
    "err400": lambda _argument, _step: Reply(status=400),
    "slow": steps(Reply("One word after the other, and none of them in a hurry at all.", pace_s=0.4)),
    "hold": steps(Reply("Held until let go.", hold=True)),
}


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    allow_reuse_address = True
    request_queue_size = 64
    model: ModelServer


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def log_message(self, format: str, *args: object) -> None:
        pass

    def _json(self, status: int, value: object) -> None:
        body = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        # the OpenAI client in the vendor's binary retries a 5xx by itself, with its own pauses
        self.send_header("X-Should-Retry", "false")
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self) -> None:
        if self.path.rstrip("/").endswith("/models"):
            self._json(200, {"object": "list", "data": [{"id": "m1", "object": "model"}]})
        else:
            self._json(404, {"error": {"message": "no such route", "type": "not_found"}})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)) or b"{}")
        if not self.path.split("?")[0].endswith("/chat/completions"):
            self._json(404, {"error": {"message": "no such route", "type": "not_found"}})
            return
        reply, number = self.server.model.answer(self.path, body)
        try:
            if reply.delay_s:
                time.sleep(reply.delay_s)
            if reply.status != 200:
                self._json(reply.status, {"error": {"message": f"mock {reply.status}", "type": "mock_error"}})
            elif body.get("stream"):
                self._stream(reply, number)
            else:
                self._json(200, _whole(reply, number))
        except ConnectionError:
            self.close_connection = True

    def _stream(self, reply: Reply, number: int) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()

        def send(text: str) -> None:
            data = text.encode()
            self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
            self.wfile.flush()

        def chunk(delta: dict[str, Any], finish: str | None = None) -> str:
            value = _chunk(number, delta, finish)
            if finish is not None:
                value["usage"] = _usage(reply)
            return f"data: {json.dumps(value)}\n\n"

        send(chunk({"role": "assistant", "content": ""}))
        if reply.reasoning:
            send(chunk({"reasoning_content": reply.reasoning}))
        for word in re.findall(r"\S+\s*", reply.text) if reply.pace_s else [reply.text] if reply.text else []:
            send(chunk({"content": word}))
            time.sleep(reply.pace_s)
        if reply.hold:
            self.server.model.wait_for_release()
        for index, call in enumerate(_calls(reply, number)):
            send(chunk({"tool_calls": [{"index": index, **call}]}))
        finish = chunk({}, "tool_calls" if reply.tools else "stop")
        usage = {**_chunk(number, {}, None), "choices": [], "usage": _usage(reply)}
        send(f"{finish}data: {json.dumps(usage)}\n\ndata: [DONE]\n\n")
        self.wfile.write(b"0\r\n\r\n")
        self.wfile.flush()


def _usage(reply: Reply) -> dict[str, int]:
    return {
        "prompt_tokens": reply.prompt_tokens,
        "completion_tokens": 20,
        "total_tokens": reply.prompt_tokens + 20,
    }


def _chunk(number: int, delta: dict[str, Any], finish: str | None) -> dict[str, Any]:
    return {
        "id": f"chatcmpl-{number}",
        "object": "chat.completion.chunk",
        "created": 1_700_000_000,
        "model": "m1",
        "choices": [{"index": 0, "delta": delta, "finish_reason": finish}],
    }


def _calls(reply: Reply, number: int) -> list[dict[str, Any]]:
    return [
        {
            "id": f"call_{number}_{index}",
            "type": "function",
            "function": {
                "name": call.name,
                "arguments": call.arguments
                if isinstance(call.arguments, str)
                else json.dumps(call.arguments),
            },
        }
        for index, call in enumerate(reply.tools)
    ]


def _whole(reply: Reply, number: int) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": reply.text}
    if reply.reasoning:
        message["reasoning_content"] = reply.reasoning
    if reply.tools:
        message["tool_calls"] = _calls(reply, number)
    finish = "tool_calls" if reply.tools else "stop"
    return {
        "id": f"chatcmpl-{number}",
        "object": "chat.completion",
        "created": 1_700_000_000,
        "model": "m1",
        "choices": [{"index": 0, "message": message, "finish_reason": finish}],
        "usage": _usage(reply),
    }


class ModelServer:
    """The provider on a free loopback port, in a thread. Use as a context manager.

    `script(name, replies)` adds or replaces a scenario; `requests` is everything asked so far."""

    def __init__(self) -> None:
        self._scripts = dict(SCRIPTS)
        self._requests: list[ModelRequest] = []
        self._lock = threading.Lock()
        self._released = threading.Event()
        self._server = _Server(("127.0.0.1", 0), _Handler)
        self._server.model = self
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)

    def __enter__(self) -> ModelServer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._released.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(5)

    @property
    def url(self) -> str:
        """The base URL, as a provider's `base_url` wants it."""
        return f"http://127.0.0.1:{self._server.server_address[1]}/v1"

    @property
    def requests(self) -> list[ModelRequest]:
        with self._lock:
            return list(self._requests)

    def of(self, scenario: str) -> list[ModelRequest]:
        """The requests answered from one scenario, oldest first."""
        return [r for r in self.requests if r.scenario == scenario]

    def script(self, name: str, replies: Sequence[Reply] | Script) -> None:
        with self._lock:
            self._scripts[name] = replies if callable(replies) else steps(*replies)

    def reset(self) -> None:
        """Forget requests and own scripts; hold again."""
        with self._lock:
            self._requests.clear()
            self._scripts = dict(SCRIPTS)
        self._released.clear()

    def release(self) -> None:
        """Let every held answer go on, now and until `reset`."""
        self._released.set()

    def wait_for_release(self) -> None:
        self._released.wait(60)

    def answer(self, path: str, body: dict[str, Any]) -> tuple[Reply, int]:
        messages = [m for m in body.get("messages", []) if isinstance(m, dict)]
        scenario, argument, step = "", "", 0
        for message in messages:
            if message.get("role") == "assistant":
                step += 1
            elif message.get("role") == "user":
                # after a turn without an answer the vendor sends two prompts as one message
                for found in MARKER.finditer(text_of(message.get("content"))):
                    scenario, argument, step = found[1], (found[2] or "").strip(), 0
        with self._lock:
            script = self._scripts.get(scenario)
            self._requests.append(ModelRequest(time.time(), path, scenario, argument, step, body))
            number = len(self._requests)
        return (script(argument, step) if script else Reply("A summary of what happened so far.")), number
