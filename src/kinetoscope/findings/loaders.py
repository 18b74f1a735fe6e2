"""A program's data loader: whether it picks samples out of tensors, and the call that gives it more workers
(``DataLoader``, or the arguments of the library that makes the loader for it)."""

from __future__ import annotations

import polars as pl

from kinetoscope.analysis.events.rows import END, matching
from kinetoscope.analysis.events.torch_names import DATA_LOADER
from kinetoscope.analysis.passes.whole_run import libraries_of_steps
from kinetoscope.analysis.replay.host import is_op
from kinetoscope.analysis.time import intervals
from kinetoscope.findings.rank_view import RankView

GATHERS = r"^aten::(stack|index|index_select|take|gather|cat)$"
PICKS = rf"{GATHERS}|^aten::(select|unbind|unsqueeze|narrow|slice)$"
# A pick of a microsecond takes one or two more of Python to be called: of the loader's time, and of its ops'.
MADE_OF, OF_OPS = 1 / 3, 0.9
COLUMNS = ["id", "name", "lane", "start_ns", "duration_ns"]

# By the file of the library's that runs the loop, its own arguments; of programs that subclass it as well.
OF_LIBRARIES = {
    "transformers/trainer.py": (
        "TrainingArguments(dataloader_num_workers={}, dataloader_persistent_workers=True)"
    ),
    "skorch/net.py": "NeuralNet(…, iterator_train__num_workers={}, iterator_train__persistent_workers=True)",
    "fastai/learner.py": "DataLoaders.from_…(…, num_workers={})",
    "ultralytics/engine/trainer.py": "model.train(…, workers={})",
}


def with_workers(view: RankView, workers: int | str) -> str:
    """The code that gives the loader so many workers, which live as long as it."""
    files = libraries_of_steps(view.run)
    of_library = next((call for file, call in OF_LIBRARIES.items() if file in files), None)
    if of_library is not None:
        return of_library.format(workers)
    pinned = "pin_memory=True, " if len(view.work) else ""
    return f"DataLoader(dataset, num_workers={workers}, {pinned}persistent_workers=True, prefetch_factor=4)"


def picks(view: RankView) -> tuple[pl.DataFrame, pl.DataFrame]:
    """The calls of a loader without workers that consist of picking samples out of tensors, and the ops that
    do so (``COLUMNS`` of either); none where it does anything else of note."""
    host = view.trace.host_events
    calls = view.inside(view.host(f"{DATA_LOADER}.*SingleProcess"))
    within = view.inside_of(calls["id"])
    called = host.filter(is_op(view.trace) & within.is_not_null()).with_columns(END)
    called = intervals.outermost(called, ["lane"])
    ops = called.filter(matching(called, "name", PICKS))
    if view.us_of(ops) < max(MADE_OF * view.us_of(calls), OF_OPS * view.us_of(called)):
        return calls.clear().select(COLUMNS), ops.clear().select(COLUMNS)
    return calls.select(COLUMNS), ops.select(COLUMNS)
