"""The padding of batches is seen by their mask, and the program sees nothing of that."""

import sys
import traceback
from collections import UserDict
from collections.abc import Callable, Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from kinetoscope.capture import torch_private  # noqa: E402
from kinetoscope.capture.recorder.lines import Lines  # noqa: E402
from kinetoscope.capture.steps.ledgers import Ledgers  # noqa: E402
from kinetoscope.capture.steps.padding import ENOUGH, MOST_HELD, PaddingGiven  # noqa: E402
from kinetoscope.recording.manifest import BatchPadding, LossLabels  # noqa: E402

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
    assert ledgers.padding == BatchPadding(tokens, tokens - kept, beyond, len(lengths))


def test_only_the_first_batches_are_looked_at(ledgers: Ledgers) -> None:
    loaded([4] * (ENOUGH + 10), 1)
    assert ledgers.padding == BatchPadding(WIDTH * ENOUGH, 12 * ENOUGH, 12 * ENOUGH, ENOUGH)


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
    assert ledgers.padding == BatchPadding(2 * WIDTH, WIDTH - 3, 0, 2)
    ledgers.remove()
    assert list(map(str, looked_at)) == list(map(str, heard()))


class Encoder(torch.nn.Module):
    """Its layers get what it makes of its words, and their mask."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.layer = torch.nn.Embedding(9, 4), torch.nn.Linear(4, 4)

    def forward(self, words: Any, mask: Any = None) -> Any:
        return self.layer(self.words(words))


class Wrapped(torch.nn.Module):
    """As DistributedDataParallel: it takes what its module does."""

    def __init__(self) -> None:
        super().__init__()
        self.module = Encoder()

    def forward(self, *inputs: Any, **named: Any) -> Any:
        return self.module(*inputs, **named)


def texts(lengths: list[int], width: int = WIDTH) -> tuple[Any, Any]:
    mask = (torch.arange(width) < torch.tensor(lengths)[:, None]).long()
    return mask * (1 + torch.arange(width) % 7), mask


def seen_in(step: Callable[[], object]) -> PaddingGiven:
    """What a step in which lines are noted shows."""
    if sys.gettrace() is not None:
        pytest.skip("the tests are traced")
    seen = PaddingGiven()
    lines = Lines(lambda file: file == __file__, seen)
    lines.start(None)
    step()
    lines.stop()
    return seen


def given(step: Callable[[], object]) -> BatchPadding | None:
    return seen_in(step).counted()


WORDS, THERE = texts([3, 9, 5])
PADDED = BatchPadding(3 * WIDTH, 3 * WIDTH - 17, 3 * (WIDTH - 9), 3)


@pytest.mark.parametrize(
    ("model", "arguments", "named"),
    [
        (Encoder(), (WORDS, THERE), {}),
        (Encoder(), (WORDS, THERE.bool()), {}),
        (Encoder(), (WORDS,), {"mask": THERE}),
        (Wrapped(), (WORDS,), {"mask": THERE}),
        (Wrapped(), (WORDS, THERE), {}),
        (Encoder(), (WORDS.flip(1), THERE.flip(1)), {}),  # on the left
    ],
)
def test_padding_is_what_a_model_gets_a_mask_for(
    model: Any, arguments: tuple[Any, ...], named: dict[str, Any]
) -> None:
    assert given(lambda: model(*arguments, **named)) == PADDED


def test_all_calls_of_a_step_count() -> None:
    model, (words, there) = Encoder(), texts([4], 8)
    assert given(lambda: (model(WORDS, THERE), model(words, there))) == BatchPadding(
        PADDED.tokens + 8, PADDED.padding + 4, PADDED.beyond + 4, 4
    )


def test_a_batch_without_padding_counts() -> None:
    assert given(lambda: Encoder()(*texts([8, 8], 8))) == BatchPadding(16, 0, 0, 2)


@pytest.mark.parametrize("captures", [True, False])
def test_tables_of_a_device_are_not_read_while_a_graph_is_captured(
    monkeypatch: pytest.MonkeyPatch, captures: bool
) -> None:
    class OfDevice:
        is_cuda = True

        def tolist(self) -> list[int]:
            return [1]

    monkeypatch.setattr(torch_private, "captures_now", lambda: captures)
    monkeypatch.setattr(torch.cuda, "get_sync_debug_mode", lambda: 0)
    assert torch_private.read_in_silence([OfDevice()]) == ([] if captures else [[1]])


KINDS = torch.cat([torch.zeros(3, 5), torch.ones(3, 4), torch.zeros(3, WIDTH - 9)], 1).long()


@pytest.mark.parametrize(
    "step",
    [
        lambda: Encoder()(WORDS),
        lambda: Encoder()(WORDS, KINDS),  # which of two texts it is
        lambda: Encoder()(WORDS, 1 - THERE),  # another mask
        lambda: Encoder()(WORDS, THERE[:, :-1]),
        lambda: Encoder()(WORDS, THERE.float()),
        lambda: (Encoder()(WORDS, THERE), torch.nn.Flatten()(torch.zeros(2, 3, 8, 8))),  # and of pictures
        lambda: None,
    ],
)
def test_nothing_is_said_of_what_is_no_mask(step: Callable[[], object]) -> None:
    assert given(step) is None


def test_what_a_loss_gets_is_no_picture() -> None:
    def step() -> None:
        torch.nn.CrossEntropyLoss()(Encoder()(WORDS, THERE).transpose(1, 2), WORDS % 4)

    assert given(step) == PADDED


def test_modes_of_the_program_hear_nothing_of_what_models_get() -> None:
    from torch.overrides import TorchFunctionMode
    from torch.utils._python_dispatch import TorchDispatchMode

    class Functions(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            asked.append(str(func))
            return func(*args, **(kwargs or {}))

    class Ops(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            asked.append(str(func))
            return func(*args, **(kwargs or {}))

    def heard(run: Callable[[Callable[[], object]], object]) -> list[str]:
        asked.clear()
        with Functions(), Ops():
            run(lambda: model(WORDS, THERE))
        return [*asked]

    asked, model = list[str](), Encoder()
    assert heard(given) == heard(lambda step: step())


@pytest.mark.parametrize("prompt", [0, 2])
def test_labels_that_losses_ignore_are_a_mask_where_tokens_are_all_the_same(
    ledgers: Ledgers, prompt: int
) -> None:
    lengths = [3, 5, 4, 9]

    def labelled(lengths: list[int]) -> list[torch.Tensor]:
        mask = torch.arange(WIDTH) < torch.tensor(lengths)[:, None]
        labels = torch.where(mask & (torch.arange(WIDTH) >= prompt), 1, -100)
        return [torch.arange(1, WIDTH + 1) * mask, labels]

    batches = loaded(lengths, 2, labelled)
    assert len(batches) == 2
    tokens, kept = WIDTH * len(lengths), sum(lengths)
    beyond = 2 * (WIDTH - 5) + 2 * (WIDTH - 9)
    # Labels of a prompt are ignored as well, and it is no padding.
    assert ledgers.padding == (None if prompt else BatchPadding(tokens, tokens - kept, beyond, len(lengths)))


@pytest.mark.parametrize(("lengths", "found"), [([3, WIDTH], True), ([WIDTH, WIDTH], False)])
def test_a_batch_of_which_no_label_is_ignored_counts_if_others_have_padding(
    ledgers: Ledgers, lengths: list[int], found: bool
) -> None:
    def labelled(lengths: list[int]) -> list[torch.Tensor]:
        mask = torch.arange(WIDTH) < torch.tensor(lengths)[:, None]
        return [torch.arange(1, WIDTH + 1) * mask, torch.where(mask, 1, -100)]

    loaded(lengths, 1, labelled)
    padding = WIDTH - 3
    assert ledgers.padding == (BatchPadding(2 * WIDTH, padding, padding, 2) if found else None)


def test_objects_of_the_program_s_own_are_asked_nothing(ledgers: Ledgers) -> None:
    asked = list[str]()

    class Batch:
        def __getattr__(self, name: str) -> Any:
            asked.append(name)
            raise AttributeError(name)

    loaded([1, 2], 2, lambda numbers: (Batch(), Batch()))
    assert asked == []
    assert ledgers.padding is None


class Histories(torch.nn.Module):
    """Things that people bought, each with its kind."""

    def forward(self, offer: Any, bought: tuple[Any, Any], lengths: Any) -> Any:
        return bought[0].float() + bought[1] + offer[:, None]


def histories(lengths: list[int], width: int = WIDTH) -> tuple[Any, tuple[Any, Any], Any]:
    words, there = texts(lengths, width)
    return torch.arange(len(lengths)), (words + 3 * there, 2 * words), torch.tensor(lengths)


def test_lengths_tell_padding_where_what_comes_after_them_is_all_the_same() -> None:
    kept = BatchPadding(PADDED.tokens, PADDED.padding, PADDED.beyond, PADDED.rows, by_lengths=True)
    assert given(lambda: Histories()(*histories([3, 9, 5]))) == kept


@pytest.mark.parametrize("lengths", [[3, 9, 4], [3, 9, WIDTH + 1], [3, 8, 5, 1]])
def test_other_numbers_are_no_lengths(lengths: list[int]) -> None:
    offer, bought, _ = histories([3, 9, 5])
    assert given(lambda: Histories()(offer, bought, torch.tensor(lengths))) is None


def test_of_large_tables_rows_from_all_over_are_read() -> None:
    rows, width = 4096, 100
    lengths = [1 + (row * 7919) % width for row in range(rows)]
    found = given(lambda: Histories()(*histories(lengths, width)))
    assert found is not None
    assert found.tokens == 256 * width
    assert found.padding / found.tokens == pytest.approx(1 - sum(lengths) / (rows * width), abs=0.03)


FILLED = [3, 9, 5, 4, 7, 2, 6, 8]


@pytest.mark.parametrize("turned", [False, True])
def test_a_table_shows_its_own_padding(turned: bool) -> None:
    words, _ = texts(FILLED)
    words = words.flip(1) if turned else words
    pairs = (words[:, :, None] - words[:, None]).float()
    kept, tokens = sum(FILLED), len(FILLED) * WIDTH
    expected = BatchPadding(tokens, tokens - kept, len(FILLED) * (WIDTH - 9), len(FILLED), by_ends=True)
    assert given(lambda: Encoder()(words)) == expected
    assert given(lambda: Encoder()(words, pairs)) == expected  # how far apart tokens are
    assert given(lambda: Encoder()(words, torch.zeros(len(FILLED), 3, 32, 32))) is None  # with pictures


@pytest.mark.parametrize(
    "lengths", [FILLED[:7], [3, 9] * 8, [WIDTH] * 8], ids=["few rows", "few lengths", "no padding"]
)
def test_what_may_end_so_by_chance_is_no_padding(lengths: list[int]) -> None:
    assert given(lambda: Encoder()(texts(lengths)[0])) is None


def test_a_token_that_is_in_texts_as_well_fills_nothing() -> None:
    words, _ = texts(FILLED)
    words[:, 1] = 0
    assert given(lambda: Encoder()(words)) is None


LABELS = torch.where(THERE.bool(), WORDS % 4, -100)
LOGITS = torch.zeros(3, WIDTH, 8)
IGNORED = 3 * WIDTH - 17


def loss_of(logits: Any, labels: Any, **named: Any) -> Any:
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), **named)


def likelihoods(logits: Any, labels: Any) -> Any:
    chosen = logits.log_softmax(-1).gather(2, labels.clamp(min=0)[:, :, None])[:, :, 0]
    return chosen * (labels != -100)


def batches_of(labels: Any) -> Iterator[Any]:
    yield labels


@pytest.mark.parametrize(
    ("step", "expected"),
    [
        (lambda: loss_of(LOGITS, LABELS), (3 * WIDTH, IGNORED, 1)),
        (lambda: torch.nn.CrossEntropyLoss()(LOGITS.transpose(1, 2), LABELS), (3 * WIDTH, IGNORED, 1)),
        (lambda: (loss_of(LOGITS, LABELS), loss_of(LOGITS, WORDS)), (6 * WIDTH, IGNORED, 2)),
        (lambda: loss_of(LOGITS, WORDS, ignore_index=0), (3 * WIDTH, IGNORED, 1)),
        (lambda: loss_of(LOGITS[THERE.bool()][None], LABELS[THERE.bool()][None]), (17, 0, 1)),
        (lambda: likelihoods(LOGITS, LABELS), (3 * WIDTH, IGNORED, 1)),
        (lambda: [likelihoods(LOGITS, labels) for labels in batches_of(LABELS)], (3 * WIDTH, IGNORED, 1)),
        (lambda: likelihoods(LOGITS, WORDS), None),
        (lambda: Encoder()(WORDS, THERE), None),
    ],
)
def test_labels_that_losses_ignore_are_counted(
    step: Callable[[], object], expected: tuple[int, int, int] | None
) -> None:
    assert seen_in(step).ignored() == (None if expected is None else LossLabels(*expected))


def test_no_more_of_the_program_s_memory_is_kept_than_one_large_table_takes() -> None:
    words = torch.zeros(1 << 10, 1 << 10, dtype=torch.long)
    seen = seen_in(lambda: [Encoder()(words, torch.ones_like(words)) for _ in range(4)])
    assert len(seen.batches) == MOST_HELD // (2 * words.numel())
