"""The suites that drive the real Kimi Code binary from npm. All marked `vendor`."""
