"""A program under `kinetoscope run` behaves as without it: stdout, status, traceback, arguments, children."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

from programs import TRAIN, Programs


@pytest.mark.usefixtures("whole")
def test_what_a_program_sees_of_itself_is_what_it_sees_without_us(programs: Programs):
    for name in ("beside", "statistics", "msgspec", "calendar"):
        programs.write(f"NAME = '{name} beside the script'", f"own/{name}.py")
    script = programs.write(
        """
        import os, sys, threading, signal, multiprocessing, subprocess
        before = dict(os.environ)
        import statistics
        import torch
        import beside, msgspec, calendar
        print([module.NAME for module in (beside, statistics, msgspec, calendar)])
        print(sys.argv, __name__, __file__, sys.path)
        print(sorted(os.environ.items() - before.items()), before.keys() - os.environ.keys())
        names = "import os; print(sorted(os.environ))"
        print(subprocess.run([sys.executable, "-c", names], capture_output=True, text=True).stdout)
        print(sys.flags, sys.orig_argv[1:], sys.modules.get("sitecustomize"), "torch._dynamo" in sys.modules)
        print([t.name for t in threading.enumerate()], sys.excepthook is sys.__excepthook__)
        print(sorted(vars(sys.modules["__main__"])))
        print(torch.nn.Module.__call__, sys.stdin.read())
        import torch._inductor
        print(sorted(os.environ.items() - before.items()))
        """,
        "own/prog.py",
    )
    plain = programs.plain(str(script), "--flag", "a b", "-m", "--", "x")
    run = programs.record("--", str(script), "--flag", "a b", "-m", "--", "x")
    assert run.status == 0

    def comparable(text: str) -> list[str]:
        return [line.split(" at 0x")[0] for line in text.splitlines()]

    assert comparable(run.out) == comparable(plain.out)
    assert run.rank["trace"]


OWN = (
    *("datetime", "json", "typing", "logging", "enum", "dataclasses", "functools", "contextlib", "random"),
    *("importlib_metadata", "statistics", "secrets", "resource", "msgspec", "collections_own", "signal"),
)


@pytest.mark.usefixtures("whole")
def test_modules_of_the_program_s_own_win_as_without_us(programs: Programs):
    script = programs.write("import sys\nprint(sorted(sys.modules), CUSTOMIZED)\n", "own/prog.py")
    for name in OWN:
        programs.write("print(__name__, __file__)", f"own/{name}.py")
        with script.open("a") as file:
            file.write(f"import {name}\n")
    programs.write("import builtins\nbuiltins.CUSTOMIZED = __file__\n", "site/sitecustomize.py")
    path = os.pathsep.join((programs.environment()["PYTHONPATH"], str(programs.home / "site")))
    plain = programs.plain(str(script), PYTHONPATH=path)
    run = programs.record(str(script), PYTHONPATH=path)
    assert plain.out.count("own/") == len(OWN)
    assert (run.status, run.out) == (0, plain.out)


@pytest.mark.usefixtures("whole")
def test_an_exception_shows_its_own_traceback_and_is_kept(programs: Programs):
    script = programs.write(
        TRAIN
        + """
class Broken(torch.nn.Module):
    def forward(self, x):
        raise ValueError("no such thing")
train(2)
print("before")
Broken()(torch.ones(1))
"""
    )
    plain, run = programs.plain(str(script)), programs.record(str(script))
    assert plain.status == 1
    assert run.status == 1
    assert run.out == plain.out
    assert plain.err in run.err
    assert run.manifest["exit"] == "exception: ValueError"
    assert run.manifest["status"] == 1
    assert run.folder is not None
    assert "no such thing" in (run.folder / run.rank["traceback"]).read_text()
    assert "aten::addmm" in run.ops()


@pytest.mark.usefixtures("whole")
@pytest.mark.parametrize(
    ("ending", "status", "exit"),
    [
        ("sys.exit(3)", 3, "sys.exit: 3"),
        pytest.param("sys.exit(0)", 0, "ok", marks=pytest.mark.slow),
        pytest.param("os._exit(7)", 7, "os._exit: 7", marks=pytest.mark.slow),
        pytest.param("os.execv('/bin/true', ['true'])", 0, "os.execv: /bin/true", marks=pytest.mark.slow),
        ("os.kill(os.getpid(), signal.SIGKILL)", -9, "signal: SIGKILL"),
        pytest.param(
            "os.kill(os.getpid(), signal.SIGTERM); time.sleep(5)",
            -15,
            "signal: SIGTERM",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_every_way_to_leave_is_kept(programs: Programs, ending: str, status: int, exit: str):
    script = programs.write(f"{TRAIN}train(4)\n{ending}\n")
    run = programs.record(str(script))
    assert run.status == status
    assert (run.manifest["exit"], run.manifest["status"]) == (exit, status)
    assert run.steps["cold"]
    assert len(run.marks()) == 3  # a step ends with each of the first three calls of the optimizer
    assert "aten::addmm" in run.ops()
    if status:
        assert f"its exit status was {status}" in run.err


@pytest.mark.usefixtures("whole")
def test_a_handler_that_calls_the_one_before_it_finds_none(programs: Programs):
    """Nothing of ours ends the program before it has saved its state."""
    script = programs.write(
        TRAIN
        + """
before = signal.getsignal(signal.SIGTERM)
def save(number, frame):
    if callable(before):
        before(number, frame)
    print("saved")
    sys.exit(143)
signal.signal(signal.SIGTERM, save)
train(4)
os.kill(os.getpid(), signal.SIGTERM)
"""
    )
    run = programs.record(str(script))
    assert (run.status, run.out) == (143, "saved\n")
    assert run.manifest["exit"] == "sys.exit: 143"
    assert len(run.marks()) == 3


@pytest.mark.usefixtures("whole")
def test_a_signal_sent_to_us_reaches_the_program(programs: Programs):
    script = programs.write(
        TRAIN
        + """
def stop(number, frame):
    print("caught", signal.Signals(number).name, flush=True)
    sys.exit(5)
signal.signal(signal.SIGTERM, stop)
train(3)
print("ready", flush=True)
time.sleep(30)
"""
    )
    command = [sys.executable, "-m", "kinetoscope", "run", "--no-report", str(script)]
    child = subprocess.Popen(
        command,
        cwd=programs.home,
        env=programs.environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert child.stdout is not None
    assert child.stdout.readline() == "ready\n"
    child.send_signal(signal.SIGTERM)
    assert child.stdout.read() == "caught SIGTERM\n"
    assert child.wait(20) == 5


def test_an_interrupt_is_an_end_and_keeps_the_recording(programs: Programs):
    script = programs.write(TRAIN + "train(3)\nprint('ready', flush=True)\ntime.sleep(30)\n")
    command = [sys.executable, "-m", "kinetoscope", "run", "--no-report", str(script)]
    child = subprocess.Popen(
        command,
        cwd=programs.home,
        env=programs.environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert child.stdout is not None
    child.stdout.readline()
    time.sleep(0.2)
    os.kill(child.pid, signal.SIGINT)
    _, err = child.communicate(timeout=20)
    assert child.returncode == -signal.SIGINT  # 130, to a shell
    assert "the program was interrupted" in err
    assert "KeyboardInterrupt" in err
    assert "kinetoscope/capture" not in err
    folder = next((programs.home / "recordings").iterdir())
    assert (folder / "trace" / "rank0.json").is_file()


@pytest.mark.parametrize("divider", [[], ["--"]])
def test_a_module_is_run_as_python_does(programs: Programs, divider: list[str]):
    programs.write("", "package/__init__.py")
    programs.write(TRAIN + "train()\nprint(__name__, __package__, sys.argv)\n", "package/job.py")
    run = programs.record(*divider, "-m", "package.job", "--x", "1")
    assert run.out == f"__main__ package {[str(programs.home / 'package/job.py'), '--x', '1']}\n"
    assert run.steps["found_by"] == "optimizer"


@pytest.mark.usefixtures("whole")
def test_children_are_as_without_us(programs: Programs):
    script = programs.write(
        """
        import multiprocessing, os, subprocess, sys
        def work(queue):
            import torch
            from torch.optim.optimizer import _global_optimizer_post_hooks as hooks
            names = sorted(n for n in os.environ if "KINETO" in n)
            queue.put((names, len(hooks), type(vars(torch.nn.Module)["__call__"]).__name__))
        if __name__ == "__main__":
            import torch
            for method in ("fork", "spawn"):
                context = multiprocessing.get_context(method)
                queue = context.Queue()
                process = context.Process(target=work, args=(queue,))
                process.start()
                print(method, queue.get()[1:])
                process.join()
                print(process.exitcode)
            names = "sorted(n for n in os.environ if n.startswith('KINETOSCOPE'))"
            code = f"import os; print({names}, os.environ.get('PYTHONPATH'))"
            print(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout)
            pid = os.fork()
            if pid == 0:
                sys.exit(9)
            print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
        """
    )
    run = programs.record(str(script))
    path = programs.environment()["PYTHONPATH"]
    # No hooks of ours, and Module.__call__ as torch has it.
    assert run.out == f"fork (0, 'function')\n0\nspawn (0, 'function')\n0\n[] {path}\n\n9\n"
    assert len(run.manifest["ranks"]) == 1
    assert run.manifest["exit"] == "ok"


@pytest.mark.usefixtures("whole")
def test_dataloader_workers_are_forked_and_stopped_as_without_us(programs: Programs):
    script = programs.write(
        TRAIN
        + """
from torch.utils.data import DataLoader
data = [torch.full((32,), float(i)) for i in range(120)]
total = 0.0
for batch in DataLoader(data, batch_size=4, num_workers=2):
    loss = model(batch).sum(); loss.backward(); optimizer.step(); total += batch.sum().item()
print(total)
"""
    )
    run = programs.record(str(script))
    assert (run.status, run.out) == (0, f"{float(32 * sum(range(120)))}\n")
    assert run.steps["found_by"] == "optimizer"


def test_a_program_that_profiles_itself_gets_its_own_result(programs: Programs):
    script = programs.write(
        """
        import json, torch
        from torch.profiler import ProfilerActivity, profile, schedule
        def ready(p):
            p.export_chrome_trace("mine.json")
        steps = schedule(wait=1, warmup=1, active=3)
        with profile(activities=[ProfilerActivity.CPU], schedule=steps, on_trace_ready=ready) as p:
            for _ in range(6):
                torch.ones(8, 8) @ torch.ones(8, 8)
                p.step()
        events = json.loads(open("mine.json").read())["traceEvents"]
        print(sum(e["name"] == "aten::matmul" for e in events))
        """
    )
    run = programs.record(str(script))
    assert (run.status, run.out) == (0, "3\n")
    assert run.steps["found_by"] == "program"
    assert run.marks() == ["ProfilerStep#2", "ProfilerStep#3", "ProfilerStep#4"]
    assert "a profiler of its own" in run.err


def test_a_program_that_profiles_itself_early_is_recorded_afterwards(programs: Programs):
    script = programs.write(
        TRAIN
        + """
with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as p:
    train(2)
print(sum(e.count for e in p.key_averages() if e.key == "aten::addmm"))
train(500)
"""
    )
    run = programs.record(str(script))
    assert run.out == "2\n"
    assert run.steps["found_by"] == "optimizer"
    assert len(run.steps["profiled_s"]) >= 3


@pytest.mark.parametrize(
    ("words", "status", "message"),
    [
        ([], 2, "nothing to run"),
        (["nowhere.py"], 3, "the script does not exist"),
        (["no-such-program"], 3, "no such script or program"),
        (["-m"], 2, "-m needs the name of a module"),
        (["--", "-m"], 2, "-m needs the name of a module"),
        (["--steps", "0", "x.py"], 2, "must be at least 1"),
    ],
)
def test_what_cannot_be_run_is_said_without_a_traceback(
    programs: Programs, words: list[str], status: int, message: str
):
    run = programs.record(*words)
    assert run.status == status
    assert message in run.err
    assert "Traceback" not in run.err
    assert run.out == ""


def test_a_program_without_torch_runs_and_is_told_so(programs: Programs):
    run = programs.record(str(programs.write("print('hello')")))
    assert (run.status, run.out) == (0, "hello\n")
    assert "nothing was recorded" in run.err


def test_a_script_that_starts_the_program_to_record_is_told_to_run_that(programs: Programs):
    training = programs.write("import torch\nprint(torch.ones(2).sum().item())", "training.py")
    start = f"import subprocess, sys\nsubprocess.run([sys.executable, {str(training)!r}], check=True)"
    run = programs.record(str(programs.write(start, "start.py")))
    assert (run.status, run.out) == (0, "2.0\n")
    assert "processes that a script starts are not recorded" in run.err


@pytest.mark.usefixtures("whole")
def test_a_thread_that_ends_while_it_is_recorded_ends_its_recording(programs: Programs):
    """torch frees what the session needs with the thread: the program crashed then, or at its end."""
    script = programs.write(
        """
        import threading, torch
        net = torch.nn.Sequential(*[torch.nn.Linear(64, 64) for _ in range(4)]).eval()

        def work():
            with torch.no_grad():
                for _ in range(400):
                    answer = net(torch.ones(1, 64))
            print(answer.shape)

        for _ in range(2):
            thread = threading.Thread(target=work)
            thread.start()
            thread.join()
        print(sum(len(net(torch.ones(2, 64))) for _ in range(100)))
        """
    )
    run = programs.record("--steps", "1000000", "--", str(script))
    assert (run.status, run.out) == (0, 2 * "torch.Size([1, 64])\n" + "200\n")
    recorded = len(run.steps["profiled_s"])
    assert recorded > 20
    assert run.marks()[0] == f"ProfilerStep#{run.steps['first_step']}"
    assert len(run.marks()) >= recorded


@pytest.mark.usefixtures("whole")
def test_a_program_ends_as_ever_while_its_worker_thread_is_recorded(programs: Programs):
    """Only that thread can end the recording, and it waits for more (torch 2.13 crashed, 2.11 raised)."""
    script = programs.write(
        """
        import queue, threading, torch
        net, requests, answers = torch.nn.Linear(8, 8).eval(), queue.Queue(), queue.Queue()

        def work():
            while True:
                with torch.no_grad():
                    answers.put(net(requests.get()))

        threading.Thread(target=work, daemon=True).start()
        for _ in range(400):
            requests.put(torch.ones(1, 8))
            answer = answers.get()
        print(answer.shape)
        """
    )
    run = programs.record("--steps", "1000000", "--", str(script))
    assert (run.status, run.out) == (0, "torch.Size([1, 8])\n")
    assert "only the thread that they ran in could end their recording" in run.err
    assert run.rank["trace"], "the first steps are kept"


def test_a_recording_never_overwrites(programs: Programs):
    script = programs.write("print('ran')")
    (programs.home / "full").mkdir()
    (programs.home / "full" / "kept").write_text("")
    run = programs.record("--out", "full", str(script))
    assert (run.status, run.out) == (2, "")
    assert "not empty" in run.err
