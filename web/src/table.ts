// Tables that sort by a click on their heads and narrow while one types.
import { button, copyButton, fill, h, type Child } from "./dom.ts";
import * as numbers from "./numbers.ts";

export interface ColumnOf<Row> {
  label: string;
  /** What it sorts by; numbers stand to the right and sort downwards first. */
  value: (row: Row) => number | string | null;
  /** What it shows, where that is not the value as it is. */
  cell?: (row: Row) => Child;
  title?: string;
  /** Where its values do not tell: words that are figures, or words that need no room. */
  kind?: "number" | "plain";
  /** What its values count, where they are written otherwise: exported tables have them bare. */
  unit?: string;
}

const UNITS = new Map<unknown, string>([
  [numbers.time, "µs"],
  [numbers.seconds, "s"],
  [numbers.size, "bytes"],
  [numbers.percent, "fraction"],
]);

/** A column of figures that are not known of every row. */
export function figure<Row>(
  label: string,
  value: (row: Row) => number | null,
  write: (value: number) => string,
  title?: string,
): ColumnOf<Row> {
  const cell = (row: Row): string => numbers.known(value(row), write);
  const unit = UNITS.get(write);
  return { label, value, cell, ...(title !== undefined && { title }), ...(unit !== undefined && { unit }) };
}

export interface Options<Row> {
  id?: string;
  filter?: (row: Row) => string;
  search?: string;
  most?: number;
  label: string;
  /** Its heads sort it, as they do where nothing else is said. */
  isSorted?: boolean;
}

const MOST = 200;
const MORE = 2000; // rows that are added at once
const EXPORTED = 6; // rows from which on a table can be taken along

const quoted = (text: string): string => (/[",\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text);
/** The text of a cell; bare of what stands below its value. */
function words(node: Node, isBare: boolean): string {
  if (isBare && node.nodeName === "SMALL") return "";
  const inside = [...node.childNodes].map((child) => words(child, isBare)).join(" ");
  return (inside || (node.nodeValue ?? "")).replace(/\s+/g, " ").trim();
}

/** What is known of no row is no column. */
export function table<Row>(
  rows: readonly Row[],
  wanted: ColumnOf<Row>[],
  options: Options<Row>,
): HTMLElement {
  const columns = wanted.filter(({ value }) => !rows.length || rows.some((row) => value(row) !== null));
  let shown = rows.slice(),
    most = options.most ?? MOST;
  let by = -1,
    down = true;
  const numeric = columns.map(({ value, kind }) =>
    kind ? kind === "number" : rows.some((row) => typeof value(row) === "number"),
  );
  const body = h("tbody");
  const rest = h("p.rest");
  const heads = columns.map((column, index) =>
    h(
      "th",
      { scope: "col", class: numeric[index] && "number", title: column.title },
      options.isSorted === false ? column.label : column.label && button(column.label, () => sort(index)),
    ),
  );
  const line = (row: Row): HTMLElement =>
    h(
      "tr",
      columns.map(({ kind = "name", value, cell = value }, at) =>
        h("td", { class: numeric[at] ? "number" : kind }, cell(row)),
      ),
    );
  const more = (): void => {
    most += MORE;
    draw();
  };
  const draw = (): void => {
    fill(body, shown.slice(0, most).map(line));
    const left = shown.length - most;
    const all = left > MORE ? ` of ${numbers.count(left)}` : "";
    fill(
      rest,
      left > 0 && button(`show ${numbers.count(Math.min(left, MORE))} more${all}`, more),
      !shown.length && (rows.length ? "Nothing fits the filter." : "None."),
    );
  };
  const sort = (index: number): void => {
    down = by === index ? !down : numeric[index]!;
    by = index;
    const value = columns[index]!.value;
    const order = (a: Row, b: Row): number => {
      const [x, y] = [value(a), value(b)];
      if (x === null || y === null) return x === y ? 0 : x === null ? 1 : -1; // what is not known stands last
      return (x < y ? -1 : x > y ? 1 : 0) * (down ? -1 : 1);
    };
    shown = shown.slice().sort(order);
    for (const head of heads) head.removeAttribute("aria-sort");
    heads[index]!.setAttribute("aria-sort", down ? "descending" : "ascending");
    draw();
  };
  const narrow = (text: string): void => {
    const wanted = text.toLowerCase();
    const fits = (row: Row) => !options.filter || options.filter(row).toLowerCase().includes(wanted);
    shown = rows.filter(fits);
    if (by < 0) return draw();
    down = !down;
    sort(by);
  };
  /** All rows that fit the filter, as they are sorted: as text, or with bare numbers. */
  const exported = (isBare: boolean): string => {
    const heads = columns.map(({ label, unit }) => (isBare && unit ? `${label} (${unit})` : label));
    const lines = shown.map((row) =>
      columns.map(({ value, cell = value }) => {
        const bare = value(row);
        return isBare && typeof bare === "number" ? String(bare) : words(h("div", cell(row)), isBare);
      }),
    );
    const written = (line: string[]) => (isBare ? line.map(quoted).join(",") : line.join("\t"));
    return [heads, ...lines].map(written).join("\n");
  };
  const csv: HTMLAnchorElement = h(
    "a.copy",
    { href: "#", onClick: () => csv.setAttribute("href", download()) },
    "CSV",
  );
  const download = (): string => `data:text/csv;charset=utf-8,${encodeURIComponent(exported(true))}`;
  csv.download = `${options.label.replaceAll(/\W+/g, "-")}.csv`;
  const box =
    options.filter &&
    rows.length > 1 &&
    h("input", {
      type: "search",
      placeholder: "filter",
      "aria-label": `filter ${options.label}`,
      value: options.search ?? "",
      onInput: (event: InputEvent) => narrow((event.target as HTMLInputElement).value),
    });
  if (options.search) narrow(options.search);
  else draw();
  return h(
    "div.table",
    h(
      "div.above",
      box,
      rows.length >= EXPORTED && [copyButton(() => exported(false), `the table of ${options.label}`), csv],
    ),
    h(
      "div",
      { class: "scroll", tabindex: "0", role: "region", "aria-label": options.label },
      h("table", { id: options.id }, columns.some(({ label }) => label) && h("thead", h("tr", heads)), body),
    ),
    rest,
  );
}

/** A share with a bar below it. */
export function share(fraction: number, colour: string, width = fraction): HTMLElement {
  const bar = h("i", { style: { width: `${Math.min(100, 100 * width)}%`, background: colour } });
  return h("span.share", numbers.percent(fraction), h("span.meter", bar));
}

/** A column of shares in their colours, the longest bar for `most`. */
export function shares<Row>(label: string, of: (row: Row) => [number, string], most = 1): ColumnOf<Row> {
  const value = (row: Row): number => of(row)[0];
  const cell = (row: Row): Child => (value(row) ? share(...of(row), value(row) / most) : "–");
  return { label, unit: "fraction", value, cell };
}
