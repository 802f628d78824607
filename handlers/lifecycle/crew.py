"""Who is at work: the subagents, as far as the parent's hooks let one know.

Hooks of subagents arrive under the parent's session without an agent id (kimi-code 0.28 and 2.1). The
foreground are the open calls that spawn one and wait for it; the background are the spawned ones that
have not ended. On engine v1 the background is counted by `SubagentStart` and `SubagentStop` instead.
"""

from __future__ import annotations

from enum import Enum, auto

from handlers.lifecycle.bounds import SPAWNS
from handlers.lifecycle.entries import Crew, Spawn
from handlers.lifecycle.state import SessionState

_SWARM = 1_000
SPAWNERS = {"Agent": 1, "AgentSwarm": _SWARM}
"""The tools that spawn subagents, and how many at most."""

FAILING_MS = 2_000
TASK_PREFIX = "agent-"

_STOPS_OLD = 2  # kimi-code 0.28 may ask a subagent for a longer answer, and then fires a second Stop


class Surplus(Enum):
    """Whether an end that was taken for a foreground subagent's was the main agent's."""

    NONE = auto()
    MAYBE = auto()  # a `Stop`, where a subagent fires one or two
    STOP = auto()
    FAILURE = auto()


def spawned(state: SessionState, call: str, event_id: str, tool: str, *, background: bool) -> None:
    """A call of a spawner begins."""
    crew = state.crew
    abandoned(state, call)
    side = crew.background if background else crew.foreground
    if not background:
        crew.subagents += SPAWNERS.get(tool, 1)
    side.append(Spawn(call, event_id, SPAWNERS.get(tool, 1) >= _SWARM))
    if len(side) > SPAWNS:
        del side[0]
        crew.anonymous = min(crew.anonymous, len(crew.background))


def abandoned(state: SessionState, call: str) -> None:
    """A call that would start a subagent did not."""
    crew = state.crew
    if any(spawn.call == call for spawn in crew.background):
        crew.background = [spawn for spawn in crew.background if spawn.call != call]
        crew.anonymous = min(crew.anonymous, len(crew.background))
    _leave(state, call)


def returned(state: SessionState, call: str) -> Surplus | None:
    """A spawning call succeeded. See `_left` for the answer.

    The background of it goes on; the foreground is over.
    """
    return _left(state, call, failed=0)


def broke(state: SessionState, call: str, at: int) -> Surplus | None:
    """A spawning call failed at Unix ms `at`: its subagent's `StopFailure` was seen, or is to come."""
    crew = state.crew
    bracketed = crew.open > 0 or state.engine == "v2"
    seen = crew.failures
    if not any(spawn.call == call for spawn in crew.foreground):
        abandoned(state, call)
        return None
    left = _left(state, call, failed=1)
    if crew.foreground:
        crew.open = max(0, crew.open - 1)
        crew.failures = max(0, seen - 1)
    if bracketed and seen == 0:
        crew.failing = at + FAILING_MS
    return left


def stop_seen(state: SessionState, *, failed: bool) -> None:
    """A `Stop` or `StopFailure` was taken for a foreground subagent's."""
    crew = state.crew
    if failed:
        crew.failures += 1
    else:
        crew.stops += 1


def failure_told(state: SessionState, at: int) -> None:
    """A background subagent failed, by the word of Unix ms `at`: its `StopFailure` is to come."""
    state.crew.failing = at + FAILING_MS


def foreground(state: SessionState) -> bool:
    """Whether an end that arrives now is a foreground subagent's, and not of the main agent.

    The calls that would close the foreground are told without waiting and can be late: it is over, too,
    when every bracket under it has closed or failed, or when more ended than can be subagents.
    """
    crew = state.crew
    if not crew.foreground:
        return False
    if crew.begun > 0:
        return crew.open > crew.failures
    if crew.failures >= crew.subagents:
        return False
    return not (state.engine == "v2" and crew.stops >= _STOPS_OLD * crew.subagents)


def breaking(state: SessionState, at: int) -> bool:
    """Whether a foreground subagent is at work or broke within the last seconds."""
    return bool(state.crew.foreground) or state.crew.failing >= at


def background(state: SessionState) -> int:
    """How many background subagents may still be at work."""
    crew = state.crew
    return crew.brackets if state.engine == "v1" else len(crew.background) - crew.anonymous


def started(state: SessionState) -> str | None:
    """`SubagentStart`. The `tool.requested` it comes from, where that can be told."""
    crew = state.crew
    if crew.foreground:
        crew.begun += 1
        crew.open += 1
        return crew.foreground[-1].id
    if state.engine == "v1":
        crew.brackets += 1
    return crew.background[-1].id if crew.background else None


def stopped(state: SessionState) -> int:
    """`SubagentStop`. How many of the newest held `Stop`s were that subagent's."""
    crew = state.crew
    if crew.foreground and (crew.open > 0 or crew.begun == 0):
        crew.open = max(0, crew.open - 1)
        return 0
    if state.engine == "v1":
        if crew.brackets == 0:
            return 0
        crew.brackets -= 1
        if crew.background:
            del crew.background[0]
        # That engine asks a subagent for a longer answer, and then fires a second Stop.
        return 2
    if crew.named > 0:
        crew.named -= 1
        return 0
    single = sum(not spawn.many for spawn in crew.background)
    if crew.anonymous < single:
        crew.anonymous += 1
        if crew.anonymous == single:
            crew.background = [spawn for spawn in crew.background if spawn.many]
            crew.anonymous = 0
        return 1
    # One of a swarm, whose end only its Notification tells.
    return 1 if len(crew.background) > single else 0


def task_started(state: SessionState, task: str) -> None:
    """`TaskStarted` of a subagent: names a background spawn, or moves a foreground one there."""
    crew = state.crew
    side = crew.background
    for i, spawn in enumerate(side):
        if spawn.task is None:
            side[i] = Spawn(spawn.call, spawn.id, spawn.many, task)
            return
    if crew.foreground and not any(spawn.task == task for spawn in side):
        spawn = crew.foreground[-1]
        _leave(state, spawn.call)
        side.append(Spawn(spawn.call, spawn.id, spawn.many, task))


def notified(state: SessionState, task: str, *, completed: bool) -> int:
    """A background subagent's terminal `Notification`. How many held `Stop`s were that subagent's."""
    crew = state.crew
    if state.engine == "v1":
        if not completed and crew.brackets > 0:
            crew.brackets -= 1
        return 0
    side = crew.background
    found = next((i for i, spawn in enumerate(side) if spawn.task == task), None)
    if found is None:
        found = next((i for i, spawn in enumerate(side) if spawn.task is None), None)
    if found is None:
        return 0
    swarm = side.pop(found).many
    if state.engine == "v2":
        # 0.28 sends that engine's Subagent pair with an empty session id: this is the only sign.
        return 2 if completed else 0
    if not completed or swarm:
        crew.anonymous = min(crew.anonymous, len(side))
        return 0
    if crew.anonymous > 0:
        crew.anonymous -= 1
        return 0
    crew.named += 1
    return 1


def relieve(state: SessionState) -> None:
    """A run ended or began: no foreground call is at work."""
    crew = state.crew
    crew.foreground.clear()
    _reset(crew)


def dismiss(state: SessionState) -> None:
    """The vendor's process is a new one: nobody is in the background."""
    crew = state.crew
    crew.background.clear()
    crew.anonymous = crew.named = crew.brackets = 0


def surplus(state: SessionState, failed: int | None = None) -> Surplus:
    """Whether more ends were taken for the foreground subagents' than those have fired.

    `failed` of them are known to have failed; without it, as many as fired a `StopFailure`.
    """
    crew = state.crew
    if crew.subagents < _SWARM:
        subagents = crew.subagents
    elif crew.begun:
        subagents = max(crew.begun, crew.subagents % _SWARM)
    else:
        return Surplus.MAYBE if crew.stops > 1 else Surplus.NONE
    if failed is not None and crew.failures > failed and crew.subagents < _SWARM:
        return Surplus.FAILURE
    working = max(0, subagents - max(failed or 0, crew.failures))
    if crew.stops <= working:
        return Surplus.NONE
    most = working if state.engine == "new" else _STOPS_OLD * working
    return Surplus.STOP if crew.stops > most else Surplus.MAYBE


def done(state: SessionState) -> Surplus | None:
    """Whether the main agent is known to be done, too, now that every foreground subagent is.

    The news of the calls themselves may never come: kimi-code 2.1 kills the hooks that tell it, when the turn
    is over before they are.
    """
    crew = state.crew
    if not crew.foreground or crew.begun == 0 or crew.open > crew.failures:
        return None
    found = surplus(state)
    return found if found is Surplus.STOP else None


def _left(state: SessionState, call: str, *, failed: int) -> Surplus | None:
    """A foreground call is over; None when it was not the last. See `surplus`."""
    found = surplus(state, failed)
    return found if _leave(state, call) and not state.crew.foreground else None


def _leave(state: SessionState, call: str) -> bool:
    crew = state.crew
    staying = [spawn for spawn in crew.foreground if spawn.call != call]
    if len(staying) == len(crew.foreground):
        return False
    crew.foreground = staying
    if not staying:
        _reset(crew)
    return True


def _reset(crew: Crew) -> None:
    crew.subagents = crew.begun = crew.open = crew.stops = crew.failures = 0
