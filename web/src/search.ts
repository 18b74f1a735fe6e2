// `/`: everything that has a name, and where it leads.
import type { App } from "./app.ts";
import { words } from "./blocks.ts";
import { dialog, fill, h, type Child } from "./dom.ts";
import { place, printable, shorten } from "./names.ts";
import * as numbers from "./numbers.ts";
import { format } from "./links.ts";
import { programLines } from "./views/program.ts";

interface Entry {
  kind: string;
  whole: string;
  /** The same in small letters. */
  text: string;
  shown: string;
  more: string;
  href: string;
}

const MOST = 40,
  WIDE = 90; // characters

function entries(app: App): Entry[] {
  const { report, store, sentences } = app;
  const found: Entry[] = [];
  const add = (kind: string, text: string, more: string, href: string | null, shown = text): void => {
    if (href) found.push({ kind, whole: text, text: text.toLowerCase(), shown, more, href });
  };
  report.findings.forEach((row, index) => {
    const href = format(["overview"], { finding: index });
    add("finding", `${row.title} ${row.rule}`, words(sentences.savings[index] ?? []), href, row.title);
  });
  report.kernels.forEach((row, index) =>
    add("kernel", row.name, numbers.time(row.device_time_us), format(["kernels", index]), row.short_name),
  );
  for (const { category, device_time_us } of report.categories)
    add("category", category, numbers.time(device_time_us), format(["kernels"], { category }));
  for (const { name, start_us, duration_us } of report.steps)
    add("step", name, numbers.time(duration_us), app.traceTimeHref(start_us, start_us + duration_us));
  report.graphs.forEach(({ graph, device_time_us }, at) => {
    const label = sentences.graph_labels[at]!;
    add("graph", `${label} ${graph}`, numbers.time(device_time_us), format(["kernels"], { graph }), label);
  });
  const { graph_breaks = [], frames = [], kernels = [] } = report.compilation ?? {};
  for (const { file, line, reason, frame } of graph_breaks)
    add(
      "graph break",
      `${place(file, line)} ${reason}`,
      "",
      format(["compile", ...(frame === null ? [] : [frame])]),
    );
  for (const row of frames) {
    const href = format(["compile", row.index]);
    add("compilation", `${row.compile_id} ${row.function ?? ""}`, numbers.seconds(row.compile_s), href);
  }
  for (const { name, symbol, graph, aten_ops } of kernels)
    if (!app.kernelOf(symbol))
      add("generated kernel", name, aten_ops.join(", "), format(["code"], { graph, kernel: name }));
  const line = (file: string, number: number, code: string): void =>
    add("line", `${file}:${number} ${code}`, code.trim(), app.lineHref(file, number), place(file, number));
  const known = new Set<string>();
  programLines(app).forEach((row) => {
    known.add(`${row.file}:${row.line}`);
    line(row.file, row.line, row.code);
  });
  for (const { path, text } of report.page?.program ?? [])
    text.split("\n").forEach((code, at) => {
      if (code.trim() && !known.has(`${path}:${at + 1}`)) line(path, at + 1, code);
    });
  if (store) {
    const first = new Map<number, number>();
    for (let row = 0; row < store.length; row++)
      if (!first.has(store.name[row]!)) first.set(store.name[row]!, row);
    first.forEach((row, code) => {
      const { name, kind } = store.names[code]!;
      add(kind, name, "in the timeline", format([app.timeline], { n: name, k: row }));
    });
  }
  return found;
}

/** What an entry is called: what was searched for is among it, however long the name is. */
function matched({ shown, whole }: Entry, wanted: string[]): Child {
  const found = (text: string): number => text.toLowerCase().indexOf(wanted[0]!);
  const name = found(shown) < 0 ? whole : shown;
  const from = found(name);
  if (name.length <= WIDE || from < 0) return shorten(name, WIDE);
  const start = Math.min(Math.max(from - WIDE / 3, 0), name.length - WIDE);
  return [start > 0 && "…", printable(name.slice(start, start + WIDE)), start + WIDE < name.length && "…"];
}

export function searching(app: App): { element: HTMLElement; open: () => void } {
  let all: Entry[] | null = null;
  const results = h("ol.results");
  const input = h("input", {
    type: "search",
    placeholder: "kernels, ops, lines, findings, steps, …",
    "aria-label": "search everything",
    onInput: () => narrow(),
  });
  const element = dialog("search", "search", input, results);
  const narrow = (): void => {
    const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
    const fits = (all ?? []).filter((entry) => words.every((word) => entry.text.includes(word)));
    const here = `#${app.timeline}`; // who searches from the timeline stays there
    const stays = (entry: Entry) => Number(entry.href.startsWith(here));
    if (location.hash.startsWith(here)) fits.sort((a, b) => stays(b) - stays(a));
    const left = fits.length - MOST;
    const rest = left > 0 ? `and ${numbers.count(left)} more` : fits.length ? "" : "nothing has that name";
    const onClick = () => element.close();
    const door = ({ href, kind, more }: Entry, name: Child): HTMLElement =>
      h("a", { href, onClick }, h("small", kind), h("span.mono", name), h("small", shorten(more, 60)));
    const found = fits.slice(0, MOST).map((entry) => h("li", door(entry, matched(entry, words))));
    fill(results, words.length > 0 && [found, h("li.soft", rest)]);
  };
  element.addEventListener("keydown", (event) => {
    const links = [...results.querySelectorAll("a")];
    const at = links.indexOf(document.activeElement as HTMLAnchorElement);
    if (event.key === "Enter" && at < 0 && links[0]) links[0].click();
    else if (event.key === "ArrowDown") links[Math.min(at + 1, links.length - 1)]?.focus();
    else if (event.key === "ArrowUp") (links[at - 1] ?? input).focus();
    else return;
    event.preventDefault();
  });
  return {
    element,
    open: () => {
      all ??= entries(app);
      element.showModal();
      input.select();
      narrow();
    },
  };
}
