from kinetoscope.analysis.kernels import taxonomy
from kinetoscope.render import palette


def test_every_category_that_there_can_be_has_its_colour():
    known = {rule.category for rule in taxonomy.RULES} | {
        taxonomy.COPY,
        taxonomy.MEMSET,
        taxonomy.COMMUNICATION,
    }
    assert known == set(palette.CATEGORIES)
    assert len(set(palette.CATEGORIES.values())) == len(palette.CATEGORIES)
