// What torch.compile did: when, of what, where it gave up, and what became of the graphs.
import type { App } from "../app.ts";
import { copyButton, h, type Child } from "../dom.ts";
import type { Compilation, Frame, GraphBreak } from "../document.ts";
import { place, shorten } from "../names.ts";
import * as numbers from "../numbers.ts";
import { bar } from "../plot.ts";
import { format } from "../route.ts";
import { table } from "../table.ts";
import { generated } from "./kernel.ts";

const seconds = (s: number): string => numbers.time(s * 1e6);
const known = (value: number | null, write: (value: number) => string): string =>
  value === null ? "–" : write(value);
const PHASES: [keyof Frame, string, string][] = [
  ["dynamo_s", "Dynamo", "#4c8dd6"],
  ["aot_s", "AOTAutograd", "#8e6fd8"],
  ["inductor_s", "Inductor", "#2fa39a"],
  ["codegen_s", "code generation", "#6aa84f"],
  ["triton_s", "Triton", "#e08a3c"],
  ["autotune_s", "autotuning", "#c9a227"],
  ["cudagraphs_s", "CUDA graphs", "#a98a1f"],
  ["backward_s", "backward graph", "#c2559d"],
];

export function compile(app: App): Child {
  const facts = app.report.compilation;
  return [
    h("h1", {}, "What torch.compile did"),
    facts && h("p", { class: "lead" }, app.sentences.compilation),
    facts && [
      facts.notes.map((note) => h("p", { class: "note" }, note)),
      failures(app, facts),
      frames(app, facts),
      breaks(app, facts),
      recompilations(app, facts),
      graphs(app, facts),
      compiledKernels(app, facts),
      autotuning(facts),
    ],
    calledGraphs(app),
  ];
}

function section(title: string, about: Child, ...children: Child[]): HTMLElement {
  return h("section", {}, h("header", {}, h("h2", {}, title), h("p", {}, about)), children);
}

function line(app: App, file: string | null, number: number | null): Child {
  return (
    file !== null &&
    h(
      "a",
      { class: "door mono", href: app.lineHref(file, number), title: `${file}:${number ?? ""}` },
      place(file, number),
    )
  );
}

function failures(app: App, facts: Compilation): Child {
  return (
    facts.failures.length > 0 &&
    section(
      "Failures",
      "",
      facts.failures.map((row) =>
        h(
          "article",
          { class: "finding high" },
          h("h3", {}, `${row.compile_id} ${row.type}`),
          h("p", {}, line(app, row.file, row.line), " ", shorten(row.reason, 600)),
          row.code && h("pre", {}, row.code),
          h(
            "p",
            { class: "soft" },
            row.effect,
            row.hints.map((hint) => h("span", {}, ` → ${hint}`)),
          ),
        ),
      ),
    )
  );
}

/** One bar a compilation, as long as it took, divided into phases. */
function frames(app: App, facts: Compilation): Child {
  const most = Math.max(...facts.frames.map((row) => row.compile_s), 1e-9);
  const phases = (row: Frame) =>
    PHASES.map(([key, label, colour]) => ({
      label: `${label}: ${seconds(row[key] as number)}`,
      share: (row[key] as number) / most,
      colour,
    }));
  return section(
    "Compilations",
    `${numbers.count(facts.frames.length, "compilation")}, ${seconds(facts.compile_s)} in all`,
    h(
      "ul",
      { class: "legend" },
      PHASES.map(([, label, colour]) =>
        h("li", {}, h("span", { class: "dot", style: { background: colour } }), label),
      ),
    ),
    table(
      facts.frames,
      [
        {
          label: "compiled",
          value: (row) => String(row.index).padStart(6),
          cell: (row) => [
            h("span", { class: "mono" }, row.compile_id),
            row.status !== "ok" && h("small", {}, row.status),
          ],
        },
        {
          label: "function",
          value: (row) => row.function ?? "",
          cell: (row) => [
            h("span", { class: "mono" }, shorten(row.function ?? "?", 60)),
            h("small", {}, line(app, row.file, row.line)),
            row.failure && h("small", {}, shorten(row.failure, 200)),
          ],
        },
        { label: "by", value: (row) => row.backend, cell: (row) => how(row) },
        {
          label: "phases",
          value: () => "",
          cell: (row) =>
            h("span", { class: "phases" }, bar(`phases of ${row.compile_id}`, phases(row), true)),
        },
        { label: "compiling", value: (row) => row.compile_s, cell: (row) => seconds(row.compile_s) },
        { label: "guards", value: (row) => row.guards, cell: (row) => known(row.guards, numbers.count) },
        {
          label: "device time",
          value: (row) => row.device_time_us,
          cell: (row) => known(row.device_time_us, numbers.time),
        },
        {
          label: "of peak",
          value: (row) => row.speed_of_light,
          cell: (row) => known(row.speed_of_light, numbers.percent),
        },
      ],
      {
        id: "frames",
        label: "compilations",
        most: 60,
        filter: (row) => `${row.compile_id} ${row.function ?? ""} ${row.file ?? ""} ${row.status}`,
      },
    ),
  );
}

function how(row: Frame): string {
  if (row.backend === "none") return "";
  const mode = ["none", "unknown"].includes(row.mode) ? "" : ` (${row.mode})`;
  return shorten(
    `${row.backend}${mode}${row.cudagraphs === "off" ? "" : `, CUDA graphs ${row.cudagraphs}`}`,
    160,
  );
}

function breaks(app: App, facts: Compilation): Child {
  const extra = (row: GraphBreak) =>
    row.extra_launches === null
      ? "–"
      : numbers.count(row.extra_launches) +
        (row.extra_launches_per_step === null
          ? ""
          : `, ${+row.extra_launches_per_step.toPrecision(3)} a step`);
  return (
    facts.graph_breaks.length > 0 &&
    section(
      "Graph breaks",
      "where Python took over, and what it cost",
      facts.graph_breaks.map((row) =>
        h(
          "article",
          { class: "finding medium" },
          h(
            "div",
            { class: "finding-head" },
            h("h3", {}, line(app, row.file, row.line), " ", shorten(row.reason, 200)),
            h("div", { class: "saves" }, row.idle_us ? `${numbers.time(row.idle_us)} idle` : ""),
          ),
          row.code && h("pre", {}, row.code),
          h("p", {}, shorten(row.explanation, 600)),
          row.hints.length > 0 &&
            h(
              "ul",
              {},
              row.hints.slice(0, 4).map((hint) => h("li", {}, shorten(hint, 400))),
            ),
          h(
            "p",
            { class: "soft" },
            `${numbers.count(row.count)} × · retraced ${seconds(row.cost_s)} · crossed ${known(row.crossings, numbers.count)} · extra launches ${extra(row)}`,
          ),
        ),
      ),
    )
  );
}

function recompilations(app: App, facts: Compilation): Child {
  return (
    facts.recompilations.length > 0 &&
    section(
      "Recompilations",
      "which guard failed, and what it cost",
      facts.recompilations.map((row) =>
        h(
          "article",
          { class: "finding medium" },
          h(
            "div",
            { class: "finding-head" },
            h("h3", {}, `${row.compile_id} ${row.function ?? ""} `, line(app, row.file, row.line)),
            h("div", { class: "saves" }, seconds(row.cost_s)),
          ),
          h(
            "ul",
            {},
            row.reasons
              .slice(0, 4)
              .map((reason) =>
                h(
                  "li",
                  {},
                  h("code", {}, shorten(reason.guard, 300)),
                  h("small", {}, ` guard of ${reason.of} `),
                  line(app, reason.file, reason.line),
                  reason.code && h("code", {}, ` ${shorten(reason.code, 120)}`),
                ),
              ),
          ),
          h(
            "p",
            {},
            shorten(row.advice, 500),
            row.limit_hit && " The limit is reached: it runs eagerly from here on.",
          ),
        ),
      ),
    )
  );
}

function graphs(app: App, facts: Compilation): Child {
  const source = new Set(app.report.page?.modules.map((module) => module.graph));
  return (
    facts.graphs.length > 0 &&
    section(
      "Graphs",
      "what a backend turned into code; fusion: nodes before and after each round",
      table(
        facts.graphs,
        [
          {
            label: "graph",
            value: (row) => String(row.index).padStart(6),
            cell: (row) =>
              source.has(row.index)
                ? h(
                    "a",
                    { class: "door", href: format(["code"], { graph: row.index }) },
                    `${row.compile_id} ${row.direction}`,
                  )
                : `${row.compile_id} ${row.direction}`,
          },
          {
            label: "ops",
            value: (row) => row.ops,
            cell: (row) =>
              h(
                "span",
                {
                  title: Object.entries(row.op_counts)
                    .sort((a, b) => b[1] - a[1])
                    .slice(0, 12)
                    .map(([op, count]) => `${op} ×${count}`)
                    .join(", "),
                },
                numbers.count(row.ops),
              ),
          },
          { label: "kernels", value: (row) => row.kernels, cell: (row) => numbers.count(row.kernels) },
          {
            label: "fusion",
            value: (row) => row.fusion?.rounds.length ?? null,
            cell: (row) =>
              row.fusion?.rounds.map((round) => `${round.before} → ${round.after}`).join(", ") ?? "–",
          },
          {
            label: "not fused",
            value: (row) => row.fusion?.not_fused.reduce((sum, one) => sum + one.count, 0) ?? null,
            cell: (row) =>
              row.fusion?.not_fused
                .slice(0, 3)
                .map((one) => h("small", {}, `${one.count} × ${shorten(one.why, 80)}`)) ?? "–",
          },
          {
            label: "saved",
            title: "for backward",
            value: (row) => row.saved_bytes,
            cell: (row) => known(row.saved_bytes, numbers.size),
          },
          {
            label: "device time",
            value: (row) => row.device_time_us,
            cell: (row) => known(row.device_time_us, numbers.time),
          },
          {
            label: "of peak",
            value: (row) => row.speed_of_light,
            cell: (row) => known(row.speed_of_light, numbers.percent),
          },
        ],
        { id: "graphs", label: "graphs", most: 60 },
      ),
    )
  );
}

function compiledKernels(app: App, facts: Compilation): Child {
  const rows = facts.kernels.toSorted((a, b) => (b.device_time_us ?? 0) - (a.device_time_us ?? 0));
  return (
    rows.length > 0 &&
    section(
      "Generated kernels",
      "each with its source, and the lines it computes",
      table(
        rows,
        [
          {
            label: "kernel",
            value: (row) => row.name,
            cell: (row) => {
              const there = app.kernelOf(row.symbol) ?? app.kernelOf(row.name);
              const module = app.report.page?.modules.some((one) => one.graph === row.graph);
              return [
                h(
                  "a",
                  {
                    class: "door mono",
                    href: there
                      ? app.kernelHref(there.name)
                      : module
                        ? format(["code"], { graph: row.graph, kernel: row.name })
                        : "#compile",
                  },
                  shorten(row.name, 80),
                ),
                h(
                  "small",
                  {},
                  row.source
                    .slice(0, 3)
                    .map((one) => [
                      line(app, one.file, one.line),
                      " ",
                      h("code", {}, shorten(one.code.trim(), 70)),
                      h("br"),
                    ]),
                ),
                module && lazySource(app, row),
              ];
            },
          },
          {
            label: "graph",
            value: (row) => row.compile_id + row.direction,
            cell: (row) => `${row.compile_id} ${row.direction}`,
          },
          { label: "category", value: (row) => row.category, cell: (row) => row.category },
          {
            label: "aten ops",
            value: (row) => row.aten_ops.join(" "),
            cell: (row) => shorten(row.aten_ops.join(", "), 120),
          },
          {
            label: "device time",
            value: (row) => row.device_time_us,
            cell: (row) => known(row.device_time_us, numbers.time),
          },
          {
            label: "launches",
            value: (row) => row.launches,
            cell: (row) => known(row.launches, numbers.count),
          },
          {
            label: "of peak",
            value: (row) => row.speed_of_light,
            cell: (row) => known(row.speed_of_light, numbers.percent),
          },
        ],
        {
          id: "compiled-kernels",
          label: "generated kernels",
          most: 60,
          filter: (row) =>
            `${row.name} ${row.category} ${row.aten_ops.join(" ")} ${row.source.map((one) => `${one.file}:${one.line} ${one.code}`).join(" ")}`,
        },
      ),
    )
  );
}

function lazySource(app: App, row: Compilation["kernels"][number]): HTMLElement {
  const details = h("details", {}, h("summary", {}, "source"));
  details.addEventListener("toggle", () => {
    const text = details.childElementCount === 1 && generated(app, row);
    if (text) details.append(copyButton(text, "the source"), h("pre", { class: "code" }, text));
  });
  return details;
}

function autotuning(facts: Compilation): Child {
  return (
    facts.autotune.length > 0 &&
    section(
      "Autotuning",
      "what was chosen among implementations",
      table(
        facts.autotune,
        [
          { label: "op", value: (row) => row.op, cell: (row) => [row.op, h("small", {}, row.shape)] },
          { label: "choices", value: (row) => row.choices, cell: (row) => known(row.choices, numbers.count) },
          { label: "best", value: (row) => row.best, cell: (row) => shorten(row.best ?? "–", 60) },
          {
            label: "time",
            value: (row) => row.best_ms,
            cell: (row) => known(row.best_ms, (ms) => numbers.time(ms * 1000)),
          },
          {
            label: "best of Triton",
            value: (row) => row.best_triton_ms,
            cell: (row) => known(row.best_triton_ms, (ms) => numbers.time(ms * 1000)),
          },
        ],
        { label: "autotuning" },
      ),
    )
  );
}

function calledGraphs(app: App): Child {
  const rows = app.report.graphs.map((row, at) => ({ ...row, label: app.sentences.graph_labels[at]! }));
  return (
    rows.length > 0 &&
    section(
      "Graphs that ran",
      "each call is one run of the generated code",
      table(
        rows,
        [
          {
            label: "graph",
            value: (row) => row.label,
            cell: (row) =>
              h(
                "a",
                { class: "door", href: format(["kernels"], { graph: row.graph }), title: row.graph },
                row.label,
              ),
          },
          {
            label: "device time",
            value: (row) => row.device_time_us,
            cell: (row) => numbers.time(row.device_time_us),
          },
          {
            label: "share",
            value: (row) => row.share_of_device_time,
            cell: (row) => numbers.percent(row.share_of_device_time),
          },
          { label: "calls", value: (row) => row.calls, cell: (row) => numbers.count(row.calls) },
          { label: "launches", value: (row) => row.launches, cell: (row) => numbers.count(row.launches) },
          {
            label: "by category",
            value: () => "",
            cell: (row) =>
              bar(
                "by category",
                row.categories.map((part) => ({
                  label: `${part.category}: ${numbers.percent(part.share_of_graph)}`,
                  share: part.share_of_graph,
                  colour: app.palette.category(part.category),
                })),
                true,
              ),
          },
        ],
        { id: "called-graphs", label: "graphs that ran" },
      ),
    )
  );
}
