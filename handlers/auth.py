"""Who may speak: bearer tokens, loopback, and the three checks that keep web pages out.

A browser can be made to send requests to a local port by any page its user visits. Therefore events are
taken only as JSON content types (a page cannot send those without being asked first), never with a foreign
`Origin`, and without a token only under a `Host` that names this machine (DNS rebinding).
"""

from __future__ import annotations

import hmac
import ipaddress
import time
from urllib.parse import parse_qs, urlsplit

from starlette.types import Scope

from handlers.errors import Refused
from handlers.head import Head, head_of, text_of
from handlers.settings import Settings
from handlers.tokens import ALL_RIGHTS, OPEN_RIGHTS, OWNER_LABEL, Principal, Right, TokenFile

_FORWARDED = (b"forwarded", b"x-forwarded-for", b"x-real-ip", b"via")
_RELOAD_SECONDS = 1.0


class Gatekeeper:
    """Decides for every request whom it speaks for, or refuses it."""

    def __init__(self, settings: Settings) -> None:
        self._own = [token.encode() for token in (settings.token, settings.control_token) if token]
        self._token = settings.token
        self._control_token = settings.control_token
        self._emitter = settings.emitter
        self._open = Principal(settings.emitter, OPEN_RIGHTS, False, name="local")
        self._owner = Principal(settings.emitter, ALL_RIGHTS, True, OWNER_LABEL, name=OWNER_LABEL)
        self._hosts = {"localhost", *settings.allowed_hosts}
        if not _is_wildcard(settings.host):
            self._hosts.add(settings.host.lower())
        self._file = TokenFile(settings.tokens_file) if settings.tokens_file else None
        self._checked = 0.0

    @property
    def protected(self) -> bool:
        """Whether a token is needed."""
        return self._token is not None or self._file is not None

    @property
    def answerable(self) -> bool:
        """Whether anybody can be authenticated, which control needs (AEP-0004 §4.1)."""
        return self.protected or self._control_token is not None

    def emitters(self) -> frozenset[str]:
        """Every emitter whose sessions this service owns."""
        known = frozenset({self._emitter})
        return known | self._file.emitters() if self._file is not None else known

    def admit(
        self,
        scope: Scope,
        right: Right,
        *,
        query: bool = False,
        posting: bool = False,
        head: Head | None = None,
    ) -> Principal:
        """The principal of a request that wants `right`. `head` is its head, where that was read before.

        `query` allows `?access_token=` (AEP-0003 §8.1), `posting` refuses every foreign `Origin`. Raises
        `Refused` with 401 (no or wrong token), 403 (foreign page, host or address, or a token without the
        right).
        """
        if head is None:
            head = head_of(scope)
        principal = self._identify(scope, head, query)
        if principal is None:
            if self.protected:
                raise Refused(401, "unauthorized", "a bearer token is needed: Authorization: Bearer TOKEN")
            self._check_local(scope, head)
            principal = self._open
        scope["aep.principal"] = principal
        if posting or not principal.authenticated:
            check_origin(head)
        if not principal.may(right):
            raise Refused(403, "forbidden", f"this token does not allow '{right}'")
        return principal

    def recognise(self, scope: Scope) -> Principal | None:
        """The principal of a request that needs none, for details that only friends may see."""
        try:
            return self.admit(scope, Right.WATCH)
        except Refused:
            return None

    def stands(self, principal: Principal) -> bool:
        """Whether whoever was let in as `principal` would be so again: its token may be revoked meanwhile."""
        if self._file is None or principal in (self._owner, self._open):
            return True
        self._reload()
        return self._file.grants(principal)

    def _identify(self, scope: Scope, head: Head, query: bool) -> Principal | None:
        token = _presented(scope, head, query)
        if token is None:
            return None
        for own in self._own:
            if hmac.compare_digest(token, own):
                return self._owner
        if self._file is not None:
            self._reload()
            return self._file.find(token)
        return None

    def _reload(self) -> None:
        now = time.monotonic()
        if self._file is not None and now - self._checked > _RELOAD_SECONDS:
            self._checked = now
            self._file.refresh()

    def _check_local(self, scope: Scope, head: Head) -> None:
        client = scope.get("client")
        if client is not None and client[0] and not _is_loopback(client[0]):
            raise Refused(403, "not-local", "without AEP_TOKEN only this machine is served")
        if any(name in head for name in _FORWARDED):
            raise Refused(403, "not-local", "without AEP_TOKEN nothing is served through a proxy")
        name = _host_name(text_of(head, b"host"))
        if name is not None and name not in self._hosts and not _is_loopback(name):
            raise Refused(403, "unknown-host", "unknown Host; add its name to AEP_ALLOWED_HOSTS")


def check_origin(head: Head) -> None:
    """Refuse a request that a page of another origin made."""
    if b"origin" not in head:
        return
    try:
        place = urlsplit(text_of(head, b"origin")).netloc.lower()
    except ValueError:
        place = ""
    if not place or place != text_of(head, b"host").lower():
        raise Refused(403, "foreign-origin", "requests of other origins' pages are refused")


def _presented(scope: Scope, head: Head, query: bool) -> bytes | None:
    words = head.get(b"authorization", b"").split()
    if len(words) == 2 and words[0].lower() == b"bearer":
        return words[1]
    if query:
        raw: bytes = scope.get("query_string", b"")
        if b"access_token" in raw:
            values = parse_qs(raw.decode("latin-1")).get("access_token")
            if values:
                return values[0].encode("utf-8", "surrogatepass")
    return None


def _host_name(host: str) -> str | None:
    """The name in a `Host` header without its port, lower case; None when there is no such header."""
    host = host.strip().lower()
    if not host:
        return None
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.rpartition(":")[0] if host.count(":") == 1 else host


def _is_loopback(address: str) -> bool:
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address == "localhost" or address.endswith(".localhost")
    mapped = getattr(found, "ipv4_mapped", None)
    return found.is_loopback or bool(mapped is not None and mapped.is_loopback)


def _is_wildcard(host: str) -> bool:
    return host in {"", "*", "0.0.0.0", "::"}
