"""What the host waited for: measured without a frame of ours, and gone without a trace."""

import copy
import gc
import pickle
import threading
import time
import traceback
from collections.abc import Hashable, Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from kinetoscope.capture.hooks.calls import CallWatch  # noqa: E402
from kinetoscope.capture.hooks.imports import ImportWatch  # noqa: E402
from kinetoscope.capture.steps.ledgers import Ledger, Ledgers, Prefetch, TimedMethod  # noqa: E402
from kinetoscope.capture.steps.sources import Sources  # noqa: E402


@pytest.fixture
def ledgers() -> Iterator[Ledgers]:
    import torch.utils.data  # noqa: F401

    opened = Ledgers()
    opened.install()
    yield opened
    opened.remove()


def methods() -> list[object]:
    return [vars(torch.Tensor).get(name) for name in ("item", "__bool__", "__float__", "numpy", "nonzero")]


class Clock:
    def __init__(self) -> None:
        self.now = 0

    def __call__(self) -> int:
        return self.now


def test_a_call_counts_from_its_lookup_to_its_end() -> None:
    clock = Clock()

    class Thing:
        def work(self, ns: int) -> str:
            clock.now += ns
            return "done"

    ledger = Ledger(clock)
    watch = TimedMethod(Thing, "work", ledger)
    watch.install()
    assert Thing().work(5) == "done"
    clock.now += 100
    Thing().work(ns=7)
    assert ledger.read() == 12
    watch.remove()
    Thing().work(9)
    assert ledger.read() == 12
    assert vars(Thing)["work"] is watch.method


@pytest.mark.parametrize("timed_first", [True, False])
def test_a_method_that_is_watched_for_steps_too_is_timed_and_seen(timed_first: bool) -> None:
    clock = Clock()

    class Thing:
        def work(self) -> str:
            clock.now += 5
            return "done"

    ledger, seen = Ledger(clock), list[Thing]()
    timed, watch = TimedMethod(Thing, "work", ledger), CallWatch(Thing, "work", seen.append)
    for one in (timed, watch) if timed_first else (watch, timed):
        one.install()
    thing = Thing()
    assert thing.work() == "done"
    assert (ledger.read(), seen) == (5, [thing])
    timed.remove()
    thing.work()
    assert (ledger.read(), seen) == (5, [thing, thing])


def test_waiting_for_the_loader_is_the_loaders(ledgers: Ledgers) -> None:
    class Slow(torch.utils.data.Dataset):
        def __len__(self) -> int:
            return 4

        def __getitem__(self, index: int) -> int:
            time.sleep(0.005)
            return index

    before = ledgers.read()
    for _ in torch.utils.data.DataLoader(Slow(), batch_size=2):
        time.sleep(0.01)
    waited = ledgers.read().since(before)
    assert waited.data_ns >= 20e6
    assert waited.sync_ns < 5e6


def test_reading_values_back_is_counted_and_gives_the_same_values(ledgers: Ledgers) -> None:
    before = ledgers.read()
    x = torch.tensor([3.0])
    assert (x.item(), bool(x), float(x), int(x), x.tolist()) == (3.0, True, 3.0, 3, [3.0])
    assert torch.equal(torch.tensor([0, 1]).nonzero(as_tuple=True)[0], torch.tensor([1]))
    assert [10, 20][torch.tensor(1)] == 20
    assert ledgers.read().since(before).sync_ns > 0


def test_an_error_shows_no_frame_of_ours_and_leaves_the_ledger_balanced(ledgers: Ledgers) -> None:
    try:
        torch.ones(2).item()
    except RuntimeError as error:
        files = [frame.filename for frame in traceback.extract_tb(error.__traceback__)]
    assert files == [__file__]
    before = ledgers.read()
    assert 0 <= before.sync_ns < 1e9


def test_a_method_that_is_looked_up_has_its_name_and_is_pickled(ledgers: Ledgers) -> None:
    """As where a program hands it to a function that times what it is given, or to another process."""
    call = torch.arange(3).tolist
    assert call.__name__ == "tolist"
    assert pickle.loads(pickle.dumps(call))() == copy.deepcopy(call)() == call() == [0, 1, 2]


def test_collections_are_counted(ledgers: Ledgers) -> None:
    before = ledgers.read()
    gc.collect()
    assert ledgers.read().since(before).gc_ns > 0


def test_a_line_that_requests_full_collections_is_known(ledgers: Ledgers) -> None:
    gc.collect(0)
    assert ledgers.collects_at is None
    line = test_a_line_that_requests_full_collections_is_known.__code__.co_firstlineno + 4
    gc.collect()
    assert ledgers.collects_at == f"{Path(__file__).name}:{line}"


def test_removed_ledgers_leave_the_methods_as_they_were() -> None:
    plain, callbacks = methods(), list(gc.callbacks)
    opened = Ledgers()
    opened.install()
    assert methods() != plain
    opened.suspend()
    assert methods() == plain
    opened.resume()
    assert methods() != plain
    opened.remove()
    assert (methods(), gc.callbacks) == (plain, callbacks)


def test_compiled_code_that_reads_a_value_is_compiled_as_ever(ledgers: Ledgers) -> None:
    from kinetoscope.capture import torch_private

    def f(x: torch.Tensor) -> float:
        y = (x * 2).sum()
        return y.item() + 1

    remove = torch_private.around_compilations(ledgers.suspend, ledgers.resume)
    try:
        assert torch.compile(f, backend="eager")(torch.ones(3)) == 7.0
    finally:
        remove()


def test_how_far_a_loader_works_ahead_is_seen_at_its_batches(ledgers: Ledgers) -> None:
    assert ledgers.prefetch == Prefetch()
    data = [torch.ones(1)] * 4
    for _ in torch.utils.data.DataLoader(data, batch_size=1, num_workers=1, prefetch_factor=3):
        pass
    assert ledgers.prefetch == Prefetch(workers=1, batches=3)


def test_calls_that_find_their_batch_ready_are_entered_apart(ledgers: Ledgers) -> None:
    from kinetoscope.capture.torch_private import batch_is_ready

    allowed = torch.multiprocessing.Event()

    class Awaited(torch.utils.data.Dataset):
        def __len__(self) -> int:
            return 2

        def __getitem__(self, i: int) -> int:
            assert allowed.wait(60)
            return i

    batches = iter(torch.utils.data.DataLoader(Awaited(), batch_size=1, num_workers=1))
    assert batch_is_ready(batches) is False
    before = ledgers.read()
    threading.Timer(0.05, allowed.set).start()
    next(batches)
    late = ledgers.read().since(before)
    assert late.data_ns > 0
    assert late.ready_ns == 0
    deadline = time.monotonic() + 60
    while not batch_is_ready(batches) and time.monotonic() < deadline:
        time.sleep(0.001)
    before = ledgers.read()
    next(batches)
    ready = ledgers.read().since(before)
    assert ready.ready_ns == ready.data_ns > 0


def test_whether_a_batch_is_ready_is_not_known_of_another_loader() -> None:
    from kinetoscope.capture.torch_private import batch_is_ready

    assert batch_is_ready(object()) is None


def test_nothing_is_installed_while_dynamo_compiles() -> None:
    plain = methods()
    opened = Ledgers()
    opened.suspend()
    opened.install()
    assert methods() == plain
    opened.resume()
    assert methods() != plain
    opened.close()
    assert methods() == plain


def test_compiled_code_is_not_compiled_again_because_ledgers_come_and_go() -> None:
    from torch._dynamo.utils import counters

    from kinetoscope.capture.hooks.imports import ImportWatch

    def f(x: torch.Tensor) -> float:
        return (x * 2).sum().item() + 1

    compiled = torch.compile(f, backend="eager")
    compiled(torch.ones(3))
    before = {name: dict(counts) for name, counts in counters.items()}
    opened = Ledgers(ImportWatch())
    opened.install()
    read = opened.read()
    assert compiled(torch.ones(3)) == 7.0
    opened.close()
    assert compiled(torch.ones(3)) == 7.0
    assert {name: dict(counts) for name, counts in counters.items()} == before
    assert opened.read().since(read).sync_ns > 0


@pytest.mark.parametrize("device", [False, True])
def test_values_of_the_host_are_not_waited_for_where_a_device_is_in_use(
    monkeypatch: pytest.MonkeyPatch, device: bool
) -> None:
    """``for i in torch.randint(…)`` reads numbers of the host, one by one, while a batch is made."""

    class Heard(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            asked.append(func.__name__)
            return func(*args, **(kwargs or {}))

    asked, value = list[str](), torch.nn.Parameter(torch.ones(1))
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: device)
    ledgers, ticks = Ledgers(), list[str]()
    sources = Sources(lambda signal, of, name: ticks.append(signal), ImportWatch(), ledgers=ledgers)
    sources.install()
    try:
        for i in torch.randint(10, (4,)):
            range(10)[i]
        with Heard():
            assert value.item() == 1
    finally:
        sources.remove()
        ledgers.close()
    assert len(ticks) == (0 if device else 5)
    assert asked == ["item"]  # and nothing that we asked


def test_a_value_of_the_host_that_is_read_may_end_a_step_of_several_calls(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Passes are looked at on the host: what is read of them there waits for no device."""
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    ledgers, ticks = Ledgers(), list[tuple[str, Hashable]]()
    sources = Sources(lambda signal, of, name: ticks.append((signal, of)), ImportWatch(), ledgers=ledgers)
    sources.install()
    try:
        sources.follow(("module", 1), also=["loop"])
        torch.ones(1).item()
        sources.follow(("module", 1))
        torch.ones(1).item()
    finally:
        sources.remove()
        ledgers.close()
    assert ticks == [("between", "loop")]
