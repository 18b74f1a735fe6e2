"""Requests, and training as libraries wrap it, with packages that stand in for theirs."""

from __future__ import annotations

import json
from collections import Counter
from textwrap import dedent

import pytest

from broad import broad
from programs import TRAIN, Programs, Run

# As transformers lays it out: the model's call is looked up once, and that is called for each token.
GENERATION = """
    import torch

    class GenerationMixin:
        @torch.no_grad()
        def generate(self, inputs, tokens):
            if self.config.is_encoder_decoder:
                inputs = self.get_encoder()(inputs)
            forward = self.__call__
            outputs = self(inputs)
            for _ in range(tokens - 1):
                outputs = forward(outputs[:, -1:])
            return outputs
"""
MODEL = """
    import torch
    from types import SimpleNamespace
    from transformers import GenerationMixin

    class Model(torch.nn.Module, GenerationMixin):
        def __init__(self, encodes):
            super().__init__()
            self.config = SimpleNamespace(is_encoder_decoder=encodes)
            self.encoder, self.head = torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)
        def get_encoder(self):
            return self.encoder
        def forward(self, x):
            return self.head(x)
"""


def transformers(programs: Programs) -> None:
    programs.write(GENERATION, "transformers/generation/utils.py")
    programs.write("", "transformers/generation/__init__.py")
    programs.write("from transformers.generation.utils import GenerationMixin", "transformers/__init__.py")
    programs.write(MODEL, "model.py")


def parts(run: Run) -> list[list[str]]:
    """The annotations inside each recorded step, in order."""
    marks = [e for e in run.events() if e.get("cat") == "user_annotation"]
    steps = sorted((e for e in marks if e["name"].startswith("ProfilerStep#")), key=lambda e: e["ts"])
    return [
        [
            e["name"]
            for e in sorted(marks, key=lambda e: e["ts"])
            if e is not step and step["ts"] <= e["ts"] and e["ts"] + e["dur"] <= step["ts"] + step["dur"]
        ]
        for step in steps
    ]


@pytest.mark.parametrize("encodes", broad([False, True], [True]))
def test_a_call_of_generate_is_a_step_and_its_tokens_are_marked(programs: Programs, encodes: bool):
    transformers(programs)
    script = programs.write(
        f"""
        import torch
        from model import Model
        model = Model({encodes})
        for _ in range(500):
            model.generate(torch.ones(2, 5, 8), 4)
        """
    )
    run = programs.record(str(script))
    assert (run.steps["found_by"], run.steps["step_name"]) == ("request", "Model")
    expected = [*["encode"] * encodes, "prefill", "decode", "decode", "decode"]
    assert parts(run) == [expected] * len(run.steps["profiled_s"])


@pytest.mark.usefixtures("whole")
def test_a_compiled_model_s_tokens_are_marked_and_nothing_is_compiled_again(programs: Programs):
    transformers(programs)
    script = programs.write(
        """
        import torch
        from model import Model
        compiled = 0
        def backend(graph, inputs):
            global compiled
            compiled += 1
            return graph.forward
        model = Model(False)
        model.forward = torch.compile(model.forward, backend=backend, dynamic=True)
        for _ in range(500):
            model.generate(torch.ones(2, 5, 8), 4)
        print(compiled)
        """
    )
    plain, run = programs.plain(str(script)), programs.record(str(script))
    assert run.out == plain.out
    assert parts(run) == [["prefill", *["decode"] * 3]] * len(run.steps["profiled_s"])
    kept = json.loads((run.folder / run.rank["program"]).read_text())["files"]
    own = ["prog.py", "model.py", "transformers/__init__.py", "transformers/generation/utils.py"]
    assert kept == {str(programs.home / name): (programs.home / name).read_text() for name in own} | {
        str(programs.home / "transformers/generation/__init__.py"): ""
    }


def test_an_override_of_generate_is_the_request_and_the_program_sees_nothing_of_ours(programs: Programs):
    transformers(programs)
    script = programs.write(
        """
        import inspect, traceback, torch
        from transformers import GenerationMixin
        from model import Model
        class Speech(Model):
            def generate(self, inputs, tokens):
                for part in inputs.split(1):
                    outputs = super().generate(part, tokens)
                return outputs
            def forward(self, x):
                self.stack = {frame.filename for frame in inspect.stack()}
                return super().forward(x)
        model, generate = Speech(False), Speech.generate
        for _ in range(500):
            model.generate(torch.ones(2, 5, 8), 2)
        print(Speech.generate is generate, any("kinetoscope/capture/steps" in f for f in model.stack))
        """
    )
    run = programs.record(str(script))
    assert run.out == "True False\n"
    assert set(map(tuple, parts(run))) == {("prefill", "decode", "decode", "decode")}


def test_one_request_is_recorded_with_its_tokens(programs: Programs):
    transformers(programs)
    script = programs.write(
        """
        import torch
        from model import Model
        Model(False).generate(torch.ones(2, 5, 8), 3)
        """
    )
    run = programs.record(str(script))
    assert run.steps["found_by"] == "request"
    assert parts(run) == [["prefill", "decode", "decode"]]


def test_a_training_loop_that_generates_has_its_optimizer_s_steps(programs: Programs):
    transformers(programs)
    script = programs.write(
        TRAIN
        + """
from model import Model
model = Model(False)
optimizer = Descent(model.head.parameters())
for _ in range(500):
    sample = model.generate(torch.ones(2, 5, 8), 3)
    model(sample).sum().backward()
    optimizer.step()
"""
    )
    assert programs.record(str(script)).steps["found_by"] == "optimizer"


TRAINING = f"""{TRAIN}
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Dropout(), torch.nn.Linear(8, 1))
inner = Descent(model.parameters())
loss = torch.nn.MSELoss()
def train(optimizer, batches=1):
    model.train()
    for _ in range(batches):
        loss(model(torch.ones(4, 8)), torch.ones(4, 1)).backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def test_evaluation_is_no_part_of_a_training_step(programs: Programs):
    programs.write(TRAINING, "training.py")
    script = programs.write(
        """
        import time, torch
        from training import *
        for step in range(100):
            train(inner)
            if step % 2:
                model.eval()
                with torch.no_grad():
                    for _ in range(4):
                        model(torch.ones(4, 8))
                        time.sleep(0.01)
        """
    )
    run = programs.record(str(script))
    assert run.steps["found_by"] == "optimizer"
    # Only each other step of training was timed from one optimizer's step to the next; none holds a sleep
    # (of 40 ms: a busy machine may delay a few).
    for timed in ("before", "recorded", "after"):
        steps = sorted(run.steps[timed]["step_s"])
        assert steps[len(steps) * 3 // 4] < 0.04
    names = [[name for name in step if not name.startswith("Optimizer.")] for step in parts(run)]
    assert ["evaluate"] in names
    assert [] in names


def test_gradients_may_be_accumulated_over_calls(programs: Programs):
    programs.write(TRAINING, "training.py")
    script = programs.write(
        """
        from training import *
        for _ in range(500):
            train(inner, batches=4)
        """
    )
    run = programs.record(str(script))
    assert run.steps["found_by"] == "optimizer"
    events = Counter(e["name"] for e in run.events() if e.get("cat") == "cpu_op")
    assert events["aten::mse_loss"] == 4 * len(run.steps["profiled_s"])


# AcceleratedOptimizer is a torch.optim.Optimizer around the program's, whose step it calls;
# LightningOptimizer takes the class of the one that it wraps, and calls it with a closure.
WRAPPED = {
    "accelerate": """
        class AcceleratedOptimizer(torch.optim.Optimizer):
            def __init__(self, optimizer):
                self.optimizer = optimizer
            def zero_grad(self):
                self.optimizer.zero_grad()
            def step(self, closure=None):
                self.optimizer.step(closure)
        optimizer = AcceleratedOptimizer(inner)
        """,
    "lightning": """
        class LightningOptimizer:
            def __init__(self, optimizer):
                own = ("step", "zero_grad")
                self.__dict__ = {k: v for k, v in optimizer.__dict__.items() if k not in own}
                self.__class__ = type("LightningDescent", (LightningOptimizer, type(optimizer)), {})
                self._optimizer = optimizer
            def zero_grad(self):
                self._optimizer.zero_grad()
            def step(self, closure=None):
                return self._optimizer.step(closure=closure or (lambda: None))
        optimizer = LightningOptimizer(inner)
        """,
    "scaler": """
        class Scaled:
            def __init__(self):
                self.steps = 0
            def zero_grad(self):
                inner.zero_grad()
            def step(self):
                self.steps += 1
                if self.steps > 3:  # a scaler leaves the first steps out, until its scale is small enough
                    inner.step()
        optimizer = Scaled()
        """,
}


@pytest.mark.parametrize("library", broad(WRAPPED, ("scaler",)))
def test_a_wrapped_optimizer_s_step_is_found_once(programs: Programs, library: str):
    programs.write(TRAINING, "training.py")
    body = "\n".join(line.strip("\n") for line in WRAPPED[library].splitlines())
    script = programs.home / "prog.py"
    script.write_text(
        "from training import *\n" + dedent(body) + "\nfor _ in range(500):\n    train(optimizer)\n"
    )
    run = programs.record(str(script))
    assert (run.steps["found_by"], run.steps["step_name"]) == ("optimizer", "Descent")
    events = Counter(e["name"] for e in run.events() if e.get("cat") == "cpu_op")
    assert events["aten::mse_loss"] == len(run.steps["profiled_s"])
