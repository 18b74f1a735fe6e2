"""`kinetoscope run` notes from which line of the program each op is called."""

from __future__ import annotations

import sys

from kinetoscope.analysis.origins.lines import op_lines
from kinetoscope.sources.run import load
from programs import DESCENT, Programs

PROGRAM = f"""{DESCENT}
import sys
from torch import nn

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(16, 16)

    def forward(self, x):
        y = self.layer(x)
        y = y * 2
        return torch.relu(y)

def train(steps):
    for _ in range(steps):
        optimizer.zero_grad()
        loss = model(torch.randn(4, 16)).sum()
        loss.backward()
        optimizer.step()
        assert sys.gettrace() is None or sys.gettrace().__name__ == "_called"

model = nn.Sequential(Block(), Block())
optimizer = Descent(model.parameters())
train(STEPS)
assert sys.gettrace() is None
print("trained")
"""


def test_ops_of_the_recorded_steps_have_the_lines_that_call_them(programs: Programs) -> None:
    path = programs.write(PROGRAM.replace("STEPS", "400"))
    run = programs.record(str(path))
    assert run.status == 0, run.err
    assert "trained" in run.out
    assert run.folder is not None
    loaded = load(run.folder)
    found = op_lines(loaded)[0]
    assert found.verified > 0.9
    host = loaded.traces[0].host_events.with_columns(found.texts)
    lines = {
        (name, line, module)
        for name, line, module in host.select("name", "line", "module").drop_nulls("line").iter_rows()
    }
    forward = "Block.forward" if sys.version_info >= (3, 11) else "forward"
    code = path.read_text().splitlines()

    def where(text: str) -> int:
        return next(number for number, line in enumerate(code, 1) if text in line)

    for op, text, function in (
        ("aten::linear", "self.layer(x)", forward),
        ("aten::mul", "y * 2", forward),  # an operator, of which no call is seen
        ("aten::relu", "torch.relu(y)", forward),
        ("aten::randn", "torch.randn", "train"),
    ):
        expected = f"{path.name}:{where(text)} {function}"
        assert any(name == op and line.endswith(expected) for name, line, _ in lines), (op, expected)
    noted = loaded.lines[0]
    layers = noted.host_events.filter(noted.host_events["name"].cast(str) == "aten::linear")
    sizes = noted.argument("input_dims", layers["id"]).cast(str)
    assert set(sizes) == {"[[4, 16], [16, 16], [16]]"}


def test_without_them_a_recording_is_as_before(programs: Programs) -> None:
    run = programs.record("--no-lines", str(programs.write(PROGRAM.replace("STEPS", "400"))))
    assert run.status == 0, run.err
    assert run.folder is not None
    assert not (run.folder / "trace" / "rank0.lines.json").exists()
    assert load(run.folder).lines == {}


def test_a_program_that_is_traced_keeps_its_trace_function_and_a_note_says_so(programs: Programs) -> None:
    traced = "import sys, torch\nsys.settrace(lambda frame, event, argument: None)\nown = sys.gettrace()\n"
    program = PROGRAM.replace("STEPS", "400").replace(
        'assert sys.gettrace() is None or sys.gettrace().__name__ == "_called"',
        "assert sys.gettrace() is own",
    )
    program = program.replace("assert sys.gettrace() is None\n", "assert sys.gettrace() is own\n")
    run = programs.record(str(programs.write(traced + program)))
    assert run.status == 0, run.err
    assert any("is traced already" in note for note in run.steps["notes"])


PADDED = f"""{DESCENT}
from torch import nn

class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.out = nn.Embedding(50, 16), nn.Linear(16, 3)

    def forward(self, input_ids, attention_mask, labels):
        x = self.words(input_ids) * attention_mask[:, :, None]
        return nn.functional.cross_entropy(self.out(x.sum(1)), labels)

def batches():
    lengths = torch.tensor([3, 5, 2, 9])
    mask = (torch.arange(16) < lengths[:, None]).long()
    while True:
        words = torch.randint(2, 50, mask.shape) * mask
        yield {{"input_ids": words, "attention_mask": mask, "labels": lengths % 3}}

model = Classifier()
optimizer = Descent(model.parameters())
for _, batch in zip(range(400), batches()):
    optimizer.zero_grad()
    model(**batch).backward()
    optimizer.step()
"""


def test_the_padding_of_batches_without_a_loader_is_what_the_model_s_mask_says(programs: Programs) -> None:
    run = programs.record(str(programs.write(PADDED)))
    assert run.status == 0, run.err
    assert run.steps["padding"] == {"tokens": 64, "padding": 64 - 19, "beyond": 4 * (16 - 9), "rows": 4}
    assert run.steps["labels"] == {"labels": 4, "ignored": 0, "tables": 1}
