"""The process that says what worlds come to: ``python -P -m inaproto_hil.compiled.check``.

Run with a compiled copy first on the path and without, the answers must be equal in all but the file.
"""

from __future__ import annotations

import json
from typing import Any, Final

SEEDS: Final = range(6)
"""Of each kind of world."""


def answers() -> dict[str, Any]:
    """The file that the worlds' code came from, and of each world its digest and broken rule, if any."""
    from inaproto.sim.campaign.kinds import FRAME_KINDS, draw_kind
    from inaproto.sim.frames import world
    from inaproto_hil.soak.parts import PRODUCT

    digests = {}
    for kind in FRAME_KINDS:
        for seed in SEEDS:
            result = PRODUCT.run(draw_kind(seed, kind))
            broken = "" if result.violation is None else f" {result.violation.rule}"
            digests[f"{kind} {seed}"] = result.digest + broken
    return {"file": world.__file__, "digests": digests}


if __name__ == "__main__":
    print(json.dumps(answers()))
