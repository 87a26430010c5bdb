"""Record the answers of a connector, and replay them."""

from collections.abc import Callable, Mapping, Sequence
from json import loads
from typing import Any

from paceline.core.request import Finish, Request
from paceline.core.settings.features import ConnectorConfig
from paceline.kv.connector import Changed, Connector, Transfer, TransferEnd
from paceline.kv.fence import TransferTicket
from paceline.sched.replay.recording import Recording
from paceline.sched.replay.records import RecordingError, RecordKind, arguments, record

ANSWERS = frozenset(
    (RecordKind.OFFERED, RecordKind.KEPT, RecordKind.TRANSFERRED, RecordKind.HANDED_OVER)
)


class RecordedConnector(Connector):
    """Wraps a connector, and records the answers that plans depend on."""

    def __init__(self, connector: Connector, recording: Recording) -> None:
        super().__init__(connector.config)
        self.hands_over, self.takes_groups = connector.hands_over, connector.takes_groups
        self.takes_states, self.medium = connector.takes_states, connector.medium
        self._connector, self._recording = connector, recording

    def watch(self, changed: Changed) -> None:
        self._connector.watch(changed)

    def check(self, request: Request) -> None:
        self._connector.check(request)

    def offer(self, request: Request, keys: Sequence[bytes], have: int) -> int | None:
        answer = self._connector.offer(request, keys, have)
        self._note(RecordKind.OFFERED, answer)
        return answer

    def find(self, request: Request, keys: Sequence[bytes]) -> int | None:
        answer = self._connector.find(request, keys)
        self._note(RecordKind.OFFERED, answer)
        return answer

    def fetch(self, transfer: Transfer) -> None:
        self._connector.fetch(transfer)

    def keep(self, keys: Sequence[bytes]) -> int:
        answer = self._connector.keep(keys)
        self._note(RecordKind.KEPT, answer)
        return answer

    def store(self, transfer: Transfer) -> None:
        self._connector.store(transfer)

    def finished(self, transfer: Transfer, finish: Finish) -> Mapping[str, Any] | None:
        answer = self._connector.finished(transfer, finish)
        self._note(RecordKind.HANDED_OVER, None if answer is None else dict(answer))
        return answer

    def poll(self) -> Sequence[TransferEnd]:
        ended = self._connector.poll()
        if ended:
            ends = [(one.ticket.id, one.bad, one.reason) for one in ended]
            self._note(RecordKind.TRANSFERRED, *ends)
        return ended

    def forget(self, keys: Sequence[bytes]) -> None:
        self._connector.forget(keys)

    def clear(self) -> None:
        self._connector.clear()

    def close(self) -> None:
        self._connector.close()

    def _note(self, kind: RecordKind, *answer: Any) -> None:
        if not self._recording.ended:
            self._recording.answer(record(kind, arguments(*answer)))


NextAnswer = Callable[[RecordKind], bytes | None]
"""The payload of the next record, if it is of this kind."""


class ReplayedConnector(Connector):
    """Gives the recorded answers and transfers nothing."""

    takes_groups = takes_states = True

    def __init__(self, name: str, role: Any, hands_over: bool, answer: NextAnswer) -> None:
        super().__init__(ConnectorConfig(name, role))
        self.hands_over = hands_over
        self._answer = answer

    def offer(self, request: Request, keys: Sequence[bytes], have: int) -> int | None:
        return self._due(RecordKind.OFFERED)

    def find(self, request: Request, keys: Sequence[bytes]) -> int | None:
        return self._due(RecordKind.OFFERED)

    def fetch(self, transfer: Transfer) -> None:
        """The end is in the recording."""

    def keep(self, keys: Sequence[bytes]) -> int:
        return self._due(RecordKind.KEPT)

    def store(self, transfer: Transfer) -> None:
        """The end is in the recording."""

    def finished(self, transfer: Transfer, finish: Finish) -> Mapping[str, Any] | None:
        return self._due(RecordKind.HANDED_OVER)

    def poll(self) -> Sequence[TransferEnd]:
        ends = self._answer(RecordKind.TRANSFERRED)
        if ends is None:
            return ()
        return [TransferEnd(TransferTicket(one), bad, why) for one, bad, why in loads(ends)]

    def _due(self, kind: RecordKind) -> Any:
        found = self._answer(kind)
        if found is None:
            raise RecordingError("the connector is asked what it was not asked in the recorded run")
        return loads(found)[0]
