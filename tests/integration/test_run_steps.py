"""Where `kinetoscope run` finds the steps of a program, and what it records when there are none."""

from __future__ import annotations

from textwrap import dedent

import pytest

from programs import OPTIMIZERS, ROOT, TRAIN, Programs

EXAMPLES = ROOT / "examples"


def test_a_training_loop_s_steps_are_its_optimizer_s(programs: Programs):
    run = programs.record(str(EXAMPLES / "llama.py"), "--steps", "80")
    assert run.steps["found_by"] == "optimizer"
    assert run.steps["step_name"] == "AdamW"
    recorded = len(run.steps["profiled_s"])
    first = run.steps["first_step"]
    assert run.marks()[:recorded] == [f"ProfilerStep#{first + i}" for i in range(recorded)]
    names = [e["name"] for e in run.events() if e.get("cat") in ("cpu_op", "user_annotation")]
    # One step more is in the trace than is marked: the first after the profiler's start.
    assert names.count("Optimizer.step#AdamW.step") == recorded
    assert run.manifest["environment"]["torch"]


def test_steps_are_timed_before_and_after_with_what_they_wait_for(programs: Programs):
    script = programs.write(
        TRAIN
        + """
import gc
from torch.utils.data import DataLoader, Dataset

class Slow(Dataset):
    def __len__(self):
        return 200
    def __getitem__(self, i):
        time.sleep(0.004)
        return torch.ones(32)

callbacks = list(gc.callbacks)
for batch in DataLoader(Slow()):
    loss = model(batch).sum()
    loss.backward()
    optimizer.step()
    loss.item()
print("item" not in vars(torch.Tensor) and gc.callbacks == callbacks)
"""
    )
    run = programs.record(str(script))
    assert run.out == "True\n"
    assert run.steps["loader_workers"] == 0
    for timed, least in (("before", 20), ("recorded", 3), ("after", 20)):
        steps = run.steps[timed]
        assert len(steps["step_s"]) == len(steps["sync_s"]) == len(steps["gc_s"]) >= least
        for step_s, data_s, sync_s in zip(steps["step_s"], steps["data_s"], steps["sync_s"], strict=True):
            assert 0.004 <= data_s < step_s
            assert 0 < sync_s < step_s - data_s
    assert run.steps["unprofiled_s"] == run.steps["before"]["step_s"] == run.steps["before"]["host_s"]
    assert "device_trace" not in run.rank  # a program without a GPU has one pass


@pytest.mark.slow  # test_run_whole has a loop whose steps are a module's
def test_an_inference_loop_s_steps_are_its_outermost_module_s(programs: Programs):
    run = programs.record(str(EXAMPLES / "llama.py"), "--generate", "--steps", "90")
    assert (run.steps["found_by"], run.steps["step_name"]) == ("module", "Llama")
    recorded = len(run.steps["profiled_s"])
    names = [e["name"] for e in run.events() if e.get("cat") == "cpu_op"]
    assert names.count("aten::embedding") == recorded


def test_a_loop_over_a_compiled_function_has_its_calls_for_steps(programs: Programs):
    run = programs.record(
        str(
            programs.write(
                """
                import torch
                f = torch.compile(lambda x: x @ x + 1, backend="eager")
                for _ in range(500):
                    f(torch.ones(8, 8))
                """
            )
        )
    )
    assert run.steps["found_by"] == "compiled"
    assert len(run.marks()) == len(run.steps["profiled_s"])
    assert run.folder is not None
    assert (run.folder / run.rank["compile_log"]).read_text().count('"dynamo_start"') == 1


def test_a_loop_of_plain_functions_is_recorded_whole(programs: Programs):
    run = programs.record(str(EXAMPLES / "matmul_add.py"), "--steps", "20", "--warmup", "0")
    assert "found_by" not in run.steps or run.steps["found_by"] == "whole"
    assert "no steps were found" in run.err
    assert "nothing to report" not in run.err
    names = [e["name"] for e in run.events() if e.get("cat") == "cpu_op"]
    assert names.count("aten::add") == 20


def test_a_repeated_range_marks_steps_where_nothing_else_does(programs: Programs):
    run = programs.record(
        str(
            programs.write(
                """
                import torch
                for _ in range(500):
                    with torch.profiler.record_function("work"):
                        torch.ones(64, 64) @ torch.ones(64, 64)
                    with torch.profiler.record_function("dynamo_data: compile_id=0/0"):
                        pass  # Dynamo's note on what it compiles
                """
            )
        )
    )
    assert (run.steps["found_by"], run.steps["step_name"]) == ("range", "work")
    assert [candidate["name"] for candidate in run.steps["candidates"]] == ["work"]


def test_range_records_its_inside(programs: Programs):
    run = programs.record(
        "--range",
        "hot",
        "--steps",
        "1",
        str(
            programs.write(
                """
                import torch
                for _ in range(500):
                    torch.ones(3).cos()
                    with torch.profiler.record_function("hot"):
                        torch.ones(3).sin()
                """
            )
        ),
    )
    assert "aten::sin" in run.ops()
    assert "aten::cos" not in run.ops()


@pytest.mark.slow  # test_run_behaviour has one that trains four steps, and ends in each way
def test_a_program_too_short_to_settle_still_has_a_recording(programs: Programs):
    run = programs.record(str(programs.write(TRAIN + "train(3)")))
    assert run.steps["cold"]
    assert "cold start" in run.err or "whole" in run.err
    assert "Optimizer.step#Descent.step" in {e["name"] for e in run.events()}


def test_a_program_of_a_handful_of_long_steps_is_recorded_warm(programs: Programs):
    """An inversion: each iteration propagates shot after shot, and reads each misfit back."""
    script = programs.write(
        OPTIMIZERS
        + dedent("""
        import time
        import torch
        velocity = torch.full((8, 8), 2.0, requires_grad=True)
        optimizer = torch.optim.Adam([velocity])
        for iteration in range(5):
            optimizer.zero_grad()
            misfits = []
            for shot in range(4):
                field = torch.ones(8, 8)
                for moment in range(40):
                    field = field + 0.01 * velocity * torch.roll(field, 1, 0)
                loss = field.square().mean()
                loss.backward()
                misfits.append(loss.item())
                time.sleep(1.2 if iteration == 0 else 0.3)
            optimizer.step()
        """)
    )
    run = programs.record(str(script))
    assert (run.steps["found_by"], run.steps["first_step"]) == ("optimizer", 2)
    assert "cold" not in run.steps
    assert 1.2 < run.steps["unprofiled_s"][0] < 2.0
    assert 1.2 < min(run.steps["profiled_s"]) < 2.0


@pytest.mark.parametrize("seconds", [0.3, 0.7])
def test_a_trial_of_ten_iterations_is_recorded_by_whole_ones(programs: Programs, seconds: float):
    """Agents play without gradients, now longer and now shorter, and then learn from what came of it."""
    script = programs.write(
        OPTIMIZERS
        + dedent(f"""
        import random, time
        import torch
        torch.manual_seed(0)
        agent = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
        optimizer = torch.optim.Adam(agent.parameters())
        rng, seen = random.Random(0), torch.ones(4, 8)
        for iteration in range(10):
            moment_s = {seconds} / 20 * rng.uniform(0.85, 1.15)
            for moment in range(16):
                with torch.no_grad():
                    seen = torch.sigmoid(seen + agent(seen))
                time.sleep(moment_s)
            for part in range(4):
                optimizer.zero_grad()
                loss = agent(seen).square().mean()
                loss.backward()
                optimizer.step()
                time.sleep(moment_s)
        print(loss.item())
        """)
    )
    run = programs.record(str(script))
    assert run.out == programs.plain(str(script)).out
    assert "cold" not in run.steps
    assert run.steps["levels"][0]["name"].startswith("one iteration of 16 calls of Sequential")
    recorded = len(run.steps["profiled_s"])
    assert recorded >= 2
    assert run.steps["unprofiled_s"]
    names = [one["name"] for one in run.events() if one.get("cat") in ("cpu_op", "user_annotation")]
    assert names.count("Optimizer.step#Adam.step") == 4 * recorded
    assert names.count("aten::sigmoid") == 16 * recorded


def test_what_comes_between_two_visits_of_a_loop_is_no_pass_of_it(programs: Programs):
    """Patches are chosen for a memory, each the farthest from all before; then parts are tested by them."""
    script = programs.write(
        """
        import time
        import torch
        torch.set_num_threads(1)
        features = torch.randn(2000, 32)
        def select(seconds):
            index, began, chosen = 0, time.perf_counter(), []
            least = torch.full((2000,), torch.inf)
            while time.perf_counter() - began < seconds:
                distance = torch.linalg.norm(features - features[index], dim=1)
                least = torch.minimum(least, distance)
                index = int(least.argmax().item())
                chosen.append(index)
            return chosen
        for seconds in (2.5, 0.3, 0.3):
            memory = features[select(seconds)]
            distance = torch.cdist(features, memory[:8]).amin(1)
            print(distance.max().item())
            time.sleep(0.7)
            print(distance.median().item())
        """
    )
    run = programs.record(str(script))
    assert run.steps["levels"][0]["name"] == "one pass of the loop at prog.py:9"
    assert len(run.steps["later"]["step_s"]) > 100
    assert max(run.steps["later"]["step_s"]) < 0.5


def test_a_service_of_threads_that_share_a_lock_is_recorded_warm(programs: Programs):
    """Each answer takes another time, and each of four clients asks for some sixty."""
    script = programs.write(
        """
        import random, threading, time
        import torch
        torch.set_num_threads(1)
        class Predictor:
            def __init__(self):
                self.encoder, self.lock = torch.nn.Linear(64, 64).eval(), threading.Lock()
            @torch.inference_mode()
            def predict(self, image):
                with self.lock:
                    features = self.encoder(image)
                    time.sleep(random.uniform(0.002, 0.01))
                    return (features > 0).numpy()
        predictor = Predictor()
        for size in range(8):
            predictor.predict(torch.zeros(1, 64))
        counting, asked = threading.Lock(), [0]
        def annotate():
            while True:
                with counting:
                    if asked[0] == 240:
                        return
                    asked[0] += 1
                predictor.predict(torch.ones(1, 64))
                time.sleep(0.001)
        people = [threading.Thread(target=annotate) for _ in range(4)]
        for one in people:
            one.start()
        for one in people:
            one.join()
        """
    )
    run = programs.record(str(script))
    assert run.steps["found_by"] == "module"
    assert "cold" not in run.steps
    assert len(run.steps["profiled_s"]) >= 1


def test_options_reach_the_profiler(programs: Programs):
    words = ["--shapes", "--stacks", "--memory", "--flops", "--steps", "2", "--warmup", "4"]
    run = programs.record(*words, str(programs.write(TRAIN + "train(200)")))
    assert len(run.steps["profiled_s"]) == 2
    events = run.events()
    assert any("Input Dims" in e.get("args", {}) for e in events)
    assert any(e.get("cat") == "python_function" for e in events)
    assert any(e.get("name") == "[memory]" for e in events)


def test_stacks_are_of_steps_that_have_settled(programs: Programs):
    """Of the first, in which a program imports and compiles, they took two minutes and 5 GB."""
    run = programs.record("--stacks", str(programs.write(TRAIN + "train(3)")))
    assert not any(e.get("cat") == "python_function" for e in run.events())
    assert any("without Python's stacks: --whole has them" in note for note in run.steps["notes"])
    run = programs.record("--stacks", "--whole", str(programs.write(TRAIN + "train(3)")))
    assert any(e.get("cat") == "python_function" for e in run.events())


@pytest.mark.slow  # test_run_api records a whole block
def test_whole_records_from_the_first_op_to_the_last(programs: Programs):
    run = programs.record("--whole", str(programs.write(TRAIN + "train(12)")))
    names = [e["name"] for e in run.events()]
    assert names.count("Optimizer.step#Descent.step") == 12


# As examples/ddp.py, without what loads torch's compiler: its optimizers and DistributedDataParallel.
RANKS = (
    TRAIN
    + """
import torch.distributed as dist
dist.init_process_group("gloo")
for _ in range(70):
    model(torch.ones(4, 32)).sum().backward()
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
    optimizer.step()
print(f"rank {dist.get_rank()} of {dist.get_world_size()}")
dist.destroy_process_group()
"""
)


def test_a_launcher_s_ranks_make_one_recording(programs: Programs):
    words = ["--", "torchrun", "--nproc-per-node", "2", "--standalone", str(programs.write(RANKS))]
    check_ranks(ended(lambda: programs.record(*words))[-1])


@pytest.mark.slow
def test_of_a_launcher_s_ranks_those_that_are_asked_for(programs: Programs):
    """Rank 1 alone: it names the step to begin at, and nobody waits for what rank 0 does not write."""
    words = ["--ranks", "1", "--", "torchrun", "--nproc-per-node", "2", "--standalone"]
    run = ended(lambda: programs.record(*words, str(EXAMPLES / "ddp.py"), "--steps", "70"))[-1]
    assert run.status == 0, run.err
    (rank,) = run.manifest["ranks"]
    assert rank["rank"] == 1
    assert rank["steps"]["found_by"] == "optimizer"
    assert run.marks(0)


def test_a_run_in_each_rank_makes_one_recording(programs: Programs):
    words = ["-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone"]
    words += ["-m", "kinetoscope", "run", "--no-report", str(programs.write(RANKS))]
    runs = ended(lambda: programs.plain(*words))
    check_ranks(runs[-1])
    assert len(list((programs.home / "recordings").iterdir())) == len(runs)


def ended(launch) -> list:
    """The runs until one ends by itself.

    On a busy machine gloo aborts a process now and then as it ends, after all its work, with us or without: 2
    of 22 plain runs of this program (torch 2.13).
    """
    runs = [launch()]
    while "terminate called without an active exception" in runs[-1].err and len(runs) < 4:
        runs.append(launch())
    return runs


def check_ranks(run) -> None:
    assert run.status == 0, run.err
    assert "rank 0 of 2" in run.out
    assert "rank 1 of 2" in run.out
    ranks = run.manifest["ranks"]
    assert [rank["rank"] for rank in ranks] == [0, 1]
    assert {rank["steps"]["found_by"] for rank in ranks} == {"optimizer"}
    # All ranks record the same steps: a collective is to be seen from both ends.
    assert len({rank["steps"]["first_step"] for rank in ranks}) == 1
    assert run.marks(0)[:3] == run.marks(1)[:3]


@pytest.mark.slow  # test_compile_live reads such a log
def test_compiling_is_logged_and_generated_code_kept(programs: Programs):
    words = [str(EXAMPLES / "attention.py"), "--variant", "backward", "--steps", "80"]
    # What comes out of a cache is not fused again.
    run = programs.record(*words, TORCHINDUCTOR_FORCE_DISABLE_CACHES="1")
    assert run.folder is not None
    log = (run.folder / run.rank["compile_log"]).read_text()
    assert log.count('"inductor_output_code"') == len(list((run.folder / "generated").glob("*.py"))) == 2
    assert '"name": "torch_version"' in log
    assert "completed fusion round" in (run.folder / run.rank["scheduler_log"]).read_text()
    assert (run.folder / run.rank["counters"]).read_text().startswith("{")
    assert run.steps["found_by"] in ("module", "compiled")


@pytest.mark.slow  # test_run_compiled compares more
def test_what_compiles_is_what_compiles_without_us(programs: Programs):
    script = programs.write(
        """
        import torch
        from torch._dynamo.utils import counters
        model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 8))
        compiled = torch.compile(model, backend="eager")
        optimizer = torch.optim.Adam(model.parameters())
        step = torch.compile(optimizer.step, backend="eager")
        in_place = torch.nn.Linear(8, 8)
        in_place.compile(backend="eager")
        for _ in range(500):
            in_place(compiled(torch.ones(2, 8))).sum().backward()
            step()
        groups = ("stats", "frames", "graph_break", "recompiles")
        print({k: dict(v) for k, v in counters.items() if k in groups})
        """
    )
    plain, run = programs.plain(str(script)), programs.record(str(script))
    assert run.out == plain.out
