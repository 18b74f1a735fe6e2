import pytest

from compilation_sample import sample
from kinetoscope.document.compilation import CompiledKernel
from kinetoscope.views.graph_names import kernel_languages


@pytest.mark.parametrize(
    ("languages", "called"),
    [(["cpp", "cpp"], "C++"), (["triton"], "triton"), (["cpp", "triton"], "triton+C++"), ([], "triton")],
)
def test_the_time_that_kernels_took_to_compile_says_by_what(languages, called):
    assert kernel_languages(sample(CompiledKernel, language=language) for language in languages) == called
