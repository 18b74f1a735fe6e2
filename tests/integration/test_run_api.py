"""`kinetoscope.profile` in a program of the user's."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from programs import Programs, Run

# Its blocks one after the other, as loading torch takes longer than all of them; the last one raises.
PROGRAM = """
    import os, signal, sys, torch, kinetoscope
    from torch.optim.optimizer import _global_optimizer_post_hooks as hooks
    import torch.autograd.profiler as profilers, torch._dynamo.eval_frame as frames

    def state():
        profile, range = vars(profilers.profile), vars(torch.profiler.record_function)
        return (vars(torch.nn.Module)["__call__"], dict(hooks), frames._callback_from_stance, os._exit,
                profile["__exit__"], profile["export_chrome_trace"], range["__enter__"],
                signal.getsignal(signal.SIGTERM), list(sys.meta_path))

    before = state()
    with kinetoscope.profile(name="hooked"):
        model = torch.nn.Linear(4, 4)
        for _ in range(8):
            model(torch.ones(4))
    print(state() == before)

    @kinetoscope.profile(name="decorated", whole=True)
    def work(count):
        for _ in range(count):
            torch.ones(3).sin()
        return count

    print(work(5), work(7))

    with kinetoscope.profile(name="loop", steps=2) as p:
        for _ in range(500):
            torch.ones(64, 64) @ torch.ones(64, 64)
            p.step()
    print(p.recording.name.startswith("loop-"))

    with kinetoscope.profile(name="raising"):
        torch.ones(3).sin()
        raise KeyError("mine")
"""


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> tuple[Run, dict[str, Path]]:
    """The program once it has ended, and its recordings by their blocks."""
    if importlib.util.find_spec("torch") is None:
        pytest.skip("torch is not installed")
    programs = Programs(tmp_path_factory.mktemp("api"))
    run = programs.plain(str(programs.write(PROGRAM)))
    folders = sorted((programs.home / "recordings").iterdir())
    found = {folder.name.partition("-")[0]: folder for folder in folders}
    assert len(found) == len(folders) == 4, run.err
    return run, found


def block(ran: tuple[Run, dict[str, Path]], name: str) -> Run:
    run, found = ran
    return Run(run.status, run.out, run.err, found[name])


def test_nothing_of_ours_is_left_behind(ran: tuple[Run, dict[str, Path]]):
    assert block(ran, "hooked").out.splitlines()[0] == "True"


def test_a_decorated_function_is_recorded_once(ran: tuple[Run, dict[str, Path]]):
    run = block(ran, "decorated")
    assert run.out.splitlines()[1] == "5 7"
    assert [e["name"] for e in run.events()].count("aten::sin") == 5


def test_a_block_with_steps_of_its_own(ran: tuple[Run, dict[str, Path]]):
    run = block(ran, "loop")
    assert run.folder is not None
    assert run.out.splitlines()[2] == "True"
    assert run.steps["found_by"] == "user"
    assert len(run.steps["profiled_s"]) == 2
    assert run.manifest["exit"] == "ok"
    assert "whole_run" not in run.rank  # the program around a block is not watched
    assert not (run.folder / "whole_run").exists()


def test_a_block_that_raises_is_kept_and_raises(ran: tuple[Run, dict[str, Path]]):
    run = block(ran, "raising")
    assert run.status == 1
    assert "KeyError: 'mine'" in run.err
    assert run.manifest["exit"] == "exception: KeyError"
    assert "aten::sin" in run.ops()


def test_inside_a_recorded_program_it_only_marks_steps(programs: Programs):
    script = programs.write(
        """
        import torch, kinetoscope
        with kinetoscope.profile() as p:
            for _ in range(500):
                torch.ones(64, 64) @ torch.ones(64, 64)
                p.step()
        """
    )
    run = programs.record(str(script))
    assert run.steps["found_by"] == "user"
    assert len(list((programs.home / "recordings").iterdir())) == 1
