"""Which rank of how many this process is, as its launcher says.

Imports nothing, for the bootstrap's sake (see ``hooks/imports.py``).
"""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

RANK = ("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID")
LOCAL = ("LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "SLURM_LOCALID")
# By which a launcher knows that it is one of several, each on a host: torchrun's, accelerate's.
HOSTS = ("--nnodes", "--num_machines", "--num-machines")
# What all hosts of a job call it: a launcher's word, or a variable of torchrun or of the cluster.
JOB_WORDS = ("--rdzv-id", "--rdzv_id")
JOB = ("PET_RDZV_ID", "SLURM_JOB_ID", "LSB_JOBID", "PBS_JOBID")
WORLD = ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_NTASKS")


def rank_and_world(variables: "Mapping[str, str]") -> "tuple[int, int] | None":
    """(rank, number of ranks) as the launcher set them; None for a process that no launcher started."""
    for rank, world in zip(RANK, WORLD, strict=True):
        if variables.get(rank, "").isdigit() and variables.get(world, "").isdigit():
            return int(variables[rank]), int(variables[world])
    return None


def on_several_hosts(words: "Sequence[str]", variables: "Mapping[str, str]") -> bool:
    """Whether a launcher's command line (``--nnodes 2``, ``--nnodes=1:4``) or torchrun's variable says so."""
    said = [variables.get("PET_NNODES", ""), *_said(words, HOSTS)]
    return any(most.isdigit() and int(most) > 1 for most in (one.rpartition(":")[2] for one in said))


def job(words: "Sequence[str]", variables: "Mapping[str, str]") -> str:
    """The name that all hosts have for this run; empty where there is none."""
    names = [*_said(words, JOB_WORDS), *(variables.get(name, "") for name in JOB)]
    return next((name for name in names if name not in ("", "none")), "")


def _said(words: "Sequence[str]", options: "Sequence[str]") -> "list[str]":
    """The values of a launcher's options; what follows the script is the program's."""
    found: list[str] = []
    for word, following in zip(words, [*words[1:], ""], strict=True):
        name, is_whole, value = word.partition("=")
        if name in options:
            found.append(value if is_whole else following)
        if word.endswith(".py"):
            break
    return found


def listed(which: str) -> frozenset[int]:
    """The ranks of ``0,3,8-15``. Raises ValueError where it is no such list."""
    ranks: set[int] = set()
    for piece in which.split(","):
        first, dash, last = piece.partition("-")
        span = range(int(first), int(last if dash else first) + 1)
        if not span:
            raise ValueError(f"{piece} holds no rank")
        ranks |= set(span)
    return frozenset(ranks)


def is_recorded(which: str, rank: int, variables: "Mapping[str, str]") -> bool:
    """Whether this rank is recorded: of ``all``, the ``first``, the first of each of the ``hosts``, or a list
    (see ``listed``). Where no launcher says which rank of its host this is, rank 0 stands for the hosts."""
    match which:
        case "all":
            return True
        case "first":
            return rank == 0
        case "hosts":
            local = next((variables[name] for name in LOCAL if name in variables), str(rank))
            return local == "0"
        case _:
            return rank in listed(which)


def leader(which: str) -> int:
    """The rank that names the step at which all begin: the first that is recorded."""
    return 0 if which in ("all", "first", "hosts") else min(listed(which))


def recorded_count(which: str, world: int, variables: "Mapping[str, str]") -> int:
    """How many ranks will report."""
    match which:
        case "all":
            return world
        case "first":
            return 1
        case "hosts":
            local = variables.get("LOCAL_WORLD_SIZE", "")
            return -(-world // int(local)) if local.isdigit() and int(local) else 1
        case _:
            return len([rank for rank in listed(which) if rank < world])
