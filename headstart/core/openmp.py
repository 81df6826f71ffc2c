"""How torch's OpenMP threads wait. Imported first of all, since OpenMP reads it once, when torch is loaded.

Behind each of its tasks they spin for milliseconds, on the very processors that the kernels want (docs/kernels.md). Where there are
kernels they are to sleep instead; what a user has set stays.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

VARIABLE = "OMP_WAIT_POLICY"
# Whether torch was there before us and nobody had set the variable: then its threads spin, and all we can do is say so.
SPINS = "torch" in sys.modules and VARIABLE not in os.environ
# Whether the variable is ours: then other programs that are started from here should not get it.
WAITS_PASSIVELY = VARIABLE not in os.environ and any(Path(__file__).parents[1].glob("kernels/_kernels*.so"))
if WAITS_PASSIVELY:
    os.environ[VARIABLE] = "PASSIVE"
