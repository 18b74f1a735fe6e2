"""A function was compiled so often that Dynamo gave it up.

What it finds
    Functions at ``torch._dynamo.config.recompile_limit`` (8 by default).

Why it is slow
    From then on the function runs eagerly whenever no existing version fits: unfused, one launch an op.
    The only sign is one warning in the log.

How it decides
    The compile log reports it, or shows as many compilations of one code object as its configuration allows
    (8 where that is not recorded), after which there is no other. The saving is what fusing the eager
    elementwise chains of the recording would save; without a recording none is claimed.

What to do
    Remove the cause of the recompilations (see ``recompilation``): dynamic sizes, tensors instead of numbers.
    Raising the limit only moves it.

Source
    torch.compile programming model, "Recompilation", section on the limit.
"""

from kinetoscope.findings.rule import *
from kinetoscope.findings.rules.recompilation import by_function, snippet


def find(view: RankView) -> Findings:
    log = view.compilation
    for place, rows in by_function(log.recompilations if log else ()).items():
        last = rows[-1]
        compiled = 1 + sum(row.count for row in rows)
        if not any(row.limit_hit for row in rows) and compiled < last.limit:
            continue
        yield Finding(
            subject=place,
            title=f"{last.function or 'A function'} was compiled {compiled} times: the limit is reached, "
            "and what is new runs eagerly",
            saving=savings.compiled(view, view.work),
            at_least="high",
            evidence=[
                evidence.of(
                    view,
                    f"{row.compile_id}: {row.reasons[0].guard if row.reasons else 'recompiled'}",
                    view.trace.steps,
                )
                for row in rows[-3:]
            ],
            advice=last.advice or "Make what changes dynamic, or a tensor.",
            snippet=snippet(last),
            source=evidence.at_line(last.file, last.line),
        )
