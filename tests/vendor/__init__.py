"""The suites that drive the real Kimi Code from npm: 0.28.0 and the newest 2.x. All are marked `vendor`.

    pytest -m vendor            run them, one after the other (a busy machine makes the delivery tests unfair)
    AEP_VENDOR_CACHE=DIR        where the npm packages are kept (default `.ci/cache/vendor`)
    AEP_VENDOR_REQUIRED=1       fail instead of skipping when nothing can be installed

`install` gets Node and Kimi Code, `kimi` is one isolated home and `kimi -p`, `tui` the interactive program
in tmux, `web` and `acp` drive `kimi web` and `kimi acp`, `recorder` stands for the service, `service` is the
real one. The model is `tests.model_server`: `MOCK:<scenario>` in a prompt says what it does. Nothing of the
user's is read, no key is in the environment, all traffic is on loopback.
"""
