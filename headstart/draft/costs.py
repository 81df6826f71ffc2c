"""What a pace knows before the first step: the passes of the target, and of the models that draft, as measured once (runtime/width.py)."""

from __future__ import annotations

from headstart.core.pace import Pace
from headstart.draft.base import Drafter
from headstart.draft.draft_model import ModelDrafter
from headstart.draft.hybrid import HybridDrafter
from headstart.runtime.runner import Runner
from headstart.runtime.width import known_curve


def measured_pace(drafter: Drafter, target: Runner, blocks: int) -> Pace:
    """A pace that starts from measured times. The drafter is attached, and of the `blocks` none is in use or to be found again."""
    pace = Pace()
    pace.curve.expect(known_curve(target, blocks))
    each = [(m.name, m.drafter) for m in drafter.members] if isinstance(drafter, HybridDrafter) else [(drafter.name, drafter)]
    for name, model in each:
        if isinstance(model, ModelDrafter) and (curve := known_curve(model.runner, blocks, widths=(1,))):
            pace.draft_steps[name] = curve[1]
    return pace
