"""How kernels came about."""

from __future__ import annotations

import re
from collections.abc import Sequence

from kinetoscope.analysis.events.torch_names import LIBRARY_FRAME, MODULE
from kinetoscope.analysis.kernels.names import short_name
from kinetoscope.analysis.origins import dispatch
from kinetoscope.document import Chain, ChainListing, Link, Quantiles
from kinetoscope.document.collect.rows import row
from kinetoscope.sources.run import Run


def chains(run: Run, name: str, category: str | None) -> ChainListing:
    """The chains of the kernels whose name contains or fits ``name``, one for each sequence of names.

    Raises:
        UsageError: no kernel (of that category) has such a name.
    """
    found = dispatch.dispatches(run, name, category)
    return ChainListing(
        name=name,
        launches=sum(dispatch_.launches for dispatch_ in found),
        device_time_us=sum(dispatch_.device_time_ns for dispatch_ in found) / 1000,
        chains=[
            row(
                Chain,
                dispatch_,
                latency_us=_quantiles(dispatch_.latency_ns),
                queue_delay_us=_quantiles(dispatch_.queued_ns),
                links=_links(dispatch_.chain.links),
                forward=_links(dispatch_.chain.forward),
            )
            for dispatch_ in found
        ],
    )


def _quantiles(times_ns: tuple[float, float] | None) -> Quantiles | None:
    return None if times_ns is None else Quantiles(median=times_ns[0] / 1000, p90=times_ns[1] / 1000)


def _links(links: Sequence[dispatch.Link]) -> list[Link]:
    return [
        row(
            Link,
            link,
            since_us=(link.start_ns - links[0].start_ns) / 1000,
            label=short_name(link.name) if link is links[-1] else _label(link),
        )
        for link in links
    ]


def _label(link: dispatch.Link) -> str | None:
    is_library = link.kind == "python_function" and re.search(LIBRARY_FRAME, link.name)
    return None if is_library and not link.name.startswith(MODULE) else link.name
