"""Programs that do something else after every so many steps: what is said of their time against their own."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from broad import broad
from command import kinetoscope
from programs import Programs
from round_programs import PROGRAMS

# What two clocks of one process may differ by where others use the machine; without these it is some percent.
AGREES = 0.25


@pytest.mark.parametrize("name", broad(PROGRAMS, ("checkpoints",)))
def test_a_step_with_its_share_of_the_round_is_the_programs_own_mean(programs: Programs, name: str):
    program = PROGRAMS[name]
    run = programs.record(str(programs.write(program.script, f"{name}.py")))
    assert run.status == 0, run.err
    own = re.search(r"clock: ([\d.]+)", run.out)
    assert own is not None
    found: dict[str, Any] = json.loads(kinetoscope("report", str(run.folder), "--json").stdout)["as_it_runs"]
    assert found["round"] is not None, found
    assert found["round"]["steps"] == program.every
    assert found["round"]["per_step_us"] == pytest.approx(1e6 * float(own[1]), rel=AGREES)
