"""The actions of the status page: pause, resume, retry what failed, reload. Only with `admin.token_file`.

A request changes something only with the token in its header, which a page of another site can't send: it
doesn't have it, and isn't allowed the header. Besides, if a browser reports what page a request comes from,
that has to be ours.
"""

from __future__ import annotations

import hmac
import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response

from deliveryd.admin.base import Operator
from deliveryd.errors import ConfigError, DeliverydError
from deliveryd.http.peers import WrongTries

_INTAKE = "intake"
KINDS = (_INTAKE, "channel", "provider", "settings", "message")
"""What can be paused."""

LONGEST_BODY = 4096
_LONGEST_PAUSE = 3650 * 86400.0
_OWN_SITES = frozenset({"same-origin", "none"})

_NO_STORE = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}


class Denied(Exception):
    """A request that isn't carried out: the status of the answer, and why."""

    def __init__(self, status: int, reason: str, **headers: str) -> None:
        super().__init__(reason)
        self.status = status
        self.headers = headers


class Actions:
    """Carries out what the page orders. `token` is the one that requests must carry."""

    def __init__(self, operator: Operator, token: Callable[[], str]) -> None:
        self._operator = operator
        self._token = token
        self._wrong = WrongTries()
        self._actions: Mapping[str, _Action] = {
            "check": self._check,
            "pause": self._pause,
            "resume": self._resume,
            "failed": self._failed,
            "retry": self._retry,
            "reload": self._reload,
        }

    async def answer(self, request: Request) -> Response:
        """Answer POST /actions/NAME."""
        try:
            _check_origin(request)
            self._authenticate(request)
            done = await self._action(request)(_Fields(await _read(request)))
        except Denied as denied:
            return JSONResponse({"error": str(denied)}, denied.status, {**_NO_STORE, **denied.headers})
        except ConfigError as error:
            return JSONResponse({"error": "refused", "problems": error.problems}, 422, _NO_STORE)
        except (DeliverydError, ValueError) as error:
            return JSONResponse({"error": str(error)}, 409, _NO_STORE)
        return JSONResponse(done, headers=_NO_STORE)

    def _action(self, request: Request) -> _Action:
        action = self._actions.get(request.path_params["name"])
        if action is None:
            raise Denied(404, "there is no such action")
        return action

    def _authenticate(self, request: Request) -> None:
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not given:
            raise Denied(401, "the token is missing", **{"WWW-Authenticate": "Bearer"})
        if not hmac.compare_digest(given.strip().encode(), self._token().encode()):
            left = self._wrong.add(request.client.host if request.client is not None else None)
            if left:
                raise Denied(429, "too many wrong tokens; try again later", **{"Retry-After": f"{left:.0f}"})
            raise Denied(401, "wrong token", **{"WWW-Authenticate": "Bearer"})

    async def _check(self, fields: _Fields) -> Mapping[str, object]:
        fields.end()
        return {}

    async def _pause(self, fields: _Fields) -> Mapping[str, object]:
        kind, key = fields.paused()
        seconds, reason = fields.seconds("seconds"), fields.text("reason")
        fields.end()
        return await self._operator.pause(kind, key, seconds, reason)

    async def _resume(self, fields: _Fields) -> Mapping[str, object]:
        kind, key = fields.paused()
        reason = fields.text("reason")
        fields.end()
        return await self._operator.resume(kind, key, reason)

    async def _failed(self, fields: _Fields) -> Mapping[str, object]:
        fields.end()
        return await self._operator.failed()

    async def _retry(self, fields: _Fields) -> Mapping[str, object]:
        failure, reason = fields.text("failure"), fields.text("reason")
        fields.end()
        if failure is None:
            raise Denied(400, "failure: the reason of the failures is missing")
        return await self._operator.retry(failure, reason)

    async def _reload(self, fields: _Fields) -> Mapping[str, object]:
        fields.end()
        return await self._operator.reload()


class _Fields:
    """The fields of a body. Each method takes one out; raises Denied if it is unusable."""

    def __init__(self, fields: dict[str, Any]) -> None:
        self._fields = fields

    def text(self, name: str) -> str | None:
        """A text, or None if there is none."""
        value = self._fields.pop(name, None)
        if value is None or value == "":
            return None
        if not isinstance(value, str) or not value.isprintable():
            raise Denied(400, f"{name}: must be one line of text")
        return value

    def seconds(self, name: str) -> float | None:
        """A length of time, or None if there is none."""
        value = self._fields.pop(name, None)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= _LONGEST_PAUSE:
            raise Denied(400, f"{name}: must be a number of seconds above 0, or left out")
        return float(value)

    def paused(self) -> tuple[str, str]:
        """What is to be paused or resumed; the intake has no key."""
        kind, key = self._fields.pop("kind", None), self.text("key") or ""
        if kind not in KINDS:
            raise Denied(400, f"kind: must be one of {', '.join(KINDS)}")
        if not key and kind != _INTAKE:
            raise Denied(400, f"key: name the {kind}")
        return kind, key

    def end(self) -> None:
        """Raise Denied if there are further fields."""
        if self._fields:
            names = ", ".join(sorted(self._fields)).encode("ascii", "backslashreplace").decode()
            raise Denied(400, f"unknown fields: {names[:200]}")


_Action = Callable[[_Fields], Awaitable[Mapping[str, object]]]


def _check_origin(request: Request) -> None:
    """Raise Denied for a request that a browser sends for a page of another site."""
    sites, origins = request.headers.getlist("sec-fetch-site"), request.headers.getlist("origin")
    host = request.headers.get("host", "")
    if not _OWN_SITES.issuperset(sites) or not {f"http://{host}", f"https://{host}"}.issuperset(origins):
        raise Denied(403, "requests of other sites' pages are refused")
    types = {each.partition(";")[0].strip().lower() for each in request.headers.getlist("content-type")}
    if types != {"application/json"}:
        raise Denied(415, "the body must be JSON, with Content-Type: application/json")


async def _read(request: Request) -> dict[str, Any]:
    body = bytearray()
    try:
        async for part in request.stream():
            body += part
            if len(body) > LONGEST_BODY:
                raise Denied(413, f"the body must not exceed {LONGEST_BODY} bytes", Connection="close")
        fields = json.loads(body or b"{}")
    except ClientDisconnect:
        raise Denied(400, "the body didn't arrive") from None
    except (ValueError, RecursionError):
        raise Denied(400, "the body is no JSON") from None
    if not isinstance(fields, dict):
        raise Denied(400, "the body must be a JSON object")
    return fields
