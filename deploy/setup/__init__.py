"""`aep-setup`: puts the hooks into Kimi Code's config, takes them out, and says what is wrong."""
