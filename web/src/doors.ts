// Ways to the program's lines.
import type { App } from "./app.ts";
import { type Child, h, link, monoLink, swatch } from "./dom.ts";
import { place } from "./names.ts";
import { format } from "./route.ts";

/** A category, with its colour, as a door to its kernels. */
export function categoryDoor(app: App, category: string): HTMLElement {
  return h(
    "span",
    { class: "tag", title: app.report.page?.meanings?.[category] },
    swatch(app.palette.category(category)),
    link(format(["kernels"], { category }), category),
  );
}

/** Of a source as the document writes it: `path/model.py:12`. */
export function sourceDoor(app: App, source: string): HTMLElement {
  const [, file, line] = /^(.*):(\d+)$/.exec(source) ?? [null, source, null];
  return monoLink(
    app.lineHref(file!, line === null ? null : Number(line)),
    place(file!, line === null ? null : Number(line)),
    source,
  );
}

/** The same of a file and a line that may not be known. */
export function lineDoor(app: App, file: string | null, line: number | null): Child {
  return file !== null && monoLink(app.lineHref(file, line), place(file, line), `${file}:${line ?? ""}`);
}

/** Of a Python frame, `path/model.py(12): forward`. */
export function frameDoor(app: App, frame: string | null): Child {
  const [, file, line, name] = /^(.*?)\((\d+)\): (.*)$/.exec(frame ?? "") ?? [];
  return file === undefined
    ? (frame ?? "–")
    : [lineDoor(app, file, Number(line)), h("small", {}, ` ${name}`)];
}
