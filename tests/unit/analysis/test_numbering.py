import pytest

from kinetoscope.analysis.numbering import distinct
from kinetoscope.errors import InputError

EVENT = {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": 1, "dur": 1}


@pytest.fixture
def traces(trace_of):
    def make(*ranks):
        """One trace a rank; None for one that does not say."""
        return [
            trace_of(EVENT, rank=rank or 0, **({} if rank is None else {"distributedInfo": {"rank": rank}}))
            for rank in ranks
        ]

    return make


@pytest.mark.parametrize(
    ("said", "given"),
    [
        ((None,), (0,)),
        ((1, 0), (1, 0)),
        ((None, None, None), (0, 1, 2)),
        ((None, 0, None), (1, 0, 2)),
        ((5, None), (5, 0)),
    ],
)
def test_who_does_not_say_gets_what_is_free(traces, said, given):
    assert tuple(trace.rank for trace in distinct(traces(*said))) == given


def test_two_that_say_the_same_are_refused(traces):
    with pytest.raises(InputError, match="two traces are of rank 1") as refusal:
        distinct(traces(0, 1, 1))
    assert " and " in str(refusal.value)


def test_a_recording_says_its_ranks(traces):
    one, two = traces(None, None)
    with pytest.raises(InputError, match="rank 0"):
        distinct([one, two], [one, two])
    assert [trace.rank for trace in distinct([one, two], [two])] == [1, 0]
