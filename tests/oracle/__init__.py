"""Replays of what shipped binaries sent, and the score of the run rule against labelled truth."""
