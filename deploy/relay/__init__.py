"""The relay link: one process at a time sends this deployment's own sessions to an AEP relay."""
