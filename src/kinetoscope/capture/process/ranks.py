"""Which rank of how many this process is, as its launcher says.

Imports nothing, for the bootstrap's sake (see ``hooks/imports.py``).
"""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

RANK = ("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID")
WORLD = ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_NTASKS")


def rank_and_world(variables: "Mapping[str, str]") -> "tuple[int, int] | None":
    """(rank, number of ranks) as the launcher set them; None for a process that no launcher started."""
    for rank, world in zip(RANK, WORLD, strict=True):
        if variables.get(rank, "").isdigit() and variables.get(world, "").isdigit():
            return int(variables[rank]), int(variables[world])
    return None
