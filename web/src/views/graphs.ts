// What became of the graphs: their code, their kernels, and how they ran.
import type { App } from "../app.ts";
import type { Compilation } from "../document.ts";
import { type Child, copyButton, h, link, monoLink, titled } from "../dom.ts";
import { format, lineDoor } from "../links.ts";
import { shorten } from "../names.ts";
import * as numbers from "../numbers.ts";
import { figure, table } from "../table.ts";
import { generated } from "./kernel.ts";

export function graphs(app: App, facts: Compilation): Child {
  const source = new Set(app.report.page?.modules.map((module) => module.graph));
  return (
    facts.graphs.length > 0 &&
    titled(
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
                ? link(format(["code"], { graph: row.index }), `${row.compile_id} ${row.direction}`)
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
          figure("kernels", (row) => row.kernels, numbers.count),
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
                .map((one) => h("small", { title: one.why }, `${one.count} × ${shorten(one.why, 36)}`)) ??
              "–",
          },
          {
            ...figure(
              "saved",
              (row) => row.saved_bytes,
              numbers.size,
              "for backward, which may write over what is donated, and computes some again instead",
            ),
            cell: savedCell,
          },
          figure("device time", (row) => row.device_time_us, numbers.time),
          figure("of peak", (row) => row.speed_of_light, numbers.percent),
        ],
        { id: "graphs", label: "graphs", most: 60 },
      ),
    )
  );
}

type Graph = Compilation["graphs"][number];

/** What the backward pass may write over (donated), and what it computes again instead. */
function savedCell(row: Graph): Child {
  const donated = row.saved.filter((one) => one.donated),
    bytes = donated.reduce((sum, one) => sum + (one.bytes ?? 0), 0);
  return [
    numbers.known(row.saved_bytes, numbers.size),
    donated.length > 0 && h("small", {}, `${numbers.size(bytes)} donated`),
    row.rematerialised.length > 0 &&
      h("small", {}, `${numbers.known(row.rematerialised_bytes, numbers.size)} computed again`),
  ];
}

export function compiledKernels(app: App, facts: Compilation): Child {
  const rows = facts.kernels.toSorted((a, b) => (b.device_time_us ?? 0) - (a.device_time_us ?? 0));
  return (
    rows.length > 0 &&
    titled(
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
                monoLink(
                  there
                    ? app.kernelHref(there.name)
                    : module
                      ? format(["code"], { graph: row.graph, kernel: row.name })
                      : "#compile",
                  shorten(row.name, 80),
                ),
                h(
                  "small",
                  {},
                  row.source
                    .slice(0, 3)
                    .map((one) => [
                      lineDoor(app, one.file, one.line),
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
          figure("device time", (row) => row.device_time_us, numbers.time),
          figure("launches", (row) => row.launches, numbers.count),
          figure("of peak", (row) => row.speed_of_light, numbers.percent),
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

export function autotuning(facts: Compilation): Child {
  return (
    facts.autotune.length > 0 &&
    titled(
      "Autotuning",
      "what was chosen among implementations",
      table(
        facts.autotune,
        [
          { label: "op", value: (row) => row.op, cell: (row) => [row.op, h("small", {}, row.shape)] },
          figure("choices", (row) => row.choices, numbers.count),
          { label: "best", value: (row) => row.best, cell: (row) => shorten(row.best ?? "–", 60) },
          {
            label: "time",
            value: (row) => row.best_ms,
            cell: (row) => numbers.known(row.best_ms, (ms) => numbers.time(ms * 1000)),
          },
          {
            label: "best of Triton",
            value: (row) => row.best_triton_ms,
            cell: (row) => numbers.known(row.best_triton_ms, (ms) => numbers.time(ms * 1000)),
          },
        ],
        { label: "autotuning" },
      ),
    )
  );
}
