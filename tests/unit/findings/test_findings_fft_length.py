"""Fourier transforms of lengths with a large prime factor."""

from __future__ import annotations

import pytest

from eager import Eager
from kinetoscope.findings.rules import fft_length

STEPS, US = 3, 400.0
KERNEL = "void {}_fft<{}u, EPT<5u>, 32u, 0u, (padding_t)14, unsigned int, float>(kernel_arguments_blu_t)"


def filtered(*kernels: str, back: str = "aten::_fft_c2r") -> Eager:
    """Steps with a transform, a product of spectra and a transform back."""
    program = Eager()
    for _ in range(STEPS):
        for op in ("aten::_fft_r2c", back):
            with program.around(op):
                for kernel in kernels:
                    program.run(kernel=kernel, us=US)
            program.run("aten::mul", us=100)
        program.step()
    return program


CHAIN = [KERNEL.format("multi_bluestein", factor) for factor in (9, 125, 256, 9, 125, 256)]


def test_a_fast_length_takes_a_quarter_of_a_chain() -> None:
    """One transform of n points for two of 2n: of 288,000 = 9 · 125 · 256 points, n is 144,000 or less."""
    (finding,) = fft_length.find(filtered(*CHAIN).view())
    assert finding.title == (
        "2 Fourier transforms per step have lengths with a large prime factor: "
        "4.80 ms in cuFFT's Bluestein kernels"
    )
    assert finding.affected_us == pytest.approx(12 * US)
    assert finding.saving.us == pytest.approx(12 * US * (1 - 1 / 2 * 1 / 2), rel=0.01)
    assert not finding.saving.condition
    assert "at most 144,000 complex points by two transforms of 288,000" in finding.evidence[0].text


def test_a_spectrum_that_is_asked_for_has_its_length() -> None:
    (finding,) = fft_length.find(filtered(*CHAIN, back="aten::_fft_c2c").view())
    assert finding.saving.condition == "the spectrum may be that of another length"


def test_nothing_is_promised_of_a_convolution_in_one_kernel() -> None:
    (finding,) = fft_length.find(filtered(KERNEL.format("regular_bluestein", 2048)).view())
    assert finding.saving.us == 0
    assert finding.saving.most_us == pytest.approx(2 * US * 3 / 4, rel=0.01)


def test_chains_of_other_lengths_are_fast() -> None:
    assert not list(fft_length.find(filtered(KERNEL.format("regular", 512)).view()))
