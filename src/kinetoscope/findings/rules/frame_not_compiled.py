"""torch.compile gave a function up: it runs eagerly.

What it finds
    Functions that were to be compiled and are not: Dynamo or the backend failed, or skipped the frame, and
    went on without a word.

Why it is slow
    ``torch.compile`` has no effect there: nothing is fused, every op is launched from Python. Findings on
    eager code below are the consequence.

How it decides
    The compile log: a failure whose effect is that the function runs eagerly (one that raised, or the limit
    of recompilations, is another matter), unless the same function was compiled after all. The saving is what
    fusing the eager elementwise chains outside of compiled regions would save on the device, and the part of
    the launch-bound idle time that their launches have among all.

What to do
    Remove what blocks it (named with its line), or keep it out of the compiled function:
    ``@torch.compiler.disable`` on the helper that cannot be traced lets the rest be compiled.

Source
    torch.compile troubleshooting, "Skipped frames"; ``kinetoscope graphs``.
"""

from kinetoscope.analysis.compiled.regions import compiled
from kinetoscope.compilation.model import Failure
from kinetoscope.findings.rule import *

ROLE = "root"


def find(view: RankView) -> Findings:
    if not view.first:
        return
    for number, failure in enumerate(blocked(view)):
        yield Finding(
            subject=f"{failure.function} {evidence.at_line(failure.file, failure.line)}",
            title=f"torch.compile gave up on {failure.function or 'a function'}, which runs eagerly: "
            f"{failure.reason.rstrip('.')}",
            # What runs eagerly is not known function by function: the first stands for all.
            saving=savings.compiled(view, _eager(view))
            if number == 0
            else savings.nothing("counted with the first function"),
            at_least="high",
            evidence=evidence.of_steps(view, _shown(failure)),
            advice=" ".join(["Remove what blocks it.", *failure.hints[:1]]),
            snippet="torch.compile(model, fullgraph=True)  # makes it an error",
            source=evidence.at_line(failure.file, failure.line),
        )


def _shown(failure: Failure) -> str:
    code = f": {failure.code}" if failure.code else ""
    return f"{failure.compile_id} {failure.type}{code}; {failure.explanation or failure.effect}"


def _eager(view: RankView) -> pl.DataFrame:
    in_graphs = pl.col("launch").is_in(compiled(view.trace).implode())
    return view.work.filter(~in_graphs.fill_null(True) & (pl.col("category").cast(pl.String) != "optimizer"))
