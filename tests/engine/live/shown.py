"""An engine on a virtual clock with a page that is shown what it does, and a witness beside it."""

from dataclasses import dataclass, field
from random import Random
from typing import Any

import msgspec

from paceline.core.plan import Outputs, Plan
from paceline.core.request import Request
from paceline.engine.live.feed import LiveFeed
from paceline.engine.live.frames import Frame, FrameAnswer, FrameQuestion, Seat
from paceline.engine.loop.engine import Engine
from paceline.engine.loop.messages import Question
from paceline.engine.loop.ports import StepObserver
from paceline.sched.scheduler import Scheduler
from paceline.testing.oracle import OracleRunner
from paceline.testing.runner import SimulatedDevice, SimulatedRunner, VirtualClock


@dataclass(frozen=True, slots=True, eq=False)
class SeenStep:
    """A step as it was planned: who had which slot, and who computed something."""

    plan: Plan
    residents: dict[int, str]  # ids by slot
    rows: dict[int, str]
    prompts: set[int]  # slots whose rows begin within the prompt


@dataclass(eq=False)
class Witness(StepObserver):
    """The engine's own observer, which sees every step."""

    scheduler: Scheduler
    steps: dict[int, SeenStep] = field(default_factory=dict[int, SeenStep])
    tokens: dict[int, int] = field(default_factory=dict[int, int])  # of committed steps

    def planned(self, plan: Plan) -> None:
        if plan.empty:
            return
        table, slots = self.scheduler.state.table, plan.rows.slot.tolist()
        prompts = (plan.start < table.prompt[plan.rows.slot]).tolist()
        self.steps[plan.step] = SeenStep(
            plan,
            {slot: table.sequence(slot).id for slot in table.order.tolist()},
            dict(zip(slots, plan.rows.request_id.tolist(), strict=True)),
            {slot for slot, prompt in zip(slots, prompts, strict=True) if prompt},
        )

    def committed(self, plan: Plan, outputs: Outputs) -> None:
        if not plan.empty:
            self.tokens[plan.step] = int(outputs.count.sum())


class ShownEngine:
    """Takes turns, each step some time on the virtual clock; `ask` is the page."""

    def __init__(self, depth: int = 1, step_s: float = 0.05, **settings: Any) -> None:
        defaults = {"num_blocks": 24, "block_size": 4, "max_num_seqs": 6, "max_model_len": 48}
        chosen = {**defaults, "max_num_batched_tokens": 24, **settings}
        self.scheduler = Scheduler.create(**chosen)
        self.clock, self.witness = VirtualClock(), Witness(self.scheduler)
        oracle = OracleRunner(chosen["num_blocks"], 4, 50, host_blocks=chosen.get("swap_space", 0))
        runner = SimulatedRunner(SimulatedDevice(oracle.run, lambda plan: step_s), self.clock)
        self.engine = Engine(self.scheduler, runner, self.clock, depth, observer=self.witness)
        show = self.engine.observe
        self.engine.feed = LiveFeed(self.scheduler, self.clock, self.witness, show, lambda: 0.0)
        self.seats: dict[int, list[Seat]] = {}
        self._at = FrameQuestion()

    def submit(self, random: Random, count: int, **fields: Any) -> None:
        for _ in range(count):
            prompt = [random.randrange(3) for _ in range(random.randint(1, 20))]
            request = Request(
                id=f"r{random.randrange(10**9)}",
                prompt=prompt,
                max_tokens=random.randint(1, 16),
                tenant=random.choice("abc"),
                n=random.choice([1, 1, 1, 2]),
                **fields,
            )
            self.engine.submit(request)

    def turn(self) -> None:
        self.engine.turn()

    def answer(self, question: FrameQuestion) -> FrameAnswer:
        found = self.engine.answer(Question("frames", question.argument()))
        return msgspec.msgpack.decode(found, type=FrameAnswer)

    def ask(self) -> list[Frame]:
        """The frames that a page gets which has all before them."""
        answer = self.answer(self._at)
        self._at = FrameQuestion(0, answer.run, answer.number)
        frames = [msgspec.json.decode(one, type=Frame) for one in answer.frames]
        for seat in (*answer.base, *(seat for frame in frames for seat in frame.seats)):
            self.seats.setdefault(seat.slot, []).append(seat)
        return frames

    def occupant(self, slot: int, step: int) -> str:
        """Who a page believes to be in a slot in a step."""
        return [seat for seat in self.seats[slot] if seat.step <= step][-1].request_id
