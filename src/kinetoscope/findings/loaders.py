"""The call by which a program gives its data loader more workers: ``DataLoader``, or the arguments of the
library that makes the loader for it."""

from __future__ import annotations

from kinetoscope.analysis.passes.whole_run import libraries_of_steps
from kinetoscope.findings.rank_view import RankView

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
