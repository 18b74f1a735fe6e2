// What torch.compile did: when, of what, where it gave up, and what became of the graphs.
import type { App } from "../app.ts";
import type { Compilation, Frame } from "../compilation.ts";
import { h, titled, type Child } from "../dom.ts";
import { lineDoor } from "../doors.ts";
import { shorten } from "../names.ts";
import * as numbers from "../numbers.ts";
import { bar } from "../plot.ts";
import { figure, table } from "../table.ts";
import { autotuning, calledGraphs, compiledKernels, graphs } from "./graphs.ts";
import { breaks, failures, recompilations } from "./troubles.ts";

const PHASES: [keyof Frame, string, string][] = [
  ["dynamo_s", "Dynamo", "#4c8dd6"],
  ["aot_s", "AOTAutograd", "#8e6fd8"],
  ["inductor_s", "Inductor", "#2fa39a"],
  ["codegen_s", "code generation", "#6aa84f"],
  ["triton_s", "generated kernels", "#e08a3c"],
  ["autotune_s", "autotuning", "#c9a227"],
  ["cudagraphs_s", "CUDA graphs", "#a98a1f"],
  ["backward_s", "backward graph", "#c2559d"],
];

export function compile(app: App): Child {
  const { compilation } = app.report;
  return [
    h("h1", {}, "What torch.compile did"),
    compilation && h("p", { class: "lead" }, app.sentences.compilation),
    compilation && compileParts(app, compilation),
    calledGraphs(app),
  ];
}

export function compileParts(app: App, facts: Compilation): Child {
  return [
    facts.notes.map((note) => h("p", { class: "note" }, note)),
    failures(app, facts),
    frames(app, facts),
    breaks(app, facts),
    recompilations(app, facts),
    graphs(app, facts),
    compiledKernels(app, facts),
    autotuning(facts),
  ];
}

/** One bar a compilation, as long as it took, divided into phases. */
function frames(app: App, facts: Compilation): Child {
  const most = Math.max(...facts.frames.map((row) => row.compile_s), 1e-9);
  const phases = (row: Frame) =>
    PHASES.map(([key, label, colour]) => ({
      label: `${label}: ${numbers.seconds(row[key] as number)}`,
      share: (row[key] as number) / most,
      colour,
    }));
  return titled(
    "Compilations",
    `${numbers.count(facts.frames.length, "compilation")}, ${numbers.seconds(facts.compile_s)} in all`,
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
            h("small", {}, lineDoor(app, row.file, row.line)),
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
        { label: "compiling", value: (row) => row.compile_s, cell: (row) => numbers.seconds(row.compile_s) },
        figure("guards", (row) => row.guards, numbers.count),
        figure("device time", (row) => row.device_time_us, numbers.time),
        figure("of peak", (row) => row.speed_of_light, numbers.percent),
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
