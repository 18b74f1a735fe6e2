"""Fourier transforms have lengths with a large prime factor.

What it finds
    cuFFT's Bluestein kernels: transforms of a prime length, or of one with a factor for which the library has
    no kernel. Convolutions that are computed as products of spectra have such lengths by chance: a signal of
    96,000 samples and a response of 48,000 give 143,999.

Why it is slow
    Bluestein's algorithm turns a transform of n points into a convolution of at least 2n - 1 points, which is
    a transform of that length and another one back. A transform of a length with small factors alone is one
    of n points.

How it decides
    By the kernels' names. Where a chain of kernels does a transform, a fast length takes half as many
    kernels, each of half as many points. A whole convolution in one kernel (``regular_bluestein_fft``) moves
    no more than a fast transform does: nothing is promised. Where no transform goes back to real numbers,
    that the spectrum may be of another length is the condition.

What to do
    Give transforms the next length whose factors are 2, 3 and 5 (``n=scipy.fft.next_fast_len(…)``), which
    fills up with zeros, and cut the result to the old length: of a convolution it is the same.

Source
    cuFFT's documentation, "Accuracy and Performance"; SciPy's documentation of ``scipy.fft.next_fast_len``.
"""

from kinetoscope.findings.rule import *

BLUESTEIN = r"bluestein_fft"
ONE_KERNEL = r"regular_bluestein_fft"
FACTOR = r"<(\d+)"
TO_REAL = r"^aten::_fft_c2r"
SAVED = 0.75  # half as many kernels, each of half as many points


def find(view: RankView) -> Findings:
    kernels = view.kernels(BLUESTEIN).sort("duration_ns", descending=True)
    if kernels.is_empty():
        return
    saved = pl.col("duration_ns") * SAVED
    chained = kernels.filter(~matching(kernels, "name", ONE_KERNEL))
    basis = "three quarters of Bluestein kernels' time: half as many, each of half as many points"
    saving = savings.device(view, chained if len(chained) else kernels, basis, saved)
    if chained.is_empty():
        saving = savings.not_predicted(saving, "a kernel that does all of it moves no more than a fast one")
    elif not matching(kernels, "op_name", TO_REAL).any():
        saving = savings.if_so(saving, "the spectrum may be that of another length")
    transforms = view.counted(kernels["op"].n_unique(), "Fourier transform")
    yield Finding(
        title=f"{transforms} per {view.unit} have lengths with a large prime factor: "
        f"{numbers.time(view.us_of(kernels))} in cuFFT's Bluestein kernels",
        affected_us=view.us_of(kernels),
        saving=saving,
        evidence=[evidence.of(view, _points(chained), kernels)],
        advice="Pad to a length whose factors are 2, 3 and 5, and cut the result to the old length: a "
        "convolution stays the same.",
        snippet="n = scipy.fft.next_fast_len(len(signal) + len(response) - 1, real=True)\n"
        "y = torch.fft.irfft(torch.fft.rfft(signal, n=n) * torch.fft.rfft(response, n=n), n=n)",
        source=evidence.source(view, kernels["op"]),
    )


def _points(chained: pl.DataFrame) -> str:
    """The longest of these transforms, whose convolution has the product of its kernels' factors as points:
    each kernel is there twice, for the way there and back."""
    factor = pl.col("name").cast(pl.String).str.extract(FACTOR).cast(pl.Int64)
    chains = chained.group_by("op").agg(pl.len(), pl.n_unique("name"), points=factor.unique().product())
    longest = chains.filter(pl.col("len") == 2 * pl.col("name"))["points"].max()
    if longest is None:
        return "the longest kernels"
    points = whole(longest)
    return f"at most {(points + 1) // 2:,} complex points by two transforms of {points:,} each"
