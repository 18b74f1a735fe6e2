"""What cuBLAS multiplies in: memory of PyTorch's allocator that is no tensor, and is never given back."""

from __future__ import annotations

import polars as pl

MIB = 1 << 20
# Of Hopper and later, and of others (torch's aten/src/ATen/cuda/CublasHandlePool.cpp).
SIZES = (32 * MIB, 8 * MIB + 128 * 1024)
OF_LT = MIB  # cuBLASLt's own, which the same call asks for
OWNER = "cuBLAS"


def workspaces(known: pl.DataFrame) -> pl.Series:
    """The numbers of those among a device's allocations (``owners.owned``).

    Each thread that multiplies has one for every stream, of a size that is known: from within the first
    module or generated code that multiplies, later from autograd's thread. Where another allocation of that
    size lasts as long and nobody says whose it is, neither is called one.
    """
    lasting = known.filter(
        pl.col("end").is_null(), pl.col("named").is_null(), pl.col("pool") == 0,
        ~pl.col("optimizer"), ~pl.col("communication"),
    )  # fmt: skip
    own = _only(lasting.filter(pl.col("forward"), ~pl.col("backward"), pl.col("bytes").is_in(SIZES)))
    # Autograd's thread runs modules where it computes anew what a checkpoint did not save.
    is_call = pl.col("stack").is_in(own["stack"].implode()) | (pl.col("backward") & pl.col("forward"))
    of_lt = is_call & (pl.col("bytes") == OF_LT)
    autograd = pl.col("backward") & pl.col("bytes").is_in(own["bytes"].implode())
    found = [own, _only(lasting.filter(autograd)), _only(lasting.filter(of_lt))]
    return pl.concat(found)["allocation"] if len(own) else own["allocation"]


def _only(alike: pl.DataFrame) -> pl.DataFrame:
    """Those that are alone of their thread, stream and size: among such as are from before the history, where
    any is."""
    kind = "backward", "stream", "bytes"
    is_old = pl.col("start").is_null()
    return alike.filter(is_old == is_old.any().over(kind)).filter(pl.len().over(kind) == 1)
