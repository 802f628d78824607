"""`aep-kimi sink`: events in files, one JSON line each, each event once."""
