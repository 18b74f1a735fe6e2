"""Kernel names taken apart, field by field, where their naming is known."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain, repeat

Part = tuple[str, str]  # of a name, and its meaning


def decode(name: str) -> tuple[str, list[Part]] | None:
    """The origin of a kernel's name and its parts in order; None if its naming is not known.

    A meaning that the vendor does not document (nvjet's suffixes, for one) is marked as a reading.
    """
    plain = name.strip().removeprefix("void ")
    for pattern, family, read in READERS:
        if match := re.search(pattern, plain):
            return family, [*read(match, plain)]
    return None


Meaning = str | Callable[[re.Match[str]], str]  # the meaning of a part, or how it is read from the part


def _parts(
    parts: Iterable[str], readings: Mapping[str, Meaning], known: Mapping[str, str], otherwise: str
) -> Iterator[Part]:
    """Each part by the first pattern that fits all of it, else by its name."""
    for part in parts:
        matches = ((re.fullmatch(pattern, part), meaning) for pattern, meaning in readings.items())
        meanings = ((meaning if isinstance(meaning, str) else meaning(m)) for m, meaning in matches if m)
        yield part, next(meanings, known.get(part, otherwise))


def _places(name: str, meanings: Mapping[str, str]) -> Iterator[Part]:
    """The places of a name that fit the patterns, in their order."""
    for pattern, meaning in meanings.items():
        if place := re.search(pattern, name):
            yield place[0], meaning


LAYOUTS = {"n": "not transposed", "t": "transposed", "N": "not transposed", "T": "transposed"}
TYPES = {
    "bf16": "bfloat16", "f16": "float16", "h": "float16", "f32": "float32", "s": "float32", "tf32": "TF32",
    "f64": "float64", "d": "float64", "i8": "int8", "u8": "uint8",
    "e4m3": "float8 e4m3", "e5m2": "float8 e5m2",
}  # fmt: skip
ARCHITECTURES = {
    "50": "Maxwell", "60": "Pascal", "70": "Volta", "75": "Turing", "80": "Ampere (A100)",
    "86": "Ampere (consumer)", "89": "Ada", "90": "Hopper (H100, H200)", "100": "Blackwell (B200)",
    "120": "Blackwell (consumer)",
}  # fmt: skip
SUMS = {"s": "float32", "h": "float16", "d": "float64", "i": "int32", "": "its own type"}
INSTRUCTIONS = {
    "16816": "16x8x16", "1688": "16x8x8", "161616": "16x16x16", "884": "8x8x4", "16832": "16x8x32",
}  # fmt: skip
TILE = "tile of the result that one block computes"
DEPTH = "depth of one step x number of stages"


def _architecture(match: re.Match[str]) -> str:
    """The architecture of a compute capability, the first group (90 is 9.0)."""
    number = match[1]
    return f"written for compute capability {number[:-1]}.{number[-1]}, {ARCHITECTURES.get(number, 'NVIDIA')}"


def _operands(match: re.Match[str]) -> str:
    a, b, *result = (LAYOUTS[letter] for letter in match[0])
    text = f"operand A is {a}, B is {b}, as BLAS sees them (column-major)"
    return f"{text}; the result is {result[0]} (a reading)" if result else text


def _gemm(match: re.Match[str]) -> str:
    shape = INSTRUCTIONS.get(match[2])
    instructions = f", by tensor-core instructions of {shape}" if shape else ""
    return f"matrix product, summed in {SUMS[match[1]]}{instructions}"


def _alignment(match: re.Match[str]) -> str:
    count = match[1]
    slow = "; 1, 2 or 4 with 16-bit types is slow: pad the sizes (rule misaligned-shapes)"
    return (
        f"operands are read {count} elements at a time: their rows start on multiples of {count} elements"
        + (slow if int(count) < 8 else "")
    )


def _nvjet(match: re.Match[str], name: str) -> Iterator[Part]:
    undocumented = "a variant (not documented by NVIDIA)"
    tiles = chain(
        (
            f"{TILE}: rows x columns",
            "depth of one step along the sum x number of stages in flight",
            "blocks that form a cluster and share what they load",
        ),
        repeat(undocumented),
    )
    readings: dict[str, Meaning] = {
        r"sm(\d+)": _architecture,
        r"\d+x\d+": lambda _: next(tiles),
        r"[NT]{2}[NT]?": _operands,
    }
    yield (
        "nvjet",
        "cuBLAS' matrix product for Hopper and later: warp-specialised, fed by the tensor memory accelerator",
    )
    yield from _parts(name.split("_")[1:], readings, NVJET, undocumented)


NVJET = {
    "tst": "types of A, B and the result (a reading: 16-bit in, 16-bit out)",
    "hsh": "types of A, B and the result (a reading: float16 in, float16 out, float32 sums)",
    "h": "order in which tiles are walked: along rows",
    "v": "order in which tiles are walked: along columns",
    "bz": "beta is zero: the old content of the result is not read",
    "badd": "beta is not zero: the result is added to what is already there (addmm with a full bias: it was "
    "copied in before)",
    "bias": "a bias of one row is added while writing",
    "coopA": "two groups of warps work on one tile together (cooperative schedule, A)",
    "coopB": "two groups of warps work on one tile together (cooperative schedule, B)",
    "coop": "two groups of warps work on one tile together (cooperative schedule)",
    "splitK": "the sum is split over several blocks; a splitKreduce kernel adds the parts",
    "bf16": "bfloat16",
    "dgelu": "the gradient of GELU is applied while writing",
    "gelu": "GELU is applied while writing",
    "relu": "ReLU is applied while writing",
}


def _gemm_parts(parts: Iterable[str]) -> Iterator[Part]:
    """Parts as CUTLASS and cuBLAS' kernels before Hopper have them."""
    tiles = chain((TILE,), repeat(DEPTH))
    readings: dict[str, Meaning] = {
        r"(\d\d+)": _architecture,
        r"tensorop|wmma": "runs on tensor cores",
        r"simt": "runs on the ordinary cores, no tensor cores",
        r"([shdi]?)(\d*)gemm": _gemm,
        r"\d+x\d+": lambda _: next(tiles),
        r"[nt]{2}": _operands,
        r"align(\d+)": _alignment,
        r"ldg(\d+)": lambda match: f"reads {match[1]} elements at a time from memory",
    }
    return _parts(parts, readings, GEMM, "a variant")


CONVOLUTIONS = {
    "fprop": "convolution, forward",
    "dgrad": "convolution, gradient of the input",
    "wgrad": "convolution, gradient of the weights",
}
GEMM = {
    **{short: f"data type: {name}" for short, name in TYPES.items()},
    "relu": "ReLU is applied while writing",
    "bias": "a bias is added while writing",
    "sliced1x2": "each warp sums a part of the depth",
    "f2f": "float to float",
    "splitK": "the sum is split over several blocks",
    "stages": "number of stages follows",
    "execute": "",
    "kernel": "",
    "optimized": "a tuned iterator",
    "analytic": "a general iterator",
    **CONVOLUTIONS,
}


def _cutlass(match: re.Match[str], name: str) -> Iterator[Part]:
    yield "cutlass", "NVIDIA's open template library for matrix products, used inside cuBLAS and cuDNN"
    yield from _gemm_parts(match[0].split("_")[1:])


def _legacy_gemm(match: re.Match[str], name: str) -> Iterator[Part]:
    generation = match["arch"]
    yield generation, f"written for {generation.capitalize()}"
    yield from _gemm_parts(name.removeprefix(generation + "_").split("_"))


def _xmma(match: re.Match[str], name: str) -> Iterator[Part]:
    if match[1]:
        yield f"sm{match[1]}", _architecture(match)
    yield "xmma", "NVIDIA's closed kernel family of cuBLAS and cuDNN"
    yield match["op"], {"gemm": "matrix product", **CONVOLUTIONS}.get(match["op"], "operation")
    if types := re.search(r"_((?:(?:bf16|f16|f32|tf32|i8|e4m3)+_?){2,5})", name):
        yield types[1].strip("_"), "types of the operands, of the sums and of the result"
    yield from _places(name, XMMA_PLACES)


XMMA_PLACES = {
    r"(?<=_)ffma(?=_)": "ordinary multiply-adds: no tensor cores (rule no-tensor-cores)",
    r"nhwckrsc_nhwc|nhwc": "channels-last tensors",
    r"tilesize[\dx]+": "tile of the result and depth of one step",
    r"stage\d+": "stages of loads in flight",
    r"warp(?:group)?size[\dx]+": "how warps divide the tile",
    r"g\d+(?=_|$)": "groups of the convolution",
    r"tensor16x8x\d+": "the tensor-core instruction's shape",
    r"execute_segment_k_off_kernel|execute_split_k_kernel": "whether the sum is split over blocks",
    r"__5x_\w+": "the library it belongs to",
}


def _triton(match: re.Match[str], name: str) -> Iterator[Part]:
    kind, ops, number = match["kind"], match["ops"], match["number"]
    yield "triton", "generated by Inductor (torch.compile) in Triton"
    yield kind, TRITON.get(kind, "a kind of Inductor's")
    if ops.startswith("fused"):
        yield "fused", "the ATen ops that were fused follow, sorted by name"
        joined = "their names, joined by underscores (order is alphabetical, not that of the computation)"
        yield ops.removeprefix("fused").lstrip("_") or ops, joined
    elif ops:
        yield ops, "what it does"
    if number:
        yield number, "number of the kernel in its generated module"


TRITON = {
    "poi": "pointwise: each element by itself",
    "red": "reduction: loops over the reduced dimension",
    "per": "persistent reduction: the reduced row stays in registers",
    "tem": "template: a matmul, convolution or attention written by hand and filled in",
    "mm": "template: a matrix product",
    "bmm": "template: a batched matrix product",
    "for": "foreach: one kernel for many tensors",
    "spl": "split scan: a scan over blocks",
    "sca": "scan",
    "sort": "sort",
    "use": "a Triton kernel of the user's, launched by compiled code",
}


def _tensile(match: re.Match[str], name: str) -> Iterator[Part]:
    yield match[0], "indices of the product: C[ij] = A[il] * B[jl], with a batch index k"
    yield from _places(name, TENSILE)


TENSILE = {
    r"(?<=_)(?:[BHSDIFZC]{2,}|HSS|BBS|SB)(?=_)": "data types of operands, result and sums (B bfloat16, "
    "H half, S single, D double)",
    r"MT\d+x\d+x\d+": "macro tile: rows x columns x depth that one workgroup computes",
    r"MI\d+x\d+x\d+(?:x\d+)?": "matrix instruction (MFMA) and its shape",
    r"GSU\d+": "split of the sum over workgroups",
    r"PGR\d+": "prefetch of global reads",
    r"WG\d+_\d+_\d+": "workgroup's shape",
    r"ISA\d+": "the architecture (942 is MI300)",
    r"SK\d+": "stream-K: tiles are divided evenly over compute units",
    r"UserArgs": "called through hipBLASLt's argument buffer",
}


def _nccl(match: re.Match[str], name: str) -> Iterator[Part]:
    yield match["collective"], "the collective: what the ranks do together"
    yield from _parts(filter(None, name[match.end() :].split("(")[0].split("_")), {}, NCCL, "a variant")
    yield (
        "duration",
        "includes waiting for ranks that come later: a long one is not a slow one (rule straggler)",
    )


NCCL = {
    **dict.fromkeys(TYPES, "data type"),
    "Sum": "the reduction: a sum",
    "Max": "the reduction: a maximum",
    "RING": "algorithm: data goes round a ring of ranks",
    "TREE": "algorithm: up and down a tree of ranks",
    "NVLS": "algorithm: reduced inside the NVLink switch",
    "COLLNET": "algorithm: reduced inside the network",
    "LL": "protocol LL: 8-byte flags with each store, lowest latency, half the bandwidth",
    "LL128": "protocol LL128: 128-byte lines over NVLink",
    "SIMPLE": "protocol SIMPLE: large chunks, full bandwidth",
    "Generic": "one kernel for several algorithms, chosen at run time",
}


def _flash(match: re.Match[str], name: str) -> Iterator[Part]:
    direction = "backward" if re.search("bwd|bprop|backward", match[0]) else "forward"
    tiled = f"fused attention, {direction}: scores are computed tile by tile and never written to memory"
    yield match[0], tiled
    if traits := re.search(r"<(\d+), (\d+), (\d+), (\d+)", name):
        yield traits[1], "size of a head"
        yield f"{traits[2]} x {traits[3]}", "tile: queries x keys"
        yield traits[4], "warps"


def _elementwise(match: re.Match[str], name: str) -> Iterator[Part]:
    yield match["kind"], ELEMENTWISE[f"{match['kind'].removesuffix('_kernel')}_kernel"]
    if width := re.match(r".*?<(\d+)", name[match.start() :]):
        meaning = "threads of a block" if int(width[1]) >= 32 else "elements that a thread reads at once"
        yield width[1], meaning
    functor_named = r"(?<!\w)(\w*(?:Functor\w*|_kernel_cuda|_kernel_impl\w*|Ops?))\b"
    short = r"^(\w+)(?: \w+)?>$"  # as reports write it: <add bf16>
    if functor := re.search(short, name[match.end() :]) or re.search(functor_named, name[match.end() :]):
        yield functor[1], "what is computed for each element"


ELEMENTWISE = {
    "vectorized_elementwise_kernel": "one thread handles several neighbouring elements with one load: "
    "contiguous tensors, limited by memory",
    "unrolled_elementwise_kernel": "several elements a thread, without vector loads: types differ or rows "
    "are not aligned",
    "index_elementwise_kernel": "gather or scatter by an index",
    "multi_tensor_apply_kernel": "one launch over a list of tensors: torch._foreach_* and fused optimizers",
    "reduce_kernel": "sum, mean, maximum and the like over some dimensions",
    "elementwise_kernel": "strides are followed element by element: broadcasting or tensors that are not "
    "contiguous; slower than the vectorised one",
}

READERS: tuple[tuple[str, str, Callable[[re.Match[str], str], Iterator[Part]]], ...] = (
    (r"^nvjet_", "cuBLAS matrix product", _nvjet),
    (r"^triton_(?P<kind>[a-z]+)_?(?P<ops>\w*?)(?:_(?P<number>\d+))?$", "Inductor kernel", _triton),
    (r"(?:nccl|rccl)(?:Dev)?Kernel_?(?P<collective>[A-Z][A-Za-z]+)", "NCCL / RCCL collective", _nccl),
    (r"Cijk_[A-Z][a-z]+_[A-Z][a-z]+", "AMD Tensile matrix product (rocBLAS, hipBLASLt)", _tensile),
    (r"^(?:sm(\d+)_)?xmma_(?P<op>[a-z]+)", "cuBLAS / cuDNN kernel", _xmma),
    (r"cutlass_\w*(?:gemm|fprop|dgrad|wgrad)_\w+", "CUTLASS kernel", _cutlass),
    (r"^(?P<arch>ampere|volta|turing|maxwell|hopper)_\w*gemm", "cuBLAS matrix product", _legacy_gemm),
    (r"flash_(?:fwd|bwd|fprop|bprop)\w*|fmha_\w*(?:fwd|bwd|forward|backward)\w*", "FlashAttention", _flash),
    (
        rf"(?P<kind>(?:{'|'.join(kind.removesuffix('_kernel') for kind in ELEMENTWISE)})(?:_kernel)?)<",
        "ATen kernel (eager)",
        _elementwise,
    ),
)
