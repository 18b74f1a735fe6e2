"""Each rank's own replay, of ranks that meet in collectives with the others': the product replays the job."""

from __future__ import annotations

from kinetoscope.analysis.passes.as_it_runs import as_it_runs, loaders_of
from kinetoscope.analysis.replay.ranks import together
from kinetoscope.analysis.replay.replay import StepReplay, alone
from kinetoscope.sources.run import LoadedRun


def replays(run: LoadedRun) -> dict[int, StepReplay]:
    if (joined := together(run)) is None:
        return alone(run)
    graph, within = joined
    timed = {rank: runs.step_us for rank, runs in as_it_runs(run).items()}
    return {
        rank: StepReplay(rank, graph, own, run.traces, timed.get(rank), loaders=loaders_of(run))
        for rank, own in within.items()
    }
