// Ways through the page. Where the reader is: `#kernels/12`, `#timeline&t=100-200&k=7`. A path, then parameters; the back button works.
import type { App } from "./app.ts";
import { h, link, monoLink, swatch, type Child } from "./dom.ts";
import { place, printable } from "./names.ts";

export interface Route {
  path: string[];
  parameters: Map<string, string>;
}

export function parse(hash: string): Route {
  const parameters = new Map<string, string>();
  const parts = hash.replace(/^#/, "").split("&").filter(Boolean);
  const first = parts[0] !== undefined && !parts[0].includes("=") ? parts.shift()! : "";
  for (const part of parts) {
    const [key, ...value] = part.split("=");
    parameters.set(decode(key!), decode(value.join("=")));
  }
  const path = first
    ? first.split("/").map(decode)
    : [parameters.has("t") || parameters.has("k") ? "timeline" : ""]; // the first place
  return { path, parameters };
}

export function format(
  path: (string | number)[],
  parameters: Record<string, string | number | null | undefined> = {},
): string {
  const pairs = Object.entries(parameters).filter(
    ([, value]) => value !== null && value !== undefined && value !== "",
  );
  return (
    "#" + [path.map(encode).join("/"), ...pairs.map(([key, value]) => `${key}=${encode(value!)}`)].join("&")
  );
}

/** Changes the address without an entry in the history: it is the same place, seen otherwise. */
export function replace(hash: string): void {
  history.replaceState(null, "", hash);
}

const encode = (text: string | number): string => encodeURIComponent(printable(String(text)));

function decode(text: string): string {
  try {
    return decodeURIComponent(text);
  } catch {
    return text; // typed by hand
  }
}

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
  const [, file, number] = /^(.*):(\d+)$/.exec(source) ?? [null, source];
  const line = number === undefined ? null : Number(number);
  return monoLink(app.lineHref(file!, line), place(file!, line), source);
}

/** The same of a file and a line that may not be known. */
export function lineDoor(app: App, file: string | null, line: number | null): Child {
  return file !== null && monoLink(app.lineHref(file, line), place(file, line), `${file}:${line ?? ""}`);
}
