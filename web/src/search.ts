// `/`: everything that has a name, and where it leads.
import type { App } from "./app.ts";
import { words } from "./blocks.ts";
import { fill, h } from "./dom.ts";
import { place, shorten } from "./names.ts";
import * as numbers from "./numbers.ts";
import { format } from "./route.ts";
import { programLines } from "./views/program.ts";

interface Entry {
  kind: string;
  text: string;
  shown: string;
  more: string;
  href: string;
}

const MOST = 40;

function entries(app: App): Entry[] {
  const { report, store } = app;
  const found: Entry[] = [];
  const add = (kind: string, text: string, more: string, href: string | null, shown = text): void => {
    if (href) found.push({ kind, text: text.toLowerCase(), shown, more, href });
  };
  report.findings.forEach((row, index) =>
    add(
      "finding",
      `${row.title} ${row.rule}`,
      words(app.sentences.savings[index] ?? []),
      format(["overview"], { finding: index }),
      row.title,
    ),
  );
  report.kernels.forEach((row, index) =>
    add("kernel", row.name, numbers.time(row.device_time_us), format(["kernels", index]), row.short_name),
  );
  report.categories.forEach((row) =>
    add(
      "category",
      row.category,
      numbers.time(row.device_time_us),
      format(["kernels"], { category: row.category }),
    ),
  );
  report.steps.forEach((row) =>
    add(
      "step",
      row.name,
      numbers.time(row.duration_us),
      app.traceTimeHref(row.start_us, row.start_us + row.duration_us),
    ),
  );
  report.graphs.forEach((row, at) =>
    add(
      "graph",
      `${app.sentences.graph_labels[at]} ${row.graph}`,
      numbers.time(row.device_time_us),
      format(["kernels"], { graph: row.graph }),
      app.sentences.graph_labels[at],
    ),
  );
  report.compilation?.graph_breaks.forEach((row) =>
    add(
      "graph break",
      `${place(row.file, row.line)} ${row.reason}`,
      "",
      row.frame === null ? "#compile" : format(["compile", row.frame]),
    ),
  );
  report.compilation?.frames.forEach((row) =>
    add(
      "compilation",
      `${row.compile_id} ${row.function ?? ""}`,
      numbers.seconds(row.compile_s),
      format(["compile", row.index]),
    ),
  );
  report.compilation?.kernels.forEach((row) => {
    if (!app.kernelOf(row.symbol))
      add(
        "generated kernel",
        row.name,
        row.aten_ops.join(", "),
        format(["code"], { graph: row.graph, kernel: row.name }),
      );
  });
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
    first.forEach((row, code) =>
      add(
        store.names[code]!.kind,
        store.names[code]!.name,
        "in the timeline",
        format([app.timeline], { n: store.names[code]!.name, k: row }),
      ),
    );
  }
  return found;
}

export function searching(app: App): { element: HTMLElement; open: () => void } {
  let all: Entry[] | null = null;
  const results = h("ol", { class: "results" });
  const input = h("input", {
    type: "search",
    placeholder: "kernels, ops, lines, findings, steps, …",
    "aria-label": "search everything",
    onInput: () => narrow(),
  });
  const dialog = h("dialog", { class: "search", "aria-label": "search" }, input, results);
  const narrow = (): void => {
    const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
    const fits = (all ?? []).filter((entry) => words.every((word) => entry.text.includes(word)));
    fill(
      results,
      words.length > 0 &&
        fits
          .slice(0, MOST)
          .map((entry) =>
            h(
              "li",
              {},
              h(
                "a",
                { href: entry.href, onClick: () => dialog.close() },
                h("small", {}, entry.kind),
                h("span", { class: "mono" }, shorten(entry.shown, 90)),
                h("small", {}, shorten(entry.more, 60)),
              ),
            ),
          ),
      words.length > 0 &&
        h(
          "li",
          { class: "soft" },
          fits.length > MOST
            ? `and ${numbers.count(fits.length - MOST)} more`
            : fits.length
              ? ""
              : "nothing has that name",
        ),
    );
  };
  dialog.addEventListener("keydown", (event) => {
    const links = [...results.querySelectorAll("a")];
    const at = links.indexOf(document.activeElement as HTMLAnchorElement);
    if (event.key === "Enter" && at < 0 && links[0]) {
      event.preventDefault();
      links[0].click();
    }
    if (event.key === "ArrowDown") {
      event.preventDefault();
      links[Math.min(at + 1, links.length - 1)]?.focus();
    }
    if (event.key === "ArrowUp") {
      event.preventDefault();
      (links[at - 1] ?? input).focus();
    }
  });
  dialog.addEventListener("click", (event) => event.target === dialog && dialog.close());
  return {
    element: dialog,
    open: () => {
      all ??= entries(app);
      dialog.showModal();
      input.select();
      narrow();
    },
  };
}
