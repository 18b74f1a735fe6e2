"""`kinetoscope.profile` in a program of the user's."""

from __future__ import annotations

from programs import Programs


def test_a_block_with_steps_of_its_own(programs: Programs):
    script = programs.write(
        """
        import torch, kinetoscope
        with kinetoscope.profile(name="loop", steps=2) as p:
            for _ in range(500):
                torch.ones(64, 64) @ torch.ones(64, 64)
                p.step()
        print(p.recording.name.startswith("loop-"))
        """
    )
    run = programs.plain(str(script))
    assert (run.status, run.out) == (0, "True\n")
    assert run.steps["found_by"] == "user"
    assert len(run.steps["profiled_s"]) == 2
    assert run.manifest["exit"] == "ok"


def test_a_decorated_function_is_recorded_once(programs: Programs):
    script = programs.write(
        """
        import torch, kinetoscope
        @kinetoscope.profile(whole=True)
        def work(count):
            for _ in range(count):
                torch.ones(3).sin()
            return count
        print(work(5), work(7))
        """
    )
    run = programs.plain(str(script))
    assert run.out == "5 7\n"
    assert [e["name"] for e in run.events()].count("aten::sin") == 5
    assert len(list((programs.home / "recordings").iterdir())) == 1


def test_a_block_that_raises_is_kept_and_raises(programs: Programs):
    script = programs.write(
        """
        import torch, kinetoscope
        with kinetoscope.profile():
            torch.ones(3).sin()
            raise KeyError("mine")
        """
    )
    run = programs.plain(str(script))
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


def test_nothing_of_ours_is_left_behind(programs: Programs):
    script = programs.write(
        """
        import os, signal, sys, torch, kinetoscope
        from torch.optim.optimizer import _global_optimizer_post_hooks as hooks
        import torch.autograd.profiler as profilers, torch._dynamo.eval_frame as frames
        def state():
            profile, range = vars(profilers.profile), vars(torch.profiler.record_function)
            return (vars(torch.nn.Module)["__call__"], dict(hooks), frames._callback_from_stance, os._exit,
                    profile["__exit__"], profile["export_chrome_trace"], range["__enter__"],
                    signal.getsignal(signal.SIGTERM), list(sys.meta_path))
        before = state()
        with kinetoscope.profile():
            model = torch.nn.Linear(4, 4)
            for _ in range(8):
                model(torch.ones(4))
        print(state() == before)
        """
    )
    assert programs.plain(str(script)).out == "True\n"
