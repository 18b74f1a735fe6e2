import re
import unicodedata

from hypothesis import given
from hypothesis import strategies as st

from kinetoscope.analysis.events import torch_names
from kinetoscope.render import names

ANYTHING = st.text(st.characters(), max_size=200)


@given(ANYTHING)
def test_plain_text_obeys_nobody(text):
    shown = names.plain(text)
    assert not [c for c in shown if unicodedata.category(c) in ("Cc", "Cs", "Zl", "Zp")]
    assert not set(shown) & set("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\u200e\u200f\ufeff")
    assert len(shown.splitlines()) <= 1
    shown.encode()


@given(st.text(st.characters(categories=("L", "N", "P", "S")), max_size=50))
def test_ordinary_names_stay_as_they_are(text):
    assert names.plain(text) == text


@given(ANYTHING, st.integers(min_value=1, max_value=120))
def test_shortened_names_fit_and_keep_their_ends(text, width):
    shown = names.shorten(text, width)
    whole = names.plain(text)
    assert len(shown) <= width
    if len(whole) <= width:
        assert shown == whole
    else:
        head, tail = shown.split("…")[0], shown.rsplit("…", 1)[1]
        assert whole.startswith(head)
        assert whole.endswith(tail)


def test_a_sentence_that_is_too_long_ends_between_two_words():
    assert names.ended_early("Take the call out of the function.", 34) == "Take the call out of the function."
    assert names.ended_early("Take the call out of the function.", 20) == "Take the call out …"
    assert names.ended_early("Take the call out of the function.", 19) == "Take the call out …"
    assert names.ended_early("Take the call out of the function.", 18) == "Take the call …"
    assert names.ended_early("a_name_of_many_characters is long", 10) == names.shorten(
        "a_name_of_many_characters is long", 10
    )


def test_the_number_of_a_generated_kernel_survives():
    assert names.shorten("triton_poi_fused_native_batch_norm_backward_silu_silu_backward_117", 30).endswith(
        "117"
    )


def test_kernels_of_one_template_stay_apart_when_shortened():
    """Both stood as ``multi_tensor_apply_kernel<…es<float>> #2`` under each other in a report."""
    shown = {
        names.shorten(f"multi_tensor_apply_kernel<{what}<float>> #2", 40)
        for what in ("divides", "multiplies")
    }
    assert len(shown) == 2


def test_calls_of_compiled_graphs_are_short_where_names_are_shown_and_whole_where_they_are_asked_for():
    name = "## Call CompiledFxGraph fyipgwdcr2yagycvnxpr5yfqcilwgli5vr ##"
    assert re.match(torch_names.CALL, name)
    assert names.CALL.pattern == torch_names.CALL.strip("^$")
    assert names.plain(f"{name} idle") == "graph fyipgwdc idle"
    assert names.shorten(name, 60) == "graph fyipgwdc"
    assert names.whole(name) == name
