"""Tokens of padding, as the recorder saw them in the loader's batches."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

import traces
from eager import Eager
from kinetoscope.findings.rank_view import RankView
from kinetoscope.findings.rules import padded_tokens
from kinetoscope.recording.manifest import BatchPadding, Manifest, RankRecord, StepTimings

STEPS, US, KERNELS = 3, 1_003.0, 4


def training(padding: BatchPadding | None, before: str | None = None, optimizer: bool = True) -> RankView:
    program = Eager()
    for _ in range(STEPS):
        if before:
            program.note(before)
        for _ in range(KERNELS):
            program.run("aten::mm", kernel="gemm", us=US)
        if optimizer:
            program.optimizer()
        program.step()
    view = program.view()
    record = RankRecord(rank=0, steps=StepTimings(found_by="optimizer", padding=padding))
    return RankView(replace(view.run, manifest=Manifest(ranks=(record,))), view.trace)


def test_what_lies_beyond_the_longest_text_goes_first() -> None:
    (finding,) = padded_tokens.find(training(BatchPadding(tokens=1000, padding=600, beyond=400)))
    assert finding.title == (
        "60.0 % of the tokens in a batch are padding, 40.0 % beyond the longest text of their batch"
    )
    assert finding.saving.us == pytest.approx(KERNELS * 0.4 * (US - 3), rel=0.01)
    assert "20.0 % more" in finding.advice


def test_what_lengths_are_rounded_up_by_stays() -> None:
    (finding,) = padded_tokens.find(training(BatchPadding(tokens=1000, padding=600, beyond=400, rows=5)))
    assert finding.saving.us == pytest.approx(KERNELS * (0.4 - 5 * 8 / 1000) * (US - 3), rel=0.01)
    (wide,) = padded_tokens.find(training(BatchPadding(tokens=6000, padding=3600, beyond=2400, rows=10)))
    assert wide.saving.us == pytest.approx(KERNELS * (0.4 - 10 * 32 / 6000) * (US - 3), rel=0.01)
    assert not list(padded_tokens.find(training(BatchPadding(tokens=640, padding=75, beyond=39, rows=10))))


def test_padding_within_the_longest_is_for_texts_of_like_length() -> None:
    (finding,) = padded_tokens.find(training(BatchPadding(tokens=1000, padding=500, beyond=100)))
    assert finding.title == "50.0 % of the tokens in a batch are padding"
    assert finding.saving.us == pytest.approx(KERNELS * 0.5 * (US - 3), rel=0.01)
    assert "like length" in finding.advice


@pytest.mark.parametrize("padding", [None, BatchPadding(tokens=1000, padding=90, beyond=0)])
def test_little_padding_is_no_finding(padding: BatchPadding | None) -> None:
    assert not list(padded_tokens.find(training(padding)))


def test_on_a_cpu_ops_take_less_time() -> None:
    program = Eager()
    for _ in range(STEPS):
        for _ in range(KERNELS):
            program.note("aten::linear", us=US)
        program.step()
    view = program.view()
    padding = BatchPadding(tokens=1000, padding=600, beyond=400, rows=5)  # not rounded up
    record = RankRecord(rank=0, steps=StepTimings(found_by="optimizer", padding=padding))
    view = RankView(replace(view.run, manifest=Manifest(ranks=(record,))), view.trace)
    program.events = traces.on_cpu(program.events)
    cpu = RankView(replace(view.run, traces=(program.view().trace,)), program.view().trace)
    (finding,) = padded_tokens.find(cpu)
    assert finding.saving.us == pytest.approx(KERNELS * 0.4 * (US - 3), rel=0.01)


def test_places_that_lengths_tell_are_taken_out() -> None:
    padding = BatchPadding(tokens=1000, padding=600, beyond=400, rows=5, by_lengths=True)
    (finding,) = padded_tokens.find(training(padding))
    assert finding.title == "60.0 % of the places in a batch are padding"
    assert finding.saving.us == pytest.approx(KERNELS * 0.6 * (US - 3), rel=0.01)
    assert "nonzero" in (finding.snippet or "")


@pytest.mark.parametrize("op", ["aten::nonzero", "aten::_pack_padded_sequence", "aten::repeat_interleave"])
def test_who_gets_lengths_may_have_taken_them_out(op: str) -> None:
    padding = BatchPadding(tokens=1000, padding=600, beyond=400, rows=5, by_lengths=True)
    assert not list(padded_tokens.find(training(padding, before=op)))
    by_mask = BatchPadding(tokens=1000, padding=600, beyond=400, rows=5)
    assert list(padded_tokens.find(training(by_mask, before=op)))


def test_a_table_that_answers_are_written_into_has_lengths_too() -> None:
    padding = BatchPadding(tokens=1000, padding=600, beyond=400, rows=5, by_lengths=True)
    assert not list(padded_tokens.find(training(padding, optimizer=False)))
    assert list(padded_tokens.find(training(replace(padding, by_lengths=False), optimizer=False)))


def test_tables_that_are_filled_up_themselves_are_cut_to_the_longest() -> None:
    padding = BatchPadding(tokens=1024, padding=800, beyond=700, rows=8, by_ends=True)
    (finding,) = padded_tokens.find(training(padding))
    assert finding.saving.us == pytest.approx(KERNELS * (700 - 8 * 8) / 1024 * (US - 3), rel=0.01)
    assert "multiples of 16" in finding.advice
    assert "// 16" in (finding.snippet or "")
    assert not list(padded_tokens.find(training(padding, optimizer=False)))
    assert not list(padded_tokens.find(training(padding, before="aten::nonzero")))
