"""Draw the README's pictures: what `kinetoscope report` shows of a recording in tests/fixtures,
and a finding of another.

    python docs/pictures/make.py [chromium]

They are screenshots of the real thing: run it again when the report changes. Needs playwright and a chromium.
"""

from __future__ import annotations

import io
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
from playwright.sync_api import Browser, sync_playwright
from rich.console import Console
from rich.terminal_theme import TerminalTheme

from kinetoscope.document.collect.findings import listing
from kinetoscope.document.collect.report import build
from kinetoscope.render.terminal import show
from kinetoscope.sources.run import load
from kinetoscope.views import findings, overview
from kinetoscope.views import page as html

HERE = Path(__file__).resolve().parent
PROVED = Path("tests/fixtures/h200_proved/narrow")
RECORDING = Path(
    "tests/fixtures/h200/mixnet_l_train_bs128_compile.json.gz"
)  # good: nothing weakens its numbers

THEME = TerminalTheme(
    (22, 27, 36),
    (222, 228, 237),
    [
        (0, 0, 0),
        (240, 127, 145),
        (94, 203, 139),
        (227, 176, 75),
        (125, 178, 242),
        (194, 150, 232),
        (110, 205, 215),
        (222, 228, 237),
    ],
)
WINDOW = """<!doctype html><meta charset="utf-8"><style>
body {{ margin: 0; padding: 22px; background: #0b0f16; width: max-content; }}
main {{ padding: 16px 26px 22px; border-radius: 12px; background: #161b24; border: 1px solid #2b3443;
        color: #dee4ed;
        font: 13px/1.35 "JetBrains Mono", "Cascadia Mono", "DejaVu Sans Mono", monospace; }}
pre {{ margin: 0; font: inherit; }}
i {{ display: inline-block; width: 12px; height: 12px; margin: 0 8px 14px 0; border-radius: 50%;
     background: #39445a; }}
b {{ color: #5ecb8b; }}
</style><main><div><i></i><i></i><i></i></div><pre><b>$</b> {command}
{code}</pre></main>"""


def terminal_page(command: str, print_to: Callable[[Console], None]) -> str:
    """What a command prints, as HTML that looks like a terminal."""
    console = Console(
        file=io.StringIO(),
        width=100,
        record=True,
        force_terminal=True,
        color_system="truecolor",
        highlight=False,
    )
    print_to(console)
    code = console.export_html(theme=THEME, inline_styles=True, code_format="{code}")
    return WINDOW.format(command=command, code=code)


def proved_page() -> str:
    """The first finding of a recording whose advice was tried: predicted and measured."""
    found = listing(load(PROVED))
    first = msgspec.structs.replace(found, findings=found.findings[:1])
    return terminal_page(
        f"kinetoscope findings {PROVED.name}", lambda console: show(findings.listing(first), console)
    )


def shoot(browser: Browser, page: str, target: str, *, height: int | None = None, dark: bool = False) -> None:
    """Screenshot a page, whole or its first ``height`` pixels, to ``target`` in this folder."""
    context = browser.new_context(
        viewport={"width": 1240, "height": height or 900},
        device_scale_factor=1,  # text is what makes a picture large
        color_scheme="dark" if dark else "light",
    )
    view = context.new_page()
    view.set_content(page)
    view.wait_for_timeout(500)  # the page draws itself
    if height:
        view.screenshot(path=HERE / target)
    else:
        view.locator("body").screenshot(path=HERE / target)
    context.close()
    print(f"{target}: {(HERE / target).stat().st_size:,} bytes")


def main() -> None:
    os.chdir(HERE.parents[1])
    chromium = sys.argv[1] if len(sys.argv) > 1 else shutil.which("chromium")
    report = build(load(RECORDING), page=True)
    page = html.render(report, [str(RECORDING)])
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        command = f"kinetoscope report {RECORDING}"
        shot = terminal_page(command, lambda console: overview.show(report, [str(RECORDING)], console))
        shoot(browser, shot, "terminal.png")
        shoot(browser, proved_page(), "proof.png")
        shoot(browser, page, "page-light.png", height=1420)
        shoot(browser, page, "page-dark.png", height=1420, dark=True)
        browser.close()


if __name__ == "__main__":
    main()
