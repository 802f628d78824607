"""kimi-hook: hand one hook event of Kimi Code to the service, and relay its reply.

Kimi Code starts this for every event and often waits for it, so it is meant to run with an absolute
interpreter path as ``python -I -S kimi_hook.py``, and imports only built-in modules: any import of the
standard library costs more than all of its work. This file lets go of the agent where asked to; the rest
is in ``exchange.py`` beside it, which Python keeps compiled (a script is compiled on each start).

It fails open: whatever happens it exits with 0 (2 would block the agent; kimi-code 2.1.0 hook runner).
"""

import sys

if sys.platform == "win32":
    import nt as system

    NULL = "nul"
else:
    import posix as system

    NULL = "/dev/null"

NAME = "kimi_hook.py"


def let_go() -> tuple[int, int]:
    """Go on in a session of our own, which a kill of the agent's process group does not reach.

    At the end of a turn kimi-code 2.1.0 sends the group of a hook SIGTERM, then SIGKILL 100 ms later.

    Returns:
        The descriptor of the event, and one to close when the event has been read (-1: nothing was let go).
        Until then the first process stays: were it to leave, the agent would destroy the pipe it writes to.
    """
    if sys.platform == "win32":
        return 0, -1
    import _signal as signal  # type: ignore[import-not-found]

    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    waiting, working = system.pipe()
    try:
        first = system.fork()
    except OSError:
        return 0, -1
    if first:
        system.close(working)
        system.read(waiting, 1)
        system._exit(0)
    system.setsid()
    system.close(waiting)
    event = system.dup(0)
    null = system.open(NULL, system.O_RDWR)
    for stream in (0, 1, 2):
        system.dup2(null, stream)
    return event, working


def main() -> None:
    """Run the command; never returns."""
    try:
        # No pipe or socket may end up where a standard stream is closed.
        while (descriptor := system.open(NULL, system.O_RDWR)) < 3:
            continue
        system.close(descriptor)
        arguments = sys.argv[1:]
        event, held = let_go() if "--detach" in arguments else (0, -1)
        from _frozen_importlib_external import SourceFileLoader

        code = SourceFileLoader("exchange", __file__.removesuffix(NAME) + "exchange.py").get_code("exchange")
        assert code is not None
        exchange = {"__name__": "exchange"}
        exec(code, exchange)
        run: object = exchange["run"]
        assert callable(run)
        run(arguments, event, held)
    finally:
        system._exit(0)


if __name__ == "__main__":
    main()
