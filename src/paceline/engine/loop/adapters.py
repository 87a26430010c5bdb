"""The adapters that are served: their names, and which of them are in host memory."""

from collections import Counter, OrderedDict
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, Protocol

from paceline.core.adapter import LoRARequest, adapter_identity, adapter_version
from paceline.core.errors import PacelineError, RequestError
from paceline.core.plan import Plan, StepResult
from paceline.core.request import Request
from paceline.engine.grammar.constrained_requests import ConstrainedRequests
from paceline.engine.loop.messages import EngineFailed
from paceline.sched.view import SchedulerView

PARKED_FOR = "adapter"  # the reason for which a request is parked until its adapter is loaded
MOST_OVERTAKEN = 64  # requests that may pass one that waits for room in host memory


class LoadedAdapter(Protocol):
    @property
    def version(self) -> str:
        """Names the content."""
        ...


class AdapterHost(Protocol):
    """The memory of the host, as the runner sees it."""

    def read(self, path: str) -> Any:
        """Read the files of an adapter, on any thread: a `LoadedAdapter`. RequestError says what is
        wrong with them."""
        ...

    def keep(self, identity: str, adapter: Any) -> None: ...

    def drop(self, identity: str) -> None: ...


@dataclass(frozen=True, slots=True)
class ServedAdapter:
    """An adapter that requests may name."""

    name: str
    path: str
    identity: str


@dataclass(slots=True, eq=False)
class AdaptedRequest:
    """A request with an adapter, from its submission to its end."""

    adapter: ServedAdapter
    ready: Callable[[str], None]
    is_held: bool = False  # its adapter stays in host memory
    error: PacelineError | None = None


@dataclass(frozen=True, slots=True, eq=False)
class AdapterLoad:
    """A new adapter that is being read, and the future that gets the answer."""

    name: str
    path: str
    read: Future[LoadedAdapter]
    answer: Future[Any]


class AdapterRequests:
    """Keeps the adapters of open requests in host memory, and further ones while there is room, the
    least recently used dropped first. A dropped adapter is read again when a request needs it.

    A request waits until its adapter is in memory. If all room is held by others, it waits until
    one of them has no open request; after `MOST_OVERTAKEN` requests have passed it, all requests
    with adapters wait behind it.

    All methods are for the engine's thread; `news` is called on another one.
    """

    parked_for = PARKED_FOR

    def __init__(self, host: AdapterHost, most: int) -> None:
        self._host, self._most = host, most
        self._reader = ThreadPoolExecutor(1, thread_name_prefix="adapters")
        self._served: dict[str, ServedAdapter] = {}
        self._kept: OrderedDict[str, None] = OrderedDict()  # identities, least recently used first
        self._users: Counter[str] = Counter()  # requests that hold an adapter
        self._open: dict[str, AdaptedRequest] = {}
        self._waiting: dict[str, AdaptedRequest] = {}  # of these, in order of submission
        self._reading: dict[str, Future[LoadedAdapter]] = {}  # again, by identity
        self._loads: list[AdapterLoad] = []
        self._overtaken = 0  # how often the first one that waits was passed
        self.news: Callable[[], None] = lambda: None  # something was read: call `poll`

    # -- names ----------------------------------------------------------------

    def listed(self) -> list[dict[str, str]]:
        return [{"name": one.name, "path": one.path} for one in self._served.values()]

    def load(self, wanted: LoRARequest, in_place: bool = False) -> Future[Any]:
        """Serve an adapter. The future has an error if its files are wrong."""
        name, path, answer = wanted.lora_name, wanted.lora_path, Future[Any]()
        if not name or not path:
            raise RequestError("an adapter needs a lora_name and a lora_path")
        taken = [*self._served, *(load.name for load in self._loads)]
        if name in taken and not in_place:
            raise RequestError(
                f"the adapter {name!r} is loaded already; unload it first, or set load_inplace"
            )
        self._loads.append(AdapterLoad(name, path, self._read(path), answer))
        return answer

    def load_all(self, wanted: list[LoRARequest]) -> None:
        """Serve adapters before the first request. RequestError if the files of one are wrong."""
        for one in wanted:
            self._serve(one.lora_name, one.lora_path, self._host.read(one.lora_path))

    def unload(self, name: str) -> None:
        """Requests that name it are refused from now on. Those that are open finish."""
        if name not in self._served:
            raise self._unknown(name)
        identity = self._served.pop(name).identity
        if not self._is_needed(identity):
            self._drop(identity)

    def named(self, request: Request) -> Request:
        """The request with the identity of its adapter. RequestError if it is not served."""
        served = self._served.get(request.adapter)
        if served is None:
            raise self._unknown(request.adapter)
        return replace(request, adapter=served.identity)

    def _unknown(self, name: str) -> RequestError:
        known = ", ".join(self._served) or "none"
        return RequestError(f"the adapter {name!r} is not loaded; loaded adapters: {known}")

    def _serve(self, name: str, path: str, adapter: LoadedAdapter) -> None:
        before = self._served.get(name)
        served = self._served[name] = ServedAdapter(
            name, path, adapter_identity(name, adapter.version)
        )
        self._keep(served.identity, adapter)
        is_replaced = before is not None and before.identity != served.identity
        if before is not None and is_replaced and not self._is_needed(before.identity):
            self._drop(before.identity)

    # -- requests: see `Preparation` ------------------------------------------

    def concerns(self, request: Request) -> bool:
        return bool(request.adapter)

    def begin(self, request: Request, ready: Callable[[str], None]) -> bool:
        """Hold the adapter of a request; its `adapter` is an identity."""
        served = next(one for one in self._served.values() if one.identity == request.adapter)
        self._open[request.id] = self._waiting[request.id] = AdaptedRequest(served, ready)
        self._advance()
        return request.id not in self._waiting

    @property
    def any_pending(self) -> bool:
        return bool(self._reading or self._loads)

    def is_pending(self, request_id: str) -> bool:
        return request_id in self._waiting

    def is_done(self, request_id: str) -> bool:
        return request_id in self._open and request_id not in self._waiting

    def refusal(self, request_id: str) -> PacelineError | None:
        return self._open[request_id].error

    def forget(self, request_id: str) -> None:
        one = self._open.pop(request_id, None)
        if one is None:
            return
        self._waiting.pop(request_id, None)
        if one.is_held:
            identity = one.adapter.identity
            self._users[identity] -= 1
            if not self._is_needed(identity) and not self._is_served(identity):
                self._drop(identity)
        if self._waiting:
            self._advance()

    def close(self) -> None:
        self._reader.shutdown(wait=False, cancel_futures=True)
        for load in self._loads:
            load.answer.set_exception(EngineFailed("the engine is shut down"))
        self._loads.clear()

    # -- memory ---------------------------------------------------------------

    def poll(self) -> None:
        """Take over what was read."""
        for load in [one for one in self._loads if one.read.done()]:
            self._loads.remove(load)
            error = load.read.exception()
            if error is None:
                self._serve(load.name, load.path, load.read.result())
                load.answer.set_result(None)
            else:
                load.answer.set_exception(as_refusal(error))
        for identity in [one for one, read in self._reading.items() if read.done()]:
            self._read_again(identity, self._reading.pop(identity))
        self._advance()

    def _read_again(self, identity: str, read: Future[LoadedAdapter]) -> None:
        error = read.exception()
        if error is None and read.result().version != adapter_version(identity):
            error = RequestError("the files of the adapter have changed; load it again")
        if error is None:
            self._keep(identity, read.result())
            return
        for name, one in list(self._waiting.items()):
            if one.adapter.identity == identity:
                one.error = as_refusal(error)
                self._end_wait(name, one)

    def _advance(self) -> None:
        """Let requests go whose adapters are in memory, and read adapters that have room."""
        is_full = False  # a request waits for room
        for name, one in list(self._waiting.items()):
            identity = one.adapter.identity
            if identity in self._kept:
                if is_full and self._overtaken >= MOST_OVERTAKEN:
                    continue
                self._overtaken = self._overtaken + 1 if is_full else 0
                one.is_held = True
                self._users[identity] += 1
                self._kept.move_to_end(identity)
                self._end_wait(name, one)
            elif identity not in self._reading and not is_full:
                if self._make_room():
                    self._reading[identity] = self._read(one.adapter.path)
                else:
                    is_full = True

    def _end_wait(self, name: str, one: AdaptedRequest) -> None:
        del self._waiting[name]
        one.ready(name)

    def _read(self, path: str) -> Future[LoadedAdapter]:
        read: Future[LoadedAdapter] = self._reader.submit(self._host.read, path)
        read.add_done_callback(lambda _: self.news())
        return read

    def _keep(self, identity: str, adapter: LoadedAdapter) -> None:
        """Keep an adapter if there is room for it; requests read it again otherwise."""
        if identity in self._kept or self._make_room():
            self._host.keep(identity, adapter)
            self._kept[identity] = None
            self._kept.move_to_end(identity)

    def _make_room(self) -> bool:
        """Drop an adapter that no request holds, if there is no room for another one."""
        if len(self._kept) + len(self._reading) < self._most:
            return True
        unused = next((one for one in self._kept if not self._users[one]), None)
        if unused is None:
            return False
        self._drop(unused)
        return True

    def _drop(self, identity: str) -> None:
        if identity in self._kept:
            del self._kept[identity]
            self._host.drop(identity)
        if not self._users[identity]:
            del self._users[identity]

    def _is_needed(self, identity: str) -> bool:
        return self._users[identity] > 0

    def _is_served(self, identity: str) -> bool:
        return any(one.identity == identity for one in self._served.values())


def as_refusal(error: BaseException) -> PacelineError:
    if isinstance(error, RequestError):
        return error
    return EngineFailed(f"the adapter cannot be read: {error}")


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
        self._constrained = constrained  # None: no request may have a constraint
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

    def accepted(self, plan: Plan, result: StepResult, view: SchedulerView) -> StepResult:
        """The result of a step, as far as constraints allow it."""
        if self._constrained is None or not self._constrained.any_open:
            return result
        return self._constrained.accept(plan, result, view.ahead(plan.rows))

    def figures(self) -> dict[str, Any]:
        """What is counted of requests with constraints."""
        return {} if self._constrained is None else self._constrained.figures()

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
