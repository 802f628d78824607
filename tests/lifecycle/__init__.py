"""The reducer, rule by rule and as properties."""
