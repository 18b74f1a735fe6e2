// Draws blocks, which terminals and Markdown draw too: words with their links, tables, lists, commands.
import type { App } from "./app.ts";
import { code } from "./code.ts";
import type { Segment, Sentences, Table, Column as TableColumn, Text } from "./document.ts";
import { chained, type Child, copyButton, facts, folded, h, list, monoLink, para, soft } from "./dom.ts";
import { categoryDoor, format, sourceDoor } from "./links.ts";
import { shorten } from "./names.ts";
import * as numbers from "./numbers.ts";
import { bar } from "./plot.ts";
import { share as meter, table, type ColumnOf } from "./table.ts";

export type Block = Sentences["blocks"][string][number];
type Cell = Table["rows"][number][number];
type Part = Exclude<Cell, unknown[]> | Extract<Cell, unknown[]>[number];
type Inline = string | Text;

const LONGEST = 160; // characters of a name in a table
const NONE = -1;
const FILTERED = 10; // rows from which on a table can be filtered

export const words = (parts: Inline[]): string =>
  parts.map((part) => (typeof part === "string" ? part : part.text)).join("");

/** Words on one line; what they name is a link where the page has a place for it. */
export const inline = (app: App, parts: Inline[]): Child =>
  parts.map((part) => (typeof part === "string" ? numbers.together(part) : text(app, part)));

/** Sections: each begins at a heading; what stands before the first one is in none. */
export function sections(app: App, blocks: Block[]): Child {
  const found: { head: Extract<Block, { type: "Heading" }> | null; body: Child[] }[] = [
    { head: null, body: [] },
  ];
  for (const block of blocks) {
    const last = found.at(-1)!;
    if (block.type === "Heading" && block.level > 1) found.push({ head: block, body: [] });
    else last.body.push(drawn(app, block, last.head?.title ?? ""));
  }
  return found.map(({ head, body }) => {
    if (!head) return body;
    const title = [h("h2", head.title), h("p", head.basis)];
    return head.folded ? h("section.folded", folded(title, body)) : h("section", h("header", title), body);
  });
}

function drawn(app: App, block: Block, title: string): Child {
  switch (block.type) {
    case "Heading":
      return h("h1", { class: block.style }, numbers.together(block.title));
    case "Prose":
      return para(block.style || "lead", numbers.together(block.text));
    case "Line":
      return block.parts.length > 0 && h("p", inline(app, block.parts));
    case "Status":
      return verdict(block.text, block.is_good);
    case "Items":
      return list(
        "notes",
        block.items.map((item) => numbers.together(item)),
      );
    case "Table":
      return tableOf(app, block, title);
    case "Labelled":
      return terms(
        block.items.map(([label, body]) => [text(app, label), body.map((one) => drawn(app, one, title))]),
      );
    case "Commands":
      return terms(
        block.items.map(([line, shows]) => [shows, [h("code", line), " ", copyButton(line, "the command")]]),
      );
    case "Code": {
      const text = code(block.text);
      return block.title ? folded(block.title, text) : text;
    }
    case "Only":
      return block.medium !== "screen" && drawn(app, block.block, title);
  }
}

export const verdict = (text: string, isGood: boolean): HTMLElement =>
  para(`verdict ${isGood ? "" : "doubt"}`, h("span", { "aria-hidden": "true" }, isGood ? "✓ " : "⚠ "), text);

const terms = (rows: [Child, Child][]): HTMLElement => facts(rows, "facts wide");

/** Words in their style: a link to what they name, where the page has a place for it. */
function text(app: App, part: Text, shown = part.text): Child {
  if (part.kind === "line") return sourceDoor(app, part.target);
  if (part.kind === "category") return categoryDoor(app, part.target);
  if (part.kind === "stack") return folded(shown, stackOf(app, part.target.split("\n")));
  if (part.kind === "command") return h("code", shown);
  const href = hrefOf(app, part);
  const names = part.kind === "kernel" || part.kind === "op";
  const title = names ? (app.report.page?.meanings?.[part.target] ?? part.target) : null;
  const style: Record<string, string> = part.depth ? { "padding-left": `${part.depth}em` } : {};
  const colour = part.style.split(" ").find((one) => one.startsWith("#"));
  if (colour) style.color = colour;
  const kind = part.style.replace(/#\w+/, "");
  const name = `${kind} ${names ? "mono" : ""} ${href ? "door" : ""}`.trim();
  return href || name || colour || part.depth
    ? h(href ? "a" : "span", { ...(href && { href }), class: name || null, title, style }, shown)
    : shown;
}

function hrefOf(app: App, { kind, target }: Text): string | null {
  if (kind === "kernel") return app.kernelHref(target);
  const launches = () => app.report.ops.some((row) => row.name === target && row.device_total_us > 0);
  if (kind === "op") return app.store && launches() ? format(["kernels"], { by: "op", in: target }) : null;
  if (kind === "part") return `#${target}`;
  if (kind === "graph") return format(["kernels"], { graph: target });
  if (kind === "time") return app.traceTimeHref(...(target.split(",").map(Number) as [number, number]));
  if (kind === "event" && target)
    return app.eventHref(...(target.split(":").map(Number) as [number, number]));
  if (kind !== "finding") return null;
  const index = app.report.findings.findIndex((row) => row.rule === target);
  return index < 0 ? null : format(["overview"], { finding: index });
}

/** Its first share has a meter, as wide and of the colour as the bar that other media draw next to it. */
function tableOf(app: App, block: Table, title: string): HTMLElement {
  const { columns, rows } = block;
  const shown = columns.flatMap(({ only }, at) => (only === "screen" ? [] : [at]));
  const share = shown.find((at) => columns[at]!.kind === "share") ?? NONE;
  const barAt = share < 0 ? NONE : columns.findIndex(({ kind, title }) => kind === "bar" && !title);
  const draw = (at: number, row: Cell[]): Child => {
    const value = row[at]!;
    if (at !== share || typeof value !== "number") return parts(app, columns[at]!, value);
    const [segment] = segmentsOf(barAt < 0 ? null : row[barAt]!);
    return meter(value, segment?.colour ?? "var(--accent)", segment?.share ?? value);
  };
  const isTree = rows.some((row) => row.some((one) => isText(one) && one.depth > 0));
  const label = title.toLowerCase() || "figures";
  return h(
    "div",
    table(
      rows,
      shown
        .filter((at) => at !== barAt || rows.some((row) => segmentsOf(row[at]!).length > 1))
        .map((at): ColumnOf<Cell[]> => {
          const { title, kind } = columns[at]!;
          return {
            label: title,
            ...(NUMERIC.has(kind) ? { kind: "number" } : kind === "text" ? { kind: "plain" } : {}),
            ...(WRITTEN[kind] && { unit: WRITTEN[kind][1] }),
            value: (row) => sortable(row[at]!, kind),
            cell: (row) => draw(at, row),
          };
        }),
      {
        id: label.replace(/[^a-z0-9]+/g, "-"),
        label,
        isSorted: !isTree && columns.some((column) => column.title),
        ...(rows.length > FILTERED &&
          !isTree && { filter: (row: Cell[]) => row.map((one) => sortable(one, "text") ?? "").join(" ") }),
      },
    ),
    block.more > 0 && soft(`and ${numbers.count(block.more, block.noun)} more`),
  );
}

const isText = (value: Cell | Part): value is Text =>
  typeof value === "object" && value !== null && "text" in value;

const segmentsOf = (value: Cell): Segment[] =>
  Array.isArray(value)
    ? value.flatMap((part) => (typeof part === "object" && part.type === "Segment" ? [part] : []))
    : [];

const NUMERIC = new Set<TableColumn["kind"]>(["time", "change", "share", "count", "bytes", "number"]);

/** How figures of a kind are written, and what they count where a table is exported. */
const WRITTEN: Partial<Record<TableColumn["kind"], [(value: number) => string, string]>> = {
  time: [numbers.time, "µs"],
  change: [numbers.change, "µs"],
  share: [numbers.percent, "fraction"],
  bytes: [numbers.size, "bytes"],
};

/** What a cell is sorted by: its number or its words. */
function sortable(value: Cell, kind: TableColumn["kind"]): number | string | null {
  if (value === null || typeof value === "number") return value;
  if (Array.isArray(value)) {
    if (kind === "bar") return "";
    if (typeof value[0] === "number") return value[0];
    return sortable(
      value.map((part) => (typeof part === "object" && "text" in part ? part.text : part)).join(""),
      kind,
    );
  }
  if (typeof value === "object") return value.kind === "time" ? parseFloat(value.target) : value.text || null;
  const number = kind === "number" ? parseFloat(value.replaceAll(",", "")) : NaN;
  return Number.isNaN(number) ? value || null : number;
}

/** A cell, or its parts: segments are a bar, what is dim stands below. */
function parts(app: App, column: TableColumn, value: Cell): Child {
  const segments = segmentsOf(value);
  if (segments.length) return bar(column.title, segments);
  if (!Array.isArray(value)) return cell(app, column, value as Part);
  return value.map((part) =>
    isText(part) && part.style === "dim"
      ? h("small", text(app, { ...part, style: "" }, bare(part.text)))
      : cell(app, column, part),
  );
}

/** Without what joins it to the figure before it, as in `, 3 of 6` or ` (3 of 6)`. */
const bare = (text: string): string => text.replace(/^[ ,]+/, "").replace(/^\((.*)\)$/, "$1");

function cell(app: App, column: TableColumn, value: Part): Child {
  if (value === null) return "–";
  if (typeof value === "number") return (WRITTEN[column.kind]?.[0] ?? numbers.count)(value);
  if (typeof value === "string") return column.kind === "name" ? shorten(value, LONGEST) : value;
  return isText(value) && text(app, value, shorten(value.text, LONGEST));
}

export const FRAME = /^(.*):(\d+)(?: (.*))?$/;

export function stackOf(app: App, stack: readonly string[]): HTMLElement {
  return chained(
    stack.map((one) => {
      const [, file, line, name] = FRAME.exec(one) ?? [];
      if (file === undefined) return one;
      return [monoLink(app.lineHref(file, Number(line)), `${file}:${line}`), ` ${name ?? ""}`];
    }),
  );
}
