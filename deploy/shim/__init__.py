"""The command that Kimi Code runs for each hook event."""
