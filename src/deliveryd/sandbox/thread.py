"""The sandbox in a thread with its own asyncio loop, for programs without one."""

from __future__ import annotations

import asyncio
import ssl
import threading
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Self

from deliveryd.sandbox.impersonation import Impersonation
from deliveryd.sandbox.server import Sandbox
from deliveryd.sandbox.state import SandboxState


class SandboxThread:
    """A sandbox in its own thread, as a context manager. Takes the arguments of `Sandbox`.

    `state` may be used from any thread at any time; `base_url` and `smtp_port` once it is open.
    """

    def __init__(
        self,
        host: str = "127.0.0.1",
        port: int = 0,
        smtp_port: int = 0,
        *,
        state: SandboxState | None = None,
        smtp_tls: ssl.SSLContext | None = None,
        smtp_require_starttls: bool = False,
        smtp_credentials: tuple[str, str] | None = None,
        impersonated: Sequence[Impersonation] = (),
    ) -> None:
        self.state = state or SandboxState()
        self.sandbox = Sandbox(
            host,
            port,
            smtp_port,
            state=self.state,
            smtp_tls=smtp_tls,
            smtp_require_starttls=smtp_require_starttls,
            smtp_credentials=smtp_credentials,
            impersonated=impersonated,
        )
        self._opened = threading.Event()
        self._error: BaseException | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._close: asyncio.Event | None = None
        self._thread = threading.Thread(target=self._run, name="sandbox", daemon=True)

    @property
    def base_url(self) -> str:
        """The address of the HTTP server."""
        return self.sandbox.base_url

    @property
    def port(self) -> int:
        """The port of the HTTP server."""
        return self.sandbox.port

    @property
    def smtp_port(self) -> int:
        """The port of the mail server."""
        return self.sandbox.smtp_port

    def wait_for(self, predicate: Callable[[SandboxState], object], timeout: float = 5.0) -> None:
        """Block until `predicate` holds, checking after each change. Raises TimeoutError."""
        self.state.wait_for(predicate, timeout)

    def __enter__(self) -> Self:
        self._thread.start()
        self._opened.wait()
        if self._error is not None:
            self._thread.join()
            raise self._error
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._loop is not None and self._close is not None:
            self._loop.call_soon_threadsafe(self._close.set)
        self._thread.join()

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except OSError as error:
            self._error = error
        finally:
            self._opened.set()

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._close = asyncio.Event()
        async with self.sandbox:
            self._opened.set()
            await self._close.wait()
