// One kernel: how long it takes, where it comes from, what it computes, its source.
import type { App } from "../app.ts";
import { inline } from "../blocks.ts";
import { code } from "../code.ts";
import { chained, type Child, copyButton, facts, folded, given, h } from "../dom.ts";
import { link, list, monoLink, para, soft, titled } from "../dom.ts";
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
    costed = numbers.count(row.speed_of_light === null ? row.launches : row.costed_launches, "launch");
  return [
    ["device time", `${numbers.time(row.device_time_us)}, ${numbers.percent(row.share_of_device_time)}`],
    ["launches", numbers.count(row.launches)],
    ["median", numbers.time(row.median_us)],
    ["p90", numbers.time(row.p90_us)],
    ["min–max", numbers.span(row.min_us, row.max_us)],
    ["of speed of light", given(row.of_peak, (of) => `${numbers.percent(of)} (${costed} costed)`)],
    ["could save at most", given(saving, (us) => `${numbers.time(us)}, were it as fast as the device`)],
    ["bytes", given(row.bytes, (bytes) => numbers.moved(bytes, seconds))],
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
  const findings = app.report.findings.flatMap(({ kernels, title }, finding): Child[] => {
    const door = link(format(["overview"], { finding }), title);
    return kernels.includes(row.name) ? [[door, " ", inline(app, app.sentences.savings[finding]!)]] : [];
  });
  const ops = row.ops.map(({ name, launches, device_time_us }): Child => {
    const href = format(["kernels"], { by: "op", in: name });
    const figures = ` ×${numbers.count(launches)}, ${numbers.time(device_time_us)}`;
    return [monoLink(href, app.event(name), app.report.page?.meanings?.[name]), figures];
  });
  return [
    findings.length > 0 && titled("Findings about it", "", list(null, findings)),
    ops.length > 0 && titled("Ops that launch it", "", list(null, ops)),
  ];
}

/** What `kinetoscope bench` measured of it, alone. */
function bench(app: App, row: KernelRow): Child {
  const found = app.report.page?.benches?.find((one) => one.name === row.name);
  if (!found) return null;
  const { cold_ns: cold, hot_ns: hot, configuration, could_win_ns: win } = found;
  const between = ([low, , high]: number[]): string => numbers.span(low! / 1000, high! / 1000);
  const samples = numbers.count(found.samples, "sample");
  const settings = (of: object): string[] => Object.entries(of).map(([key, value]) => `${key}=${value}`);
  return titled(
    "Measured alone",
    "by kinetoscope bench",
    facts([
      ["caches cold", cold && `${numbers.ns(cold[1])}, p10–p90 ${between(cold)}, ${samples}`],
      ["in the program", numbers.time(row.median_us)],
      ["caches warm", hot && numbers.ns(hot)],
      ["moved", cold && numbers.moved(found.bytes, cold[1] / 1e9)],
      ["tuning could win", win && `${numbers.ns(win)} in a run`],
      ["configuration", given(configuration, (of) => settings(of).join(" "))],
      ["registers, spills", given(found.registers, (registers) => `${registers}, ${found.spills ?? 0}`)],
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

function generated(app: App, kernel: CompiledKernel): string | null {
  const module = app.report.page?.modules.find((one) => one.graph === kernel.graph);
  const place = module?.kernels.find((one) => one.name === kernel.name);
  const lines = module?.code.split("\n") ?? [];
  return place ? lines.slice(place.first_line - 1, place.last_line).join("\n") : null;
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
      sorted.slice(0, WAYS).map(({ path, works, time }, place) => {
        const names = path.map((name) => app.event(name));
        const inner = names.slice(-3, -1).join(" › ") || "its launch was not recorded";
        return h(
          "details",
          { open: place === 0 },
          h(
            "summary",
            `${numbers.time(time)} in ${numbers.count(works.length, "launch")}: `,
            h("span.mono", shorten(inner, 100)),
          ),
          chained(names.map((name) => shorten(name, 140))),
          h("p", link(app.rowHref(store.work[works[works.length >> 1]!]!), "one of them in the timeline")),
        );
      }),
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
  const door = (at: number): Child => [
    link(app.rowHref(at), numbers.ns(store.duration[at]!)),
    h("small", ` at ${numbers.ns(store.start[at]!)}`),
  ];
  return (
    rows.length > 0 &&
    titled(
      "Longest launches",
      link(format(["timeline"], { n: row.name, k: rows[0]! }), "all of them, lit in the timeline"),
      chained(rows.slice(0, LONGEST).map(door)),
    )
  );
}
