"""The web link: watches running `kimi web` servers and hands their frames to the service."""
