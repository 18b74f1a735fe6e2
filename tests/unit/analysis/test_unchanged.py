"""Modules that every step calls with the same: programs that run under the recorder's own trace function."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec
import pytest

import traces
from kinetoscope.analysis.origins.unchanged import unchanged_calls, unchanged_lines, unchanged_normalizations
from kinetoscope.capture.recorder.lines import Lines
from kinetoscope.recording.manifest import Manifest, Program, RankRecord
from kinetoscope.sources.run import LoadedRun

DEFINED = """
from torch import zeros
import numpy as np
from numpy.random import uniform
import torch
import torch.nn.functional as F

class Encoder(Module):
    def forward(self, x):
        return x

class Head(Module):
    def forward(self, x):
        return x

class Counter(Module):
    def forward(self, x):
        self.seen = x
        return x

class Model(Module):
    # Its encoder gets the same; the line that calls it converts what is new.

    def __init__(self):
        self.encoder = Encoder()

    def forward(self, x, names):
        return self.encoder(names)

class Classifier:
    def __init__(self, names):
        self.encoder, self.counter, self.names = Encoder(), Counter(), names
        self.latest = list(names)
        self.compare, self.answers = cosines, []

    def fixed(self):
        return sum(self.encoder(self.names))

    def fixed_words(self):
        tokens = tokenize(self.names)
        tokens = tokens.to("cuda")
        return self.encoder(tokens)

    def counted(self):
        return self.counter(self.names)

    def assigned(self, batch):
        self.latest = batch
        return self.encoder(self.latest)

    def written(self, batch):
        self.latest.append(batch)
        return self.encoder(self.latest)

    def filled(self, batch):
        fill(self.latest, batch)
        return self.encoder(self.latest)

    def summed(self):
        sums = tokenize([0])
        sums.add_(self.names)
        return sum(self.encoder(self.names))

    def filled_part(self, batch):
        latest = self.latest
        latest[0] = batch[0]
        return zeros(self.latest)

    def filled_for(self, names):
        return [zeros([name]) for name in names]

    def drawn(self):
        return self.encoder(draw(self.names))

    def looped(self, names):
        for name in names:
            self.encoder([name])

    def paired(self, batch):
        for encoder, name, word in zip([self.encoder, self.encoder], self.names, batch):
            x = encoder(name)
            x = self.counter(word)

    @property
    def newest(self):
        return self.latest[-1:]

    def of_newest(self):
        return self.encoder(self.newest)

    def nested(self, batch):
        for layer in [self.encoder, self.encoder]:
            x = picked(layer(self.names)), picked(layer(self.latest))

    def given(self, x, scale=1):
        return self.encoder(x)

    def answered(self, batch):
        return self.compare(batch, self.names)

    def __call__(self, batch):
        return self.given(batch), self.given(x=self.names)


def picked(x):
    return x


def cosines(asked, known, dim=0):
    return F.normalize(asked, dim=dim), F.normalize(known, dim=dim)


def predict(classifier, batch, names):
    return classifier.encoder(names)


def triangles(size, bands):
    edges = np.linspace(0, size, bands + 2)
    weights = np.zeros((bands, size))
    for i in range(bands):
        low, high = edges[i], edges[i + 2]
        weights[i] = np.maximum(low, high).astype(np.float32)
    return weights

def noisy(size):
    weights = np.zeros(size)
    for i in range(size):
        weights[i] = np.random.rand()
    return weights

def filled(batch, size):
    weights = np.zeros(size)
    for i in range(size):
        weights[i] = batch[0]
    return weights

def counted_up(size):
    seen.append(size)
    return np.zeros(len(seen))

def kept_or_not(batch):
    if batch[0] > 5:
        return np.zeros(2)
    return np.zeros(3)

seen, kept = [], {}

def tabled(batch, size, bands):
    kept[batch[0], size] = torch.zeros(len(triangles(size, bands)))
    return kept


def main(data):
    classifier, prompts, total = Classifier([1, 2]), [3, 4], [0]
    encoder = classifier.encoder
    model = Model()
    features, twice, data_iter = Features(encoder, Head()), Features(encoder, encoder), iter(data)
    for photo in data[:1]:
        for batch in data:
            mark()
            BODY

main([[5], [6], [7], [8]])
"""


class Tensor(list[int]):
    def add_(self, other: list[int]) -> None: ...

    def to(self, device: str) -> Tensor:
        return self


class Features:
    """A library's model, of two modules."""

    def __init__(self, *modules: Module) -> None:
        self.modules = modules

    def of(self, x: Any) -> Any:
        for module in self.modules:
            x = module(x)
        return x


class Module:
    """As torch's: what it calls is no line of the program."""

    def forward(self, x: Any) -> Any: ...

    def __call__(self, *arguments: Any) -> Any:
        return self.forward(*arguments)


def train(module: Module, data: list[list[int]]) -> None:
    """A library's loop."""
    for batch in data:
        module(batch)


def calls(body: str, folder: Path) -> list[str]:
    """The lines of such calls in the second step of a program, without the numbers."""
    run, text = second_step(body, folder)
    return _lines(unchanged_calls(run)[0]["line"].unique(maintain_order=True), text)


def _lines(places: Iterable[str], text: str) -> list[str]:
    return [text.splitlines()[int(place.rpartition(":")[2]) - 1].strip() for place in places]


def second_step(body: str, folder: Path) -> tuple[LoadedRun, str]:
    """The lines of the second step of a program, and the program."""
    if sys.gettrace() is not None:
        pytest.skip("the tests are traced")
    file = folder / "program.py"
    text = textwrap.dedent(DEFINED).replace("BODY", body)
    file.write_text(text)
    lines, marks = Lines(lambda name: name == str(file)), iter(range(99))

    def mark() -> None:
        match next(marks):
            case 1:
                lines.start(sys._getframe(1))
            case 2:
                lines.stop()

    library = {"fill": list.append, "draw": list, "tokenize": Tensor, "train": train, "Features": Features}
    library["applied"] = lambda function, *given: function(*given)
    exec(compile(text, str(file), "exec"), {"Module": Module, "mark": mark, **library})
    noted = lines.events()
    began_ns = noted[0].began_ns - 1000
    events = [
        traces.event(
            "python_function",
            one.part or "",
            (one.began_ns - began_ns) / 1e3,
            (one.ended_ns - one.began_ns) / 1e3,
        )
        for one in noted
    ]
    (folder / "kept.json").write_bytes(msgspec.json.encode(Program(files={str(file): text})))
    kept = Manifest(ranks=(RankRecord(rank=0, program="kept.json"),))
    run = LoadedRun((), kept, folder=folder, lines={0: traces.trace(*events)})
    return run, text


@pytest.mark.parametrize(
    ("body", "found"),
    [
        ("classifier.fixed()", "return sum(self.encoder(self.names))"),
        ("classifier.fixed_words()", "return self.encoder(tokens)"),
        ("classifier.summed()", "return sum(self.encoder(self.names))"),  # which another adds to itself
        ("predict(classifier, batch, prompts)", "return classifier.encoder(names)"),
        ("predict(classifier, names=prompts, batch=batch)", "return classifier.encoder(names)"),
        ("x = encoder(prompts)", "x = encoder(prompts)"),
        ("x = features.of(prompts)", "x = features.of(prompts)"),
        ("classifier.given(prompts)", "return self.encoder(x)"),
        ("classifier.given(photo)", "return self.encoder(x)"),  # the same for several batches
        ("classifier.looped(prompts)", "self.encoder([name])"),  # each the same as in the step before
        ("classifier.nested(batch)", "x = picked(layer(self.names)), picked(layer(self.latest))"),
        ("classifier.paired(2 * batch)", "x = encoder(name)"),
        (
            "words = tokenize(batch)\n            x = model(words.to('cuda'), prompts)",
            "return self.encoder(names)",
        ),
    ],
)
def test_what_no_line_of_the_step_changes_is_the_same_in_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str, found: str
) -> None:
    monkeypatch.chdir(tmp_path)
    assert calls(body, tmp_path) == [found]


@pytest.mark.parametrize(
    "body",
    [
        "encoder(batch)",
        "predict(classifier, prompts, batch)",
        "classifier.given(batch)",
        "classifier(batch)",  # which gives once this, once that
        "classifier.assigned(batch)",
        "classifier.written(batch)",
        "classifier.filled(batch)",
        "classifier.drawn()",
        "classifier.looped(2 * batch)",
        "encoder(picked(batch))",
        "x = [(mark(), encoder(name)) for name in prompts]",  # whose passes are the steps
        "classifier.of_newest()",
        "classifier.counted()",  # keeps what it saw
        "x = twice.of(prompts)",  # in a loop of the library, which may pass what it likes
        "x = features.of(data_iter)",
        "train(encoder, data)",  # of which only the library knows what it passes
        "total = total + prompts; encoder(total)",  # more in each step
        "Encoder()(prompts)",  # another one in each step
        f"encoder({' + '.join(['prompts'] * 600)})",  # nested deeper than it is followed
    ],
)
def test_what_may_be_new_is_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str) -> None:
    monkeypatch.chdir(tmp_path)
    limit = sys.getrecursionlimit()  # which libraries raise, once another test has imported them
    sys.setrecursionlimit(1000)
    try:
        assert calls(body, tmp_path) == []
    finally:
        sys.setrecursionlimit(limit)


@pytest.mark.parametrize(
    ("body", "found"),
    [
        ("x = zeros(prompts)", True),
        ("x = torch.zeros(prompts).to('cpu')", True),
        ("x = classifier.filled_for(prompts)", True),
        ("x = zeros(batch)", False),
        ("x = torch.zeros(prompts + batch)", False),
        ("x = torch.randn(len(prompts))", False),
        ("x = classifier.filled_for(batch)", False),
        ("x = [zeros([name]) for name in prompts]", True),
        ("x = [(mark(), zeros([name])) for name in prompts]", False),  # whose passes are the steps
        ("x = torch.zeros(len(triangles(4, 3)))", True),
        ("x = torch.zeros(len(triangles(batch[0], 3)))", False),
        ("x = torch.zeros(len(noisy(4)))", False),
        ("x = classifier.filled_part(batch)", False),  # what another name holds as well
        ("x = torch.zeros(len([uniform() for name in prompts]))", False),
        ("x = torch.zeros(len(filled(batch, 4)))", False),
        ("x = torch.zeros(len(filled(prompts, 4)))", True),
        ("x = torch.zeros(len(counted_up(4)))", False),  # which keeps what it saw
        ("x = torch.zeros(len(kept_or_not(batch)))", False),
        ("x = [tabled(batch, *sizes) for sizes in ((4, 3), (8, 2))]", True),  # a dictionary's item
        ("x = [tabled(batch, *batch, size) for size in (4, 3)]", False),
        ("x = predict(classifier, batch, prompts)", False),  # which may be another in each step
        ("encoder(prompts)", False),  # nothing is kept of it
        ("batch[0] = zeros(prompts)", False),
    ],
)
def test_lines_that_make_the_same_of_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str, found: bool
) -> None:
    monkeypatch.chdir(tmp_path)
    run, text = second_step(body, tmp_path)
    lines = {body, "return [zeros([name]) for name in names]"}
    lines.add("return zeros(self.latest)")
    lines.add("kept[batch[0], size] = torch.zeros(len(triangles(size, bands)))")
    assert bool(lines.intersection(_lines(unchanged_lines(run)[0], text))) == found


def test_functions_that_are_called_for_what_is_the_same_run_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    body = "x = torch.zeros(len(triangles(4, 3))); y = tabled(batch, 4, 3)"
    run, text = second_step(body.replace("; ", "\n            "), tmp_path)
    same = unchanged_lines(run)[0]
    by_text = dict(zip(_lines(same, text), same.values(), strict=True))
    assert _lines(by_text["x = torch.zeros(len(triangles(4, 3)))"], text) == [
        "x = torch.zeros(len(triangles(4, 3)))"  # and not the lines of what another calls as well
    ]
    alone, text = second_step("x = torch.zeros(len(triangles(4, 3)))", tmp_path)
    (within,) = [one for one in unchanged_lines(alone)[0].values() if len(one) > 1]
    assert _lines(within, text)[0] == "edges = np.linspace(0, size, bands + 2)"
    assert len(within) == 7


NORMALIZED = "return F.normalize(asked, dim=dim), F.normalize(known, dim=dim)"


@pytest.mark.parametrize(
    ("body", "line", "found"),
    [
        ("x = cosines(batch, prompts)", NORMALIZED, [False, True]),
        ("x = classifier.answered(batch)", NORMALIZED, [False, True]),  # by an attribute
        ("x = classifier.compare(known=prompts, asked=batch)", NORMALIZED, [False, True]),
        ("x = cosines(prompts, batch)", NORMALIZED, [True, False]),
        ("x = F.normalize(F.normalize(prompts, dim=0), dim=0)", None, [True, True]),
        ("x = F.normalize(batch, dim=0)", None, []),
        ("x = F.normalize(prompts, dim=0) if batch else batch", None, []),  # once one, once the other
        ("x = applied(cosines, batch, prompts)", NORMALIZED, []),  # as a library likes
    ],
)
def test_calls_of_normalize_that_get_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str, line: str | None, found: list[bool]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("torch.nn.functional.normalize", lambda values, dim: list(values))
    run, text = second_step(body, tmp_path)
    same = unchanged_normalizations(run)[0]
    assert list(same.values()) == [found] * bool(found)
    assert _lines(same, text) == [line or body] * bool(found)
