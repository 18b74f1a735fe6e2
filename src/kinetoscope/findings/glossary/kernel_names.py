"""Kernel names taken apart, field by field, where their naming is known."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple


class Field(NamedTuple):
    """One part of a name and what it says."""

    text: str
    meaning: str


class Decoded(NamedTuple):
    """A kernel's name, read: where such names come from, and its parts in order."""

    family: str
    fields: tuple[Field, ...]


def decode(name: str) -> Decoded | None:
    """The parts of a kernel's name; None if its naming is not known.

    What is not documented by the vendor (nvjet's suffixes, for one) is said to be a reading.
    """
    plain = name.strip().removeprefix("void ")
    for pattern, read in READERS:
        if match := re.search(pattern, plain):
            return read(match, plain)
    return None


LAYOUTS = {"n": "not transposed", "t": "transposed", "N": "not transposed", "T": "transposed"}
TYPES = {
    "bf16": "bfloat16", "f16": "float16", "h": "float16", "f32": "float32", "s": "float32", "tf32": "TF32",
    "f64": "float64", "d": "float64", "i8": "int8", "e4m3": "float8 e4m3", "e5m2": "float8 e5m2", "u8": "uint8",
}  # fmt: skip
ARCHITECTURES = {
    "50": "Maxwell", "60": "Pascal", "70": "Volta", "75": "Turing", "80": "Ampere (A100)", "86": "Ampere (consumer)",
    "89": "Ada", "90": "Hopper (H100, H200)", "100": "Blackwell (B200)", "120": "Blackwell (consumer)",
}  # fmt: skip
ALIGNMENT = "operands are read {0} elements at a time: their rows start on multiples of {0} elements"


def _architecture(number: str) -> str:
    return f"written for compute capability {number[:-1]}.{number[-1]}, {ARCHITECTURES.get(number, 'NVIDIA')}"


def _operands(letters: str) -> str:
    a, b = (LAYOUTS.get(letter, letter) for letter in letters[:2])
    return f"operand A is {a}, B is {b}, as BLAS sees them (column-major)"


def _nvjet(match: re.Match[str], name: str) -> Decoded:
    fields = [
        Field(
            "nvjet",
            "cuBLAS' matrix product for Hopper and later: warp-specialised, fed by the tensor memory accelerator",
        )
    ]
    parts = name.split("_")[1:]
    tiles = [
        "tile of the result that one block computes: rows x columns",
        "depth of one step along the sum x number of stages in flight",
        "blocks that form a cluster and share what they load",
    ]
    for part in parts:
        if part.startswith("sm") and part[2:].isdigit():
            fields.append(Field(part, _architecture(part[2:])))
        elif re.fullmatch(r"\d+x\d+", part) and tiles:
            fields.append(Field(part, tiles.pop(0)))
        elif re.fullmatch(r"[NT]{2}[NT]?", part):
            fields.append(
                Field(
                    part,
                    _operands(part)
                    + (f"; the result is {LAYOUTS[part[2]]} (a reading)" if len(part) == 3 else ""),
                )
            )
        else:
            fields.append(Field(part, NVJET.get(part, "a variant (not documented by NVIDIA)")))
    return Decoded("cuBLAS matrix product", tuple(fields))


NVJET = {
    "tst": "types of A, B and the result (a reading: 16-bit in, 16-bit out)",
    "hsh": "types of A, B and the result (a reading: float16 in, float16 out, float32 sums)",
    "h": "order in which tiles are walked: along rows",
    "v": "order in which tiles are walked: along columns",
    "bz": "beta is zero: the old content of the result is not read",
    "badd": "beta is not zero: the result is added to what is already there (addmm with a full bias: it was copied in before)",
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


def _cutlass(match: re.Match[str], name: str) -> Decoded:
    text = match[0]
    fields = [
        Field("cutlass", "NVIDIA's open template library for matrix products, used inside cuBLAS and cuDNN")
    ]
    parts = text.split("_")[1:]
    tile = 0
    for part in parts:
        if re.fullmatch(r"\d\d+", part):
            fields.append(Field(part, _architecture(part)))
        elif part in ("tensorop", "wmma"):
            fields.append(Field(part, "runs on tensor cores"))
        elif part == "simt":
            fields.append(Field(part, "runs on the ordinary cores, no tensor cores"))
        elif part in TYPES:
            fields.append(Field(part, f"data type: {TYPES[part]}"))
        elif gemm := re.fullmatch(r"([shdi]?)(\d*)gemm", part):
            fields.append(Field(part, _gemm(gemm[1], gemm[2])))
        elif re.fullmatch(r"\d+x\d+", part):
            meaning = ("tile of the result that one block computes", "depth of one step x number of stages")[
                min(tile, 1)
            ]
            fields.append(Field(part, meaning))
            tile += 1
        elif re.fullmatch(r"[nt]{2}", part):
            fields.append(Field(part, _operands(part)))
        elif aligned := re.fullmatch(r"align(\d+)", part):
            slow = (
                "; 1, 2 or 4 with 16-bit types is slow: pad the sizes (rule misaligned-shapes)"
                if int(aligned[1]) < 8
                else ""
            )
            fields.append(Field(part, ALIGNMENT.format(aligned[1]) + slow))
        else:
            fields.append(Field(part, SUFFIXES.get(part, "a variant")))
    return Decoded("CUTLASS kernel", tuple(fields))


def _gemm(kind: str, instruction: str) -> str:
    sums = {"s": "float32", "h": "float16", "d": "float64", "i": "int32", "": "its own type"}[kind]
    shape = {
        "16816": "16x8x16",
        "1688": "16x8x8",
        "161616": "16x16x16",
        "884": "8x8x4",
        "16832": "16x8x32",
    }.get(instruction)
    return f"matrix product, summed in {sums}" + (
        f", by tensor-core instructions of {shape}" if shape else ""
    )


SUFFIXES = {
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
    "fprop": "convolution, forward",
    "dgrad": "convolution, gradient of the input",
    "wgrad": "convolution, gradient of the weights",
}


def _legacy_gemm(match: re.Match[str], name: str) -> Decoded:
    fields = [Field(match["arch"], f"written for {match['arch'].capitalize()}")]
    for part in name.removeprefix(match["arch"] + "_").split("_"):
        if part in TYPES:
            fields.append(Field(part, f"data type: {TYPES[part]}"))
        elif gemm := re.fullmatch(r"([shdi]?)(\d*)gemm", part):
            fields.append(Field(part, _gemm(gemm[1], gemm[2])))
        elif re.fullmatch(r"\d+x\d+", part):
            seen = any(re.fullmatch(r"\d+x\d+", field.text) for field in fields)
            fields.append(
                Field(
                    part,
                    "depth of one step x number of stages"
                    if seen
                    else "tile of the result that one block computes",
                )
            )
        elif re.fullmatch(r"ldg\d+", part):
            fields.append(Field(part, f"reads {part[3:]} elements at a time from memory"))
        elif re.fullmatch(r"[nt]{2}", part):
            fields.append(Field(part, _operands(part)))
        else:
            fields.append(Field(part, SUFFIXES.get(part, "a variant")))
    return Decoded("cuBLAS matrix product", tuple(fields))


def _xmma(match: re.Match[str], name: str) -> Decoded:
    fields = [
        Field(match["arch"], _architecture(match["arch"][2:])),
        Field("xmma", "NVIDIA's closed kernel family of cuBLAS and cuDNN"),
        Field(match["what"], XMMA.get(match["what"], "operation")),
    ]
    if types := re.search(r"_((?:(?:bf16|f16|f32|tf32|i8|e4m3)+_?){2,5})", name):
        fields.append(Field(types[1].strip("_"), "types of the operands, of the sums and of the result"))
    if "_ffma_" in name:
        fields.append(Field("ffma", "ordinary multiply-adds: no tensor cores (rule no-tensor-cores)"))
    patterns = (
        (r"nhwckrsc_nhwc|nhwc", "channels-last tensors"),
        (r"tilesize[\dx]+", "tile of the result and depth of one step"),
        (r"stage\d+", "stages of loads in flight"),
        (r"warp(?:group)?size[\dx]+", "how warps divide the tile"),
        (r"g\d+(?=_|$)", "groups of the convolution"),
        (r"tensor16x8x\d+", "the tensor-core instruction's shape"),
        (r"execute_segment_k_off_kernel|execute_split_k_kernel", "whether the sum is split over blocks"),
        (r"__5x_\w+", "the library it belongs to"),
    )
    for pattern, meaning in patterns:
        if found := re.search(pattern, name):
            fields.append(Field(found[0], meaning))
    return Decoded("cuBLAS / cuDNN kernel", tuple(fields))


XMMA = {
    "gemm": "matrix product",
    "fprop": "convolution, forward",
    "dgrad": "convolution, gradient of the input",
    "wgrad": "convolution, gradient of the weights",
}

TRITON_KINDS = {
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


def _triton(match: re.Match[str], name: str) -> Decoded:
    kind = match["kind"]
    fields = [
        Field("triton", "generated by Inductor (torch.compile) in Triton"),
        Field(kind, TRITON_KINDS.get(kind, "a kind of Inductor's")),
    ]
    rest = match["rest"]
    number = re.search(r"_(\d+)$", rest)
    ops = rest[: number.start()] if number else rest
    if ops.startswith("fused"):
        fields.append(Field("fused", "the ATen ops that were fused follow, sorted by name"))
        ops = ops.removeprefix("fused").lstrip("_") or ops
        fields.append(
            Field(
                ops, "their names, joined by underscores (order is alphabetical, not that of the computation)"
            )
        )
    elif ops:
        fields.append(Field(ops, "what it does"))
    if number:
        fields.append(Field(number[1], "number of the kernel in its generated module"))
    return Decoded("Inductor kernel", tuple(fields))


def _tensile(match: re.Match[str], name: str) -> Decoded:
    fields = [Field(match["product"], "indices of the product: C[ij] = A[il] * B[jl], with a batch index k")]
    meanings = (
        (
            r"_(?:[BHSDIFZC]{2,}|HSS|BBS|SB)_",
            "data types of operands, result and sums (B bfloat16, H half, S single, D double)",
        ),
        (r"MT\d+x\d+x\d+", "macro tile: rows x columns x depth that one workgroup computes"),
        (r"MI\d+x\d+x\d+(?:x\d+)?", "matrix instruction (MFMA) and its shape"),
        (r"GSU\d+", "split of the sum over workgroups"),
        (r"PGR\d+", "prefetch of global reads"),
        (r"WG\d+_\d+_\d+", "workgroup's shape"),
        (r"ISA\d+", "the architecture (942 is MI300)"),
        (r"SK\d+", "stream-K: tiles are divided evenly over compute units"),
        (r"UserArgs", "called through hipBLASLt's argument buffer"),
    )
    for pattern, meaning in meanings:
        if found := re.search(pattern, name):
            fields.append(Field(found[0].strip("_"), meaning))
    return Decoded("AMD Tensile matrix product (rocBLAS, hipBLASLt)", tuple(fields))


def _nccl(match: re.Match[str], name: str) -> Decoded:
    fields = [Field(match["collective"], "the collective: what the ranks do together")]
    for part in name[match.end() :].split("(")[0].strip("_").split("_"):
        if part:
            fields.append(Field(part, NCCL.get(part, "data type" if part in TYPES else "a variant")))
    fields.append(
        Field(
            "duration",
            "includes waiting for the ranks that come later: a long one is not a slow one (rule straggler)",
        )
    )
    return Decoded("NCCL / RCCL collective", tuple(fields))


NCCL = {
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


def _flash(match: re.Match[str], name: str) -> Decoded:
    direction = "backward" if "bwd" in match[0] else "forward"
    fields = [
        Field(
            match[0],
            f"fused attention, {direction}: scores are computed tile by tile and never written to memory",
        )
    ]
    if traits := re.search(r"<(\d+), (\d+), (\d+), (\d+)", name):
        fields.append(Field(traits[1], "size of a head"))
        fields.append(Field(f"{traits[2]} x {traits[3]}", "tile: queries x keys"))
        fields.append(Field(traits[4], "warps"))
    return Decoded("FlashAttention", tuple(fields))


def _elementwise(match: re.Match[str], name: str) -> Decoded:
    fields = [Field(match["kind"], ELEMENTWISE[match["kind"]])]
    if width := re.match(r".*?<(\d+)", name[match.start() :]):
        meaning = "threads of a block" if int(width[1]) >= 32 else "elements that a thread reads at once"
        fields.append(Field(width[1], meaning))
    if functor := re.search(r"(\w*(?:Functor\w*|_kernel_cuda|_kernel_impl\w*|Ops?))\b", name[match.end() :]):
        fields.append(Field(functor[1], "what is computed for each element"))
    return Decoded("ATen kernel (eager)", tuple(fields))


ELEMENTWISE = {
    "vectorized_elementwise_kernel": "one thread handles several neighbouring elements with one load: contiguous tensors, limited by memory",
    "unrolled_elementwise_kernel": "several elements a thread, without vector loads: types differ or rows are not aligned",
    "elementwise_kernel": "strides are followed element by element: broadcasting or tensors that are not contiguous; slower than the vectorised one",
    "reduce_kernel": "sum, mean, maximum and the like over some dimensions",
    "multi_tensor_apply_kernel": "one launch over a list of tensors: torch._foreach_* and fused optimizers",
    "index_elementwise_kernel": "gather or scatter by an index",
}

READERS: tuple[tuple[str, Callable[[re.Match[str], str], Decoded]], ...] = (
    (r"^nvjet_", _nvjet),
    (r"^triton_(?P<kind>[a-z]+)_?(?P<rest>\w*)$", _triton),
    (r"(?:nccl|rccl)(?:Dev)?Kernel_?(?P<collective>[A-Z][A-Za-z]+)", _nccl),
    (r"(?P<product>Cijk_[A-Z][a-z]+_[A-Z][a-z]+)", _tensile),
    (r"^(?P<arch>sm\d+)_xmma_(?P<what>[a-z]+)", _xmma),
    (r"cutlass_\d\d+_\w+", _cutlass),
    (r"^(?P<arch>ampere|volta|turing|maxwell|hopper)_\w*gemm", _legacy_gemm),
    (r"flash_(?:fwd|bwd)\w*|fmha_\w*(?:fwd|bwd|forward|backward)\w*", _flash),
    (
        r"(?P<kind>vectorized_elementwise_kernel|unrolled_elementwise_kernel|index_elementwise_kernel|multi_tensor_apply_kernel|reduce_kernel|elementwise_kernel)<",
        _elementwise,
    ),
)
