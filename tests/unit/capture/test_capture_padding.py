"""The padding of a loader's batches is seen by their mask, and the program sees nothing of that."""

import traceback
from collections import UserDict
from collections.abc import Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from kinetoscope.capture.steps.ledgers import Ledgers  # noqa: E402
from kinetoscope.capture.steps.padding import ENOUGH  # noqa: E402
from kinetoscope.recording.manifest import BatchPadding  # noqa: E402

WIDTH = 16


@pytest.fixture
def ledgers() -> Iterator[Ledgers]:
    import torch.utils.data  # noqa: F401

    opened = Ledgers()
    opened.install()
    yield opened
    opened.remove()


def padded(lengths: list[int]) -> dict[str, torch.Tensor]:
    mask = (torch.arange(WIDTH) < torch.tensor(lengths)[:, None]).long()
    return {"input_ids": mask * 7, "attention_mask": mask, "labels": mask[:, 0]}


def loaded(lengths: list[int], batch_size: int, collate: Any = padded, **named: Any) -> list[Any]:
    return list(torch.utils.data.DataLoader(lengths, batch_size, collate_fn=collate, **named))


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("collate", [padded, lambda lengths: UserDict(padded(lengths))])
def test_padding_is_counted_as_the_mask_says(ledgers: Ledgers, collate: Any, workers: int) -> None:
    lengths = [3, 5, 2, 9]
    batches = loaded(lengths, 2, collate, num_workers=workers)
    assert [int(batch["attention_mask"].sum()) for batch in batches] == [8, 11]
    tokens, kept = WIDTH * len(lengths), sum(lengths)
    beyond = 2 * (WIDTH - 5) + 2 * (WIDTH - 9)
    assert ledgers.padding == BatchPadding(tokens, tokens - kept, beyond)


def test_only_the_first_batches_are_looked_at(ledgers: Ledgers) -> None:
    loaded([4] * (ENOUGH + 10), 1)
    assert ledgers.padding == BatchPadding(WIDTH * ENOUGH, 12 * ENOUGH, 12 * ENOUGH)


@pytest.mark.parametrize(
    "collate",
    [
        lambda lengths: torch.tensor(lengths),
        lambda lengths: padded(lengths) | {"pixel_values": torch.zeros(len(lengths), 3, 8, 8)},
        lambda lengths: {"input_ids": padded(lengths)["input_ids"]},
        lambda lengths: padded(lengths) | {"attention_mask": padded(lengths)["attention_mask"] - 1.0},
        lambda lengths: padded(lengths) | {"attention_mask": padded(lengths)["attention_mask"].T},
    ],
)
def test_nothing_is_said_of_other_batches(ledgers: Ledgers, collate: Any) -> None:
    assert len(loaded([3, 5], 2, collate)) == 1
    assert ledgers.padding is None


def test_an_error_of_the_loader_shows_no_frame_of_ours(ledgers: Ledgers) -> None:
    def fails(lengths: list[int]) -> None:
        raise ValueError(lengths)

    with pytest.raises(ValueError, match=r"\[3\]") as raised:
        loaded([3], 1, fails)
    files = [frame.filename for frame in traceback.extract_tb(raised.value.__traceback__)]
    assert not [file for file in files if "kinetoscope/" in file]


def test_the_program_s_modes_hear_nothing_of_the_look(ledgers: Ledgers) -> None:
    from torch.overrides import TorchFunctionMode

    class Heard(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            asked.append(func)
            return func(*args, **(kwargs or {}))

    def heard() -> list[Any]:
        asked.clear()
        with Heard():
            assert loaded([3, 16], 2, lambda lengths: batch) == [batch]
        return [*asked]

    asked, batch = list[Any](), padded([3, 16])
    looked_at = heard()
    assert ledgers.padding == BatchPadding(2 * WIDTH, WIDTH - 3, 0)
    ledgers.remove()
    assert list(map(str, looked_at)) == list(map(str, heard()))
