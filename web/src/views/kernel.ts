// One kernel: how long it takes, where it comes from, what it computes, its source.
import type { App } from "../app.ts";
import { inline } from "../blocks.ts";
import { code } from "../code.ts";
import {
  chained,
  type Child,
  copyButton,
  facts,
  folded,
  h,
  link,
  list,
  monoLink,
  para,
  soft,
  titled,
} from "../dom.ts";
import type { CompiledKernel, KernelRow } from "../document.ts";
import { shorten } from "../names.ts";
import * as numbers from "../numbers.ts";
import { caption, histogram, sparkline } from "../plot.ts";
import { format, lineDoor, sourceDoor } from "../links.ts";
import { path } from "../timeline/chain.ts";
import { graphLabel } from "./kernels.ts";

const WAYS = 12,
  LONGEST = 10;

export function kernel(app: App, index: number): Child {
  const row = app.report.kernels[index];
  if (!row) return [h("h1", "There is no such kernel"), h("p", h("a", { href: "#kernels" }, "all kernels"))];
  const compiled = app.compiledOf(row.name),
    shown = shorten(row.short_name, 110),
    copy = copyButton(row.name, "the whole name");
  return [
    soft(
      h("a", { href: "#kernels" }, "kernels"),
      " / ",
      h("a", { href: format(["kernels"], { category: row.category }) }, row.category),
    ),
    h("h1", { class: "mono", title: row.name }, shown, " ", shown === row.name && copy),
    shown !== row.name && para("full mono", row.name, " ", copy),
    h("section", facts(numbersOf(app, row, compiled[0])), launches(app, row)),
    about(app, row),
    bench(app, row),
    source(app, compiled),
    ways(app, row),
    longest(app, row),
  ];
}

function numbersOf(app: App, row: KernelRow, compiled: CompiledKernel | undefined): [string, Child][] {
  const seconds = row.device_time_us / 1e6,
    saving = row.could_save_us,
    costed = row.speed_of_light === null ? row.launches : row.costed_launches;
  return [
    ["device time", `${numbers.time(row.device_time_us)}, ${numbers.percent(row.share_of_device_time)}`],
    ["launches", numbers.count(row.launches)],
    ["median", numbers.time(row.median_us)],
    ["p90", numbers.time(row.p90_us)],
    ["min–max", numbers.span(row.min_us, row.max_us)],
    [
      "of speed of light",
      row.of_peak !== null && `${numbers.percent(row.of_peak)} (${numbers.count(costed, "launch")} costed)`,
    ],
    ["could save at most", saving === null ? null : `${numbers.time(saving)}, were it as fast as the device`],
    [
      "bytes",
      row.bytes === null ? null : `${numbers.size(row.bytes)}, ${numbers.rate(row.bytes / seconds, "B")}`,
    ],
    ["FLOPs", row.flops ? numbers.rate(row.flops / seconds, "FLOP") : null],
    ["bound by", compiled?.bound],
    ["configuration", compiled?.config],
    ["registers a thread", compiled?.registers],
    ["spills", compiled?.spills],
    ["graph", row.graph && link(format(["kernels"], { graph: row.graph }), graphLabel(app, row.graph))],
    ["first line", row.source && sourceDoor(app, row.source)],
  ];
}

function launches(app: App, row: KernelRow): Child {
  const durations = app.times(row.name);
  if (durations.length < 2) return null;
  const { counts, low, high } = histogram(durations, 60);
  return h(
    "figure.histogram",
    sparkline(counts, app.palette.category(row.category), "launches by time", 600, 80),
    caption(
      numbers.time(low),
      `${numbers.count(durations.length)} launches by time, logarithmic`,
      numbers.time(high),
    ),
  );
}

function about(app: App, row: KernelRow): Child {
  const findings = app.report.findings
    .map((one, index) => ({ one, index }))
    .filter(({ one }) => one.kernels.includes(row.name));
  return [
    findings.length > 0 &&
      titled(
        "Findings about it",
        "",
        list(
          null,
          findings.map(({ one, index }) => [
            link(format(["overview"], { finding: index }), one.title),
            " ",
            inline(app, app.sentences.savings[index]!),
          ]),
        ),
      ),
    row.ops.length > 0 &&
      titled(
        "Ops that launch it",
        "",
        list(
          null,
          row.ops.map(({ name, launches, device_time_us }) => [
            monoLink(
              format(["kernels"], { by: "op", in: name }),
              app.event(name),
              app.report.page?.meanings?.[name],
            ),
            ` ×${numbers.count(launches)}, ${numbers.time(device_time_us)}`,
          ]),
        ),
      ),
  ];
}

/** What `kinetoscope bench` measured of it, alone. */
function bench(app: App, row: KernelRow): Child {
  const found = app.report.page?.benches?.find((one) => one.name === row.name);
  if (!found) return null;
  const { cold_ns: cold, hot_ns: hot, configuration, could_win_ns: win } = found;
  return titled(
    "Measured alone",
    "by kinetoscope bench",
    facts([
      [
        "caches cold",
        cold &&
          `${numbers.ns(cold[1])}, p10–p90 ${numbers.span(cold[0] / 1000, cold[2] / 1000)}, ${numbers.count(found.samples, "sample")}`,
      ],
      ["in the program", numbers.time(row.median_us)],
      ["caches warm", hot && numbers.ns(hot)],
      ["moved", cold && `${numbers.size(found.bytes)}, ${numbers.rate(found.bytes / (cold[1] / 1e9), "B")}`],
      ["tuning could win", win && `${numbers.ns(win)} in a run`],
      [
        "configuration",
        configuration &&
          Object.entries(configuration)
            .map(([key, value]) => `${key}=${value}`)
            .join(" "),
      ],
      ["registers, spills", found.registers === null ? null : `${found.registers}, ${found.spills ?? 0}`],
      ["computes what it should", found.reference],
      ["failed", found.error],
    ]),
  );
}

/** The program's lines that it computes, next to what was generated of them. */
function source(app: App, compiled: CompiledKernel[]): Child {
  return compiled.slice(0, 3).map((kernel) => {
    const text = generated(app, kernel);
    return titled(
      "Source",
      `generated for graph ${kernel.compile_id} ${kernel.direction}`,
      h(
        "div.side-by-side",
        h(
          "div",
          h("h3", "computes"),
          list(
            "lines",
            kernel.source.map(({ file, line, code }) => [lineDoor(app, file, line), h("code", code)]),
            "ol",
          ),
          soft(
            kernel.aten_ops.map((op) => [
              h("span", { title: app.report.compilation?.glossary[op] ?? "" }, op),
              " ",
            ]),
          ),
        ),
        h(
          "div",
          h("h3", "generated", text && [" ", copyButton(text, "the source")]),
          text ? withFolded(text) : soft("The log has no source of it."),
          h("p", link(format(["code"], { graph: kernel.graph, kernel: kernel.name }), "in its module")),
        ),
      ),
    );
  });
}

/** The code, with the comments that Inductor wrote above it folded. */
function withFolded(text: string): Child {
  const lines = text.split("\n");
  const first = Math.max(
    lines.findIndex((line) => !line.startsWith("#")),
    0,
  );
  return [
    first > 0 &&
      folded(
        [numbers.count(first, "line"), " of comments: its nodes and graph"],
        code(lines.slice(0, first).join("\n")),
      ),
    code(lines.slice(first).join("\n")),
  ];
}

export function generated(app: App, kernel: CompiledKernel): string | null {
  const module = app.report.page?.modules.find((one) => one.graph === kernel.graph);
  const lines = module?.kernels.find((one) => one.name === kernel.name);
  return lines
    ? module!.code
        .split("\n")
        .slice(lines.first_line - 1, lines.last_line)
        .join("\n")
    : null;
}

/** The ways in which its launches came about, the most time first. */
function ways(app: App, row: KernelRow): Child {
  const { store } = app;
  if (!store) return null;
  const found = new Map<string, { path: string[]; works: number[]; time: number }>();
  for (const work of app.works(row.name)) {
    const names = path(store, work),
      key = names.join("\n");
    const way = found.get(key) ?? { path: names, works: [], time: 0 };
    way.works.push(work);
    way.time += store.duration[store.work[work]!]! / 1000;
    found.set(key, way);
  }
  const sorted = [...found.values()].sort((a, b) => b.time - a.time);
  return (
    sorted.length > 0 &&
    titled(
      "How it comes about",
      numbers.count(sorted.length, "way"),
      sorted.slice(0, WAYS).map((way) =>
        h(
          "details",
          { open: way === sorted[0] },
          h(
            "summary",
            `${numbers.time(way.time)} in ${numbers.count(way.works.length, "launch")}: `,
            h(
              "span.mono",
              shorten(
                way.path
                  .slice(-3, -1)
                  .map((name) => app.event(name))
                  .join(" › ") || "its launch was not recorded",
                100,
              ),
            ),
          ),
          chained(way.path.map((name) => shorten(app.event(name), 140))),
          h(
            "p",
            link(app.rowHref(store.work[way.works[way.works.length >> 1]!]!), "one of them in the timeline"),
          ),
        ),
      ),
      sorted.length > WAYS && soft(`and ${numbers.count(sorted.length - WAYS)} more ways`),
    )
  );
}

function longest(app: App, row: KernelRow): Child {
  const { store } = app;
  if (!store) return null;
  const rows = [...app.works(row.name)]
    .map((work) => store.work[work]!)
    .sort((a, b) => store.duration[b]! - store.duration[a]!);
  return (
    rows.length > 0 &&
    titled(
      "Longest launches",
      link(format(["timeline"], { n: row.name, k: rows[0]! }), "all of them, lit in the timeline"),
      chained(
        rows
          .slice(0, LONGEST)
          .map((at) => [
            link(app.rowHref(at), numbers.ns(store.duration[at]!)),
            h("small", ` at ${numbers.ns(store.start[at]!)}`),
          ]),
      ),
    )
  );
}
