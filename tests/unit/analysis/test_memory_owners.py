"""Whose allocations are, against a training loop that says what it allocates what for."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

from kinetoscope.analysis.memory.owners import StackOwner, owned, stack_owner
from kinetoscope.analysis.memory.peak import devices, owner
from kinetoscope.recording.memory import Held, HeldTensor
from kinetoscope.snapshot.model import Frame
from kinetoscope.snapshot.read import read
from snapshots import MAIN, MIB, OF_LAYER, SITE, Allocator, Training, dump, frames


def held(training: Training) -> Held:
    tensors = tuple(HeldTensor(**one) for one in training.tensors)  # type: ignore[arg-type]
    return Held(boundaries_ns=tuple(training.boundaries), tensors=tensors)


@pytest.mark.parametrize("is_told", [True, False])
def test_every_allocation_of_a_step_has_the_role_that_the_program_gave_it(tmp_path: Path, is_told: bool):
    training = Training(leaks=700_000)
    snapshot = read(dump(tmp_path / "x.pickle", training.allocator))
    account = held(training) if is_told else Held(boundaries_ns=tuple(training.boundaries))
    known = owned(snapshot, account, 0)
    expected = list(training.roles)
    kept = [place for place, role in enumerate(expected) if role == "kept"]
    expected[kept[-1]] = "activation"  # it is not known to be kept before the next step has ended
    begun = known.sort("start").filter(pl.col("start").is_not_null())
    assert begun["role"].to_list() == expected
    before = known.filter(pl.col("start").is_null())
    assert set(before["role"]) == {"optimizer state", "before", *(["parameter"] if is_told else [])}


def test_what_autograd_holds_when_an_allocation_fails_is_no_gradient(tmp_path: Path):
    training = Training()
    boundaries = tuple(training.boundaries)
    failed = training.allocator.alloc(5 * MIB)
    snapshot = read(dump(tmp_path / "x.pickle", training.allocator))
    known = owned(snapshot, held(training), 0).filter(pl.col("address") == failed, pl.col("end").is_null())
    assert known["role"].to_list() == ["temporary"]
    unsaid = owned(snapshot, Held(boundaries_ns=boundaries), 0)
    assert unsaid.filter(pl.col("address") == failed, pl.col("end").is_null())["role"].to_list() == [
        "gradient"
    ]


@pytest.mark.parametrize(("has_optimizer", "role"), [(True, "activation"), (False, "cache")])
def test_what_fails_in_its_first_forward_pass_holds_activations_if_it_means_to_train(
    tmp_path: Path, has_optimizer: bool, role: str
):
    allocator = Allocator()
    allocator.begin()
    weight = allocator.alloc(MIB, frames(*MAIN))
    for _ in range(3):
        allocator.alloc(2 * MIB, frames(*OF_LAYER))
    allocator.fail(9 * MIB)
    account = Held(
        failed_bytes=9 * MIB,
        has_optimizer=has_optimizer,
        tensors=(HeldTensor(role="parameter", name="m.w", device=0, address=weight, bytes=MIB),),
    )
    known = owned(read(dump(tmp_path / "x.pickle", allocator)), account, 0)
    assert known.sort("start")["role"].to_list() == ["parameter", role, role, role]


def test_what_a_variable_has_held_since_before_the_history_is_kept(tmp_path: Path):
    allocator = Allocator()
    both = [allocator.alloc(MIB, frames(*MAIN)) for _ in range(2)]
    allocator.begin()
    allocator.free(allocator.alloc(MIB, frames(*OF_LAYER)))
    allocator.alloc(MIB)  # autograd's
    variable = HeldTensor(role="variable", name="kept[0] (t.py:9, f)", device=0, address=both[0], bytes=MIB)
    (history,) = devices(read(dump(tmp_path / "x.pickle", allocator)), Held(tensors=(variable,)))
    before = (
        history.known.filter(pl.col("start").is_null()).sort("address").with_columns(owner().alias("owner"))
    )
    assert before.select("role", "owner").rows() == [("kept", "kept[*]"), ("before", "main")]


def names(module: str) -> tuple[str, ...]:
    return (f"{SITE}nn/modules/{module}.py:9:forward", *OF_LAYER[1:])


CHECKPOINTED = (*OF_LAYER[:-2], f"{SITE}utils/checkpoint.py:9:checkpoint", *MAIN)
COMPILED = (
    "/tmp/torchinductor_u/ab/cabdefghijklmnopqrstuvwx.py:77:call",
    f"{SITE}_functorch/_aot_autograd/runtime_wrappers.py:2503:forward",
    f"{SITE}autograd/function.py:596:apply",
    *MAIN,
)


@pytest.mark.parametrize(
    ("stack", "layers", "role"),
    [
        (names("normalization"), 3, "activation"),
        (names("normalization"), 2, "cache"),  # of two layers what is on its way
        (names("linear"), 3, "cache"),  # keys and values
        (CHECKPOINTED, 1, "activation"),
        (COMPILED, 1, "activation"),
    ],
)
def test_without_an_account_what_is_held_in_a_first_forward_pass_says_whether_it_trains(
    tmp_path: Path, stack: tuple[str, ...], layers: int, role: str
):
    allocator = Allocator()
    allocator.begin()
    allocator.alloc(MIB, frames(f"{SITE}nn/modules/module.py:9:_apply", *MAIN))
    allocator.free(allocator.alloc(MIB, frames(*OF_LAYER)))
    for _ in range(layers):
        allocator.alloc(2 * MIB, frames(*stack))
    known = owned(read(dump(tmp_path / "x.pickle", allocator)), None, 0).sort("start")
    assert known["role"].to_list() == ["parameter", "temporary", *layers * [role]]


@pytest.mark.parametrize("others", [0, 1])
def test_what_cublas_multiplies_in_is_its_own_unless_another_is_as_large(tmp_path: Path, others: int):
    """One of each thread, of which the program's has cuBLASLt's beside it."""
    allocator = Allocator()
    for size in (32 * MIB, MIB):
        allocator.alloc(size, frames(*OF_LAYER))
    allocator.alloc(32 * MIB)
    for _ in range(others):
        allocator.alloc(32 * MIB, frames(*OF_LAYER))
    allocator.alloc(32 * MIB, frames(f"{SITE}nn/modules/module.py:9:_apply", *MAIN))
    allocator.begin()
    for lines in (OF_LAYER, None):
        allocator.free(allocator.alloc(32 * MIB, [] if lines is None else frames(*lines)))
    allocator.alloc(32 * MIB, frames(*OF_LAYER))
    (history,) = devices(read(dump(tmp_path / "x.pickle", allocator)), None)
    found = history.known.filter(pl.col("role") == "workspace").with_columns(owner().alias("owner"))
    assert sorted(found["bytes"]) == ([] if others else [MIB, 32 * MIB, 32 * MIB])
    assert set(found["owner"]) == (set() if others else {"cuBLAS"})
    assert found["start"].is_null().all()


def frame(text: str) -> Frame:
    file, line, name = text.rsplit(":", 2)
    return Frame(name, file, int(line))


LAYER = (
    f"{SITE}nn/modules/linear.py:125:forward",
    f"{SITE}nn/modules/module.py:1784:_call_impl",
    "/home/u/model.py:33:forward",
    f"{SITE}nn/modules/module.py:1784:_call_impl",
    "/home/u/train.py:99:<module>",
)


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ((), StackOwner(backward=True)),
        (LAYER, StackOwner("model.py:33", "forward", "linear", forward=True)),
        (LAYER[2:], StackOwner("model.py:33", "forward", "forward (model.py:33)", forward=True)),
        (
            (LAYER[0], f"{SITE}../accelerate/hooks.py:166:new_forward", *LAYER[1:]),
            StackOwner("model.py:33", "forward", "linear", forward=True),
        ),
        (
            (
                "/tmp/torchinductor_u/ab/cabdefghijklmnopqrstuvwx.py:77:call",
                f"{SITE}_inductor/output_code.py:5:__call__",
                f"{SITE}_functorch/_aot_autograd/runtime_wrappers.py:7:backward",
                f"{SITE}autograd/function.py:9:apply",
            ),
            StackOwner(graph="cabdefghijklmnopqrstuvwx", graph_line=77, backward=True, forward=True),
        ),
        (
            (f"{SITE}nn/modules/module.py:9:_apply", "/home/u/train.py:9:<module>"),
            StackOwner("train.py:9", "<module>", built=True),
        ),
        (
            (f"{SITE}optim/adam.py:1:step", "/home/u/train.py:9:<module>"),
            StackOwner("train.py:9", "<module>", optimizer=True),
        ),
        (
            (f"{SITE}distributed/c10d.py:1:all_reduce", "/home/u/train.py:9:<module>"),
            StackOwner("train.py:9", "<module>", communication=True),
        ),
        (  # DDP calls the model, and allocates none of what it does
            (*LAYER[:-1], f"{SITE}nn/parallel/distributed.py:1:forward", LAYER[1], LAYER[-1]),
            StackOwner("model.py:33", "forward", "linear", forward=True),
        ),
        (
            (f"{SITE}distributed/fsdp/_flat_param.py:1:unshard", *LAYER[1:]),
            StackOwner(
                "model.py:33", "forward", "unshard (_flat_param.py:1)", forward=True, communication=True
            ),
        ),
        (  # a closure
            (*LAYER[:-1], f"{SITE}optim/lbfgs.py:1:step", LAYER[-1]),
            StackOwner("model.py:33", "forward", "linear", forward=True),
        ),
        (  # the program's own optimizer
            ("/home/u/own.py:4:step", f"{SITE}optim/optimizer.py:1:wrapper", LAYER[-1]),
            StackOwner("own.py:4", "step", optimizer=True),
        ),
        (
            ("D:/u/.venv/Lib/site-packages/torch/functional.py:4:f", "D:/u/train.py:5:<module>"),
            StackOwner("train.py:5", "<module>"),
        ),
    ],
)
def test_a_stack_says_whose_it_is(lines: tuple[str, ...], expected: StackOwner):
    assert stack_owner(tuple(map(frame, lines))) == expected
