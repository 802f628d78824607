"""Why a link lets go of a server, or cannot get through. None carries anything that the vendor said."""

from __future__ import annotations


class LinkError(Exception):
    """Base. `pause` is how long to stay away at least, in seconds."""

    pause = 0.0


class Lost(LinkError):
    """The connection ended, or says nothing although it should."""


class Closing(LinkError):
    """The server takes no connections any more; it ends when ours are closed."""


class Unauthorized(LinkError):
    """The token is refused. A server may ban an address that tries too often."""

    pause = 60.0


class Strange(LinkError):
    """What answers there is no server of Kimi Code, and must not see its token."""

    pause = 5.0


class RestError(LinkError):
    """A REST call that did not succeed. `code` is the vendor's number or the HTTP status, 0 for neither.

    `sent`: the server may have seen the call.
    """

    def __init__(self, code: int, *, sent: bool) -> None:
        super().__init__(f"code {code}" if code else "no answer")
        self.code = code
        self.sent = sent


class ServiceAway(LinkError):
    """The service of ours does not answer, or will not have us."""
