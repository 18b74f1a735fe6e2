// Draws blocks: words with their links, and tables of them.
import type { App } from "./app.ts";
import type { Text } from "./document.ts";
import { h, type Child } from "./dom.ts";
import { sourceDoor } from "./doors.ts";
import { format } from "./route.ts";

type Inline = string | Text;

export const words = (parts: Inline[]): string =>
  parts.map((part) => (typeof part === "string" ? part : part.text)).join("");

/** Words on one line; what they name is a link where the page has a place for it. */
export const inline = (app: App, parts: Inline[]): Child =>
  parts.map((part) => (typeof part === "string" ? part : (link(app, part) ?? part.text)));

function link(app: App, part: Text): Child {
  const to = href(app, part);
  return part.kind === "line"
    ? sourceDoor(app, part.target)
    : to && h("a", { class: "door", href: to }, part.text);
}

function href(app: App, { kind, target }: Text): string | null {
  if (kind === "kernel") return app.kernelHref(target);
  if (kind !== "finding") return null;
  const index = app.report.findings.findIndex((row) => row.rule === target);
  return index < 0 ? null : format(["overview"], { finding: index });
}
