"""The limit of the time of a step: `max_step_s`."""

import numpy as np

from paceline.core.arrays import I32, I64, Bool
from paceline.core.capabilities import NS
from paceline.core.settings.config import Config, StepConfig
from paceline.sched.admission.limits import Limit, LimitView
from paceline.sched.admission.rows import Used, WantedRows

PROMPTS, DECODES = "prompts_ns", "decodes_ns"  # keys of `Used`
LEAST = 4  # prompts get at least this fraction of a step: 1 / LEAST


class Pace(Limit):
    """Limits prompts to the time that decodes leave of `max_step_s`, by the measured cost of a
    position.

    While requests wait, residents leave half of it to them. The oldest prompt gets at least half of
    the residents' time, so that prompts end one after the other. The others share the rest evenly,
    so that long ones do not hold up short ones. Each resident gets at least one position.
    """

    reason = "pace"

    def __init__(self, step: StepConfig, view: LimitView) -> None:
        self._step_ns = round(step.max_step_s * NS)
        self._budget = step.max_num_batched_tokens
        self._view = view

    @classmethod
    def create(cls, config: Config, view: LimitView) -> "Pace | None":
        return cls(config.step, view) if config.step.max_step_s else None

    @property
    def counts(self) -> bool:
        return self._view.cost is not None

    def clip(self, rows: WantedRows) -> I32:
        if self._view.cost is None:
            return rows.want
        if rows.arriving:
            return self._arrival(rows)
        is_prompt = rows.want > 1
        if not is_prompt.any():
            return rows.want
        price = self._price(rows)
        left = self._for_prompts(int(price[rows.want == 1].sum()))
        if self._view.waiting and self._view.table.vacant:
            left //= 2
        return self._residents(rows.want, is_prompt, price, left)

    def spend(self, rows: WantedRows, used: Used) -> None:
        if self._view.cost is None:
            return
        price = self._price(rows) * rows.want
        prompts = int(price.sum()) if rows.arriving else int(price[rows.want > 1].sum())
        used[PROMPTS] = used.get(PROMPTS, 0) + prompts
        used[DECODES] = used.get(DECODES, 0) + int(price.sum()) - prompts

    def _price(self, rows: WantedRows) -> I64:
        """Nanoseconds of one position of each row."""
        cost = self._view.cost
        assert cost is not None, "no cost was measured"
        price: I64 = cost.position_ns + cost.read_ns * rows.start.astype(np.int64)
        return price

    def _for_prompts(self, decodes: int) -> int:
        """Nanoseconds for prompts in a step whose other rows take `decodes`."""
        cost = self._view.cost
        assert cost is not None, "no cost was measured"
        whole = min(self._step_ns, self._budget * cost.position_ns)
        return max(whole - decodes, whole // LEAST)

    def _arrival(self, rows: WantedRows) -> I32:
        """Positions of an arrival: all that fit, or half if others wait behind it. The first prompt
        of a step gets at least one."""
        taken = rows.used.get(PROMPTS, 0)
        left = max(self._for_prompts(rows.used.get(DECODES, 0)) - taken, 0)
        fitting = (left // 2 if self._view.waiting > 1 else left) // self._price(rows)
        return np.minimum(rows.want, np.maximum(fitting, 0 if taken else 1)).astype(np.int32)

    def _residents(self, want: I32, is_prompt: Bool, price: I64, left: int) -> I32:
        """The positions of residents, oldest first."""
        need = price[is_prompt] * want[is_prompt]
        if int(need.sum()) <= left:
            return want
        granted = np.empty_like(need)
        granted[1:] = evenly(need[1:], left - min(int(need[0]), left // 2))
        granted[0] = min(int(need[0]), left - int(granted[1:].sum()))
        count = want.copy()
        count[is_prompt] = np.minimum(want[is_prompt], np.maximum(granted // price[is_prompt], 1))
        return count


def evenly(need: I64, left: int) -> I64:
    """Divide `left` by max-min fairness: small needs are met, the others get equal shares."""
    if not len(need) or int(need.sum()) <= left:
        return need
    rising = np.sort(need)
    before = np.cumsum(rising) - rising
    level = (left - before) // np.arange(len(need), 0, -1)  # if all smaller needs are met
    return np.minimum(need, level[np.argmax(rising >= level)])
