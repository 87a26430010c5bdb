"""Where the frames of a page come from: engines that run, or a recording."""

from collections.abc import Sequence
from time import monotonic, time
from typing import Protocol

from paceline import __version__
from paceline.engine.live.control import LiveEngine
from paceline.engine.live.frames import FrameAnswer, FrameQuestion, RequestLife, StreamStart


class FrameSource(Protocol):
    @property
    def engines(self) -> int: ...

    @property
    def goes_on(self) -> bool:
        """May there be further frames after the last one?"""
        ...

    def start(self) -> StreamStart:
        """The first event of a stream."""
        ...

    async def frames(self, question: FrameQuestion) -> FrameAnswer:
        """Frames after those that a page has; waits until there may be some.

        EngineFailed if the engine is not there.
        """
        ...

    async def life(self, request_id: str) -> tuple[RequestLife, Sequence[int]]:
        """The life of a request, and the first tokens of its prompt. RequestError if it is not
        known."""
        ...


class EngineFrames:
    """See `FrameSource`: engines that run."""

    goes_on = True

    def __init__(self, engine: LiveEngine, model: str) -> None:
        self._engine, self._model = engine, model
        self.engines = engine.engines
        self.frames, self.life = engine.live.frames, engine.live.life

    def start(self) -> StreamStart:
        live = self._engine.live
        return StreamStart(
            version=__version__,
            model=self._model,
            engines=self.engines,
            frame_s=live.frame_s,
            kept=live.kept,
            wall_offset=time() - monotonic(),
        )
