"""Lists that become tensors, number by number."""

from __future__ import annotations

import pytest

import traces
from eager import Eager
from kinetoscope.findings.rules import tensors_of_lists, unexplained_idle

STEPS, READ_US = 3, 5_000.0


def steps(*ops: str) -> Eager:
    """Steps that make a tensor on the CPU, send it, and work on it; its list is read after the first op."""
    program = Eager()
    for _ in range(STEPS):
        for number, op in enumerate(ops):
            program.note(op)
            program.at += 0 if number else READ_US
        program.run("aten::to", "aten::copy_", kernel="Memcpy HtoD (Pageable -> Device)", bytes=1 << 20)
        program.run("aten::mm", kernel="gemm", us=1_000)
        program.step()
    return program


OF_A_LIST = ["aten::empty", "aten::to", "aten::lift_fresh", "aten::detach_"]


def test_the_time_between_its_memory_and_its_type_is_its_list() -> None:
    view = steps(*OF_A_LIST).view()
    (finding,) = tensors_of_lists.find(view)
    assert finding.title == "1 tensor per step is made of lists, number by number: 5.00 ms"
    assert finding.saving.us == pytest.approx(READ_US, rel=0.1)
    assert not list(unexplained_idle.find(view))


def test_what_prepares_an_array_is_not_known() -> None:
    """``torch.tensor`` of an array takes its memory as it is."""
    view = steps("aten::detach_", "aten::lift_fresh", "aten::to").view()
    assert not list(tensors_of_lists.find(view))
    assert list(unexplained_idle.find(view))


def test_lists_are_read_in_programs_without_a_device_too() -> None:
    program = steps(*OF_A_LIST)
    program.events = traces.on_cpu(program.events)
    (finding,) = tensors_of_lists.find(program.view())
    assert finding.saving.us == pytest.approx(READ_US, rel=0.01)


def test_numbers_are_no_lists() -> None:
    """``torch.tensor(row["rating"])``, one of which was read while the thread was taken off its core."""
    program = Eager()
    for step in range(STEPS):
        for number in range(20):
            for op in OF_A_LIST:
                program.note(op)
                program.at += 700 if (step, number) == (0, 0) and op == "aten::empty" else 0
        program.run("aten::mm", kernel="gemm", us=1_000)
        program.step()
    assert not list(tensors_of_lists.find(program.view()))


def test_of_tensors_that_are_sent_one_by_one_all_copies_but_one_go() -> None:
    """``for name in fields: inputs[name] = torch.tensor([row[name] for row in rows]).to(device)``."""
    fields, read_us = 10, 100.0
    program = Eager()
    for _ in range(STEPS):
        for _ in range(fields):
            for number, op in enumerate(OF_A_LIST):
                program.note(op)
                program.at += 0 if number else read_us
            program.run("aten::to", "aten::copy_", kernel="Memcpy HtoD (Pageable -> Device)", bytes=4096)
            program.at += 40  # the next list is put together
        program.run("aten::mm", kernel="gemm", us=1_000)
        program.step()
    view = program.view()
    (finding,) = tensors_of_lists.find(view)
    assert finding.title.startswith("10 tensors per step are made of lists, number by number, and copied one")
    lists = tensors_of_lists.reading(view)
    alone = STEPS * fields * read_us * 1e3
    assert lists["duration_ns"].sum() == pytest.approx(alone, rel=0.05)
    one = view.called.filter(view.called["name"] == "aten::to").sort("duration_ns")["duration_ns"].max() / 1e3
    assert finding.affected_us == pytest.approx(fields * read_us + (fields - 1) * (one + 40), rel=0.1)
