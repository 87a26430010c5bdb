"""What an engine reports at the end of a turn."""

from paceline.core.plan import Ended, Outputs, StepResult
from paceline.engine.core.messages import Delivery, Refused
from paceline.engine.core.scored import scored
from paceline.engine.core.timings import timed
from paceline.sched.scheduler import Scheduler


class TurnReport:
    """Collects requests that were refused, or ended outside a commit, until the next delivery."""

    def __init__(self) -> None:
        self.refused: list[Refused] = []
        self.ended: list[Ended] = []

    def __bool__(self) -> bool:
        return bool(self.refused or self.ended)

    def delivery(
        self,
        outputs: Outputs,
        result: StepResult | None,
        now: float,
        scheduler: Scheduler,
        broken: str = "",
    ) -> Delivery | None:
        """All of it, with what a step put out; None if there is nothing to report. `result` is
        that of the step, if one was waited for; `broken` says why the engine has stopped."""
        ended, refused = (*self.ended, *outputs.finished), tuple(self.refused)
        self.ended, self.refused = [], []
        prompt, pooled = ((), ()) if result is None else (result.prompt, result.pooled)
        if not (ended or refused or prompt or pooled or len(outputs.count)):
            return None
        delivery = Delivery(
            now,
            outputs.handle,
            outputs.ids,
            outputs.count,
            ended=tuple(timed(scheduler, end) for end in ended),
            refused=refused,
            prompt=prompt,
            pooled=pooled,
            broken=broken,
        )
        return delivery if result is None else scored(delivery, outputs, result)
