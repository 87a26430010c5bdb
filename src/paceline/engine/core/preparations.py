"""What requests need before they can run, made off the engine's thread."""

from collections.abc import Callable
from typing import Protocol

from paceline.core.errors import PacelineError
from paceline.core.request import Request
from paceline.engine.core.adapters import AdapterRequests
from paceline.engine.core.constrained_requests import ConstrainedRequests


class Preparation(Protocol):
    """Something that some requests need. All methods are for the engine's thread."""

    @property
    def parked_for(self) -> str:
        """The reason for which a request is parked meanwhile."""
        ...

    def concerns(self, request: Request) -> bool:
        """Does this request need it?"""
        ...

    def begin(self, request: Request, ready: Callable[[str], None]) -> bool:
        """Prepare a request. Returns whether that has ended already; if not, `ready` is called
        with its id when it has, on any thread."""
        ...

    def is_pending(self, request_id: str) -> bool: ...

    def is_done(self, request_id: str) -> bool:
        """Whether preparing a request has ended, well or badly."""
        ...

    def refusal(self, request_id: str) -> PacelineError | None:
        """Why it ended badly; None if it did not."""
        ...

    def forget(self, request_id: str) -> None:
        """A request has ended, in any state; ignored if it is not known."""
        ...

    def close(self) -> None: ...


class Preparations:
    """All that requests of an engine may need."""

    def __init__(self, constrained: ConstrainedRequests | None) -> None:
        self._parts: list[Preparation] = [] if constrained is None else [constrained]
        self.adapters: AdapterRequests | None = None

    def serve_adapters(self, adapters: AdapterRequests) -> None:
        self.adapters = adapters
        self._parts.append(adapters)

    def named(self, request: Request) -> Request:
        """The request with the identity of its adapter. RequestError if it is not served."""
        return self.adapters.named(request) if self.adapters and request.adapter else request

    def needed(self, request: Request) -> str:
        """The first thing that a request needs; "": nothing."""
        return next((one.parked_for for one in self._parts if one.concerns(request)), "")

    def begin(self, request: Request, ready: Callable[[str], None]) -> None:
        for part in self._parts:
            if part.concerns(request):
                part.begin(request, ready)

    def is_outdated(self, request_id: str, reason: str) -> bool:
        """Is a request parked for something that it has?"""
        return reason in [one.parked_for for one in self._parts if not one.is_pending(request_id)]

    def pending(self, request_id: str) -> str:
        """What a request still waits for; "": nothing."""
        return next((one.parked_for for one in self._parts if one.is_pending(request_id)), "")

    def refusal(self, request_id: str) -> PacelineError | None:
        """Why a request cannot run; None if it can, or if that is not known yet."""
        done = (part for part in self._parts if part.is_done(request_id))
        return next((error for part in done if (error := part.refusal(request_id))), None)

    def forget(self, request_id: str) -> None:
        for part in self._parts:
            part.forget(request_id)

    def poll(self) -> None:
        """Take what was read meanwhile."""
        if self.adapters is not None:
            self.adapters.poll()

    def close(self) -> None:
        for part in self._parts:
            part.close()
