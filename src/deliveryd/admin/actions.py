"""The actions of the status page: pause, resume, retry what failed, reload. Only with `admin.token_file`.

A request changes something only with the token in its header, which a page of another site can't send: it
doesn't have it, and isn't allowed the header. Besides, if a browser reports what page a request comes from,
that has to be ours.
"""

from __future__ import annotations

import hmac
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response

from deliveryd.errors import ConfigError, DeliverydError
from deliveryd.http.peers import WrongTries
from deliveryd.journal.orders import LONGEST_ORDERED_PAUSE
from deliveryd.journal.pauses import PauseKind

LONGEST_BODY = 4096
_OWN_SITES = frozenset({"same-origin", "none"})

_NO_STORE = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}


class Operator(Protocol):
    """What the status page may order. Each raises DeliverydError, or ValueError for what can't be done.

    `reason` is the operator's own, for the record.
    """

    async def pause(
        self, kind: str, key: str, seconds: float | None, reason: str | None
    ) -> Mapping[str, object]:
        """Pause something for this many seconds; None: until it is resumed."""

    async def resume(self, kind: str, key: str, reason: str | None) -> Mapping[str, object]:
        """Resume what is paused."""

    async def failed(self) -> Mapping[str, object]:
        """Return the `reasons` for which messages failed, each with its `count`.

        `complete`: all were counted in time, and all reasons are there.
        """

    async def retry(self, failure: str, reason: str | None) -> Mapping[str, object]:
        """Let messages begin again that failed for this reason."""

    async def reload(self) -> Mapping[str, object]:
        """Read the configuration again, and apply it."""


class Denied(Exception):
    """A request that isn't carried out: the status of the answer, and why."""

    def __init__(self, status: int, reason: str, **headers: str) -> None:
        super().__init__(reason)
        self.status = status
        self.headers = headers


class _Action(NamedTuple):
    """What carries out an action, and the fields that it takes."""

    carry_out: Callable[..., Awaitable[Mapping[str, object]]]
    fields: Sequence[str]


class Actions:
    """Carries out what the page orders. `token` is the one that requests must carry."""

    def __init__(self, operator: Operator, token: Callable[[], str]) -> None:
        self._token = token
        self._wrong = WrongTries()
        self._actions: Mapping[str, _Action] = {
            "check": _Action(_nothing, ()),
            "pause": _Action(operator.pause, ("kind", "key", "seconds", "reason")),
            "resume": _Action(operator.resume, ("kind", "key", "reason")),
            "failed": _Action(operator.failed, ()),
            "retry": _Action(operator.retry, ("failure", "reason")),
            "reload": _Action(operator.reload, ()),
        }

    async def answer(self, request: Request) -> Response:
        """Answer POST /actions/NAME."""
        try:
            _check_origin(request)
            self._authenticate(request)
            action = self._action(request)
            done = await action.carry_out(**_fields_of(action, await _read(request)))
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


async def _nothing() -> Mapping[str, object]:
    """Show that the token is right."""
    return {}


def _fields_of(action: _Action, body: dict[str, Any]) -> Mapping[str, object]:
    """Return what a body gives for an action. Raises Denied if it is unusable."""
    given = {name: _READERS[name](name, body.pop(name, None)) for name in action.fields}
    if body:
        names = ", ".join(sorted(body)).encode("ascii", "backslashreplace").decode()
        raise Denied(400, f"unknown fields: {names[:200]}")
    if given.get("key") == "" and given["kind"] != PauseKind.INTAKE:
        raise Denied(400, f"key: name the {given['kind']}")
    return given


def _kind(name: str, value: object) -> str:
    if isinstance(value, str) and value in list(PauseKind):
        return value
    raise Denied(400, f"{name}: must be one of {', '.join(PauseKind)}")


def _text(name: str, value: object) -> str | None:
    if value is None or value == "":
        return None
    if not isinstance(value, str) or not value.isprintable():
        raise Denied(400, f"{name}: must be one line of text")
    return value


def _failure(name: str, value: object) -> str:
    text = _text(name, value)
    if text is None:
        raise Denied(400, f"{name}: the reason of the failures is missing")
    return text


def _seconds(name: str, value: object) -> float | None:
    if value is None:
        return None
    if (
        isinstance(value, bool)
        or not isinstance(value, int | float)
        or not 0 < value <= LONGEST_ORDERED_PAUSE
    ):
        raise Denied(400, f"{name}: must be a number of seconds above 0, or left out")
    return float(value)


_READERS: Mapping[str, Callable[[str, object], object]] = {
    "kind": _kind,
    "key": lambda name, value: _text(name, value) or "",
    "seconds": _seconds,
    "failure": _failure,
    "reason": _text,
}
"""What reads each field, by its name and its value; a field that is left out is None."""


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
