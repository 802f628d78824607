"""The agents whose sessions are ours, by the channel that sees them.

A session that an editor opened through the ACP tee and whose hooks arrive too is two sessions, one under
each agent: neither claims to be the other's events.
"""

from __future__ import annotations

from state.keys import AGENT

KIMI_CODE = AGENT
"""Hooks and `kimi web`."""
ACP = "acp"
"""The ACP tee. Its sessions are watched and take no commands."""

OURS = (KIMI_CODE, ACP)
