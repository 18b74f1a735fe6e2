// All kernels: sorted, filtered, grouped; a histogram a row; their places under the roofs.
import type { App } from "../app.ts";
import { chip, chips, type Child, h, monoLink, titled } from "../dom.ts";
import type { KernelRow } from "../document.ts";
import { shorten } from "../names.ts";
import * as numbers from "../numbers.ts";
import { bar, histogram, type Part, roofline, sparkline } from "../plot.ts";
import { type Route, categoryDoor, format, parse, sourceDoor } from "../links.ts";
import { figure, shares, table } from "../table.ts";
import { keys } from "../timeline/chain.ts";
import type { Key } from "../timeline/store.ts";

const GROUPS = ["none", "category", "graph", "op", "module", "annotation", "line", "step"] as const;
const FROM_TIMELINE = new Set<string>(["graph", "op", "module", "annotation", "line", "step"]);
const UNKNOWN = "(not known)";
const OF_PEAK = "time at the device's peaks over the time it took",
  COULD_SAVE = "at most: what it takes beyond its time at the device's peaks";

export function kernels(app: App, { parameters }: Route): Child {
  const by = (parameters.get("by") ?? "none") as (typeof GROUPS)[number];
  const category = parameters.get("category"),
    graph = parameters.get("graph"),
    inside = parameters.get("in");
  if (graph && app.store) return kernels(app, parse(format(["kernels"], { by: "graph", in: graph })));
  let rows = app.report.kernels;
  if (category) rows = rows.filter((row) => row.category === category);
  if (graph) rows = rows.filter((row) => row.graph === graph);
  const only = category ?? (graph && graphLabel(app, graph));
  const groups = GROUPS.filter((group) => app.store || !FROM_TIMELINE.has(group));
  return [
    h("h1", only ? `Kernels: ${only}` : "Kernels"),
    chips(
      "group kernels by",
      "grouped by",
      groups.map((group) =>
        chip(format(["kernels"], group === "none" ? {} : { by: group }), group, by === group && !only),
      ),
    ),
    by === "none" || inside
      ? inside && by !== "none"
        ? inGroup(app, by, inside)
        : list(app, rows, parameters.get("q") ?? "")
      : grouped(app, rows, by),
    by === "none" && !only && roofs(app),
  ];
}

function list(app: App, rows: KernelRow[], search: string): Child {
  const most = Math.max(...rows.map((row) => row.share_of_device_time), 1e-9);
  return h(
    "section",
    table(
      rows,
      [
        { label: "kernel", value: (row) => row.name, cell: (row) => name(app, row) },
        shares("share", (row) => [row.share_of_device_time, app.palette.category(row.category)], most),
        figure("device time", (row) => row.device_time_us, numbers.time),
        figure("launches", (row) => row.launches, numbers.count),
        figure("of peak", (row) => row.of_peak, numbers.percent, OF_PEAK),
        figure("could save", (row) => row.could_save_us, numbers.time, COULD_SAVE),
        figure("median", (row) => row.median_us, numbers.time),
        { label: "category", value: (row) => row.category, cell: (row) => categoryDoor(app, row.category) },
        { label: "min–max", value: (row) => row.max_us, cell: (row) => numbers.span(row.min_us, row.max_us) },
        ...(app.store
          ? [{ label: "launches by time", value: () => "", cell: (row: KernelRow) => spark(app, row) }]
          : []),
      ],
      {
        id: "kernels",
        label: "kernels",
        search,
        most: 100,
        filter: ({ name, category, graph, source, ops }) =>
          [name, category, graph, source, ...ops.map((op) => op.name)].join(" "),
      },
    ),
  );
}

function name(app: App, row: KernelRow): Child {
  const ops = row.ops
    .filter((op) => op.name !== row.name)
    .slice(0, 3)
    .map((op) => `${shorten(app.event(op.name), 50)} ×${numbers.count(op.launches)}`);
  return [
    monoLink(app.kernelHref(row.name), shorten(row.short_name, 80), row.name),
    h("small", ops.join(", ")),
    row.source && h("small", sourceDoor(app, row.source)),
  ];
}

function spark(app: App, row: KernelRow): Child {
  const durations = app.times(row.name);
  if (durations.length < 2) return null;
  const { counts, low, high } = histogram(durations, 18);
  return sparkline(
    counts,
    app.palette.category(row.category),
    `${numbers.count(durations.length)} launches from ${numbers.time(low)} to ${numbers.time(high)}`,
  );
}

interface Group {
  key: string;
  time: number;
  launches: number;
  kernels: Map<string, number>;
  categories: Map<string, number>;
}

function groupsOf(app: App, rows: KernelRow[], by: string): Group[] {
  const groups = new Map<string, Group>();
  const add = (key: string, name: string, category: string, time: number, launches: number): void => {
    const nothing = { key, time: 0, launches: 0, kernels: new Map(), categories: new Map() };
    const group: Group = groups.get(key) ?? nothing;
    groups.set(key, group);
    group.time += time;
    group.launches += launches;
    group.kernels.set(name, (group.kernels.get(name) ?? 0) + time);
    group.categories.set(category, (group.categories.get(category) ?? 0) + time);
  };
  const { store } = app;
  if (store && FROM_TIMELINE.has(by))
    keys(store, by as Key | "line").forEach((key, work) => {
      const row = store.work[work]!,
        { name, category } = store.nameOf(row);
      add(key || UNKNOWN, name, category, store.duration[row]! / 1000, 1);
    });
  else for (const row of rows) add(row.category, row.name, row.category, row.device_time_us, row.launches);
  return [...groups.values()].sort((a, b) => b.time - a.time);
}

const most = (times: Map<string, number>): [string, number][] => [...times].sort((a, b) => b[1] - a[1]);

function grouped(app: App, rows: KernelRow[], by: string): Child {
  const groups = groupsOf(app, rows, by),
    whole = groups.reduce((sum, group) => sum + group.time, 0) || 1;
  const door = (key: string): Child => {
    const href = format(["kernels"], by === "category" ? { category: key } : { by, in: key });
    return monoLink(href, shorten(by === "graph" ? graphLabel(app, key) : key, 90), key);
  };
  const parts = ({ categories, time: all }: Group): Part[] =>
    most(categories).map(([name, time]) => ({
      label: `${name}: ${numbers.percent(time / all)}`,
      share: time / (all || 1),
      colour: app.palette.category(name),
    }));
  return h(
    "section",
    table(
      groups,
      [
        { label: by, value: ({ key }) => key, cell: ({ key }) => door(key) },
        shares("share", ({ time }) => [time / whole, "var(--accent)"], groups[0]!.time / whole),
        figure("device time", (group) => group.time, numbers.time),
        figure("launches", (group) => group.launches, numbers.count),
        figure("kernels", (group) => group.kernels.size, numbers.count),
        { label: "by category", value: () => "", cell: (group) => bar("by category", parts(group), true) },
      ],
      { id: "groups", label: `kernels by ${by}`, filter: (group) => group.key },
    ),
  );
}

/** The kernels of one group, with the part of each that belongs to it. */
function inGroup(app: App, by: string, inside: string): Child {
  const group = groupsOf(app, app.report.kernels, by).find((one) => one.key === inside);
  if (!group) return h("p", `Nothing was launched by ${by} ${inside}.`);
  const rows = most(group.kernels);
  const door = (name: string): Child =>
    monoLink(app.kernelHref(name), shorten(app.kernelOf(name)?.short_name ?? name, 90), name);
  return h(
    "section",
    h(
      "header",
      h("h2.mono", shorten(by === "graph" ? graphLabel(app, inside) : inside, 140)),
      h("p", `${numbers.time(group.time)} in ${numbers.count(group.launches, "launch")}`),
    ),
    table(
      rows,
      [
        { label: "kernel", value: ([name]) => name, cell: ([name]) => door(name) },
        shares("share of it", ([name, time]) => [
          time / group.time,
          app.palette.category(app.kernelOf(name)?.category ?? ""),
        ]),
        figure("device time here", ([, time]) => time, numbers.time),
      ],
      { label: "kernels of the group", filter: ([name]) => name },
    ),
  );
}

export function graphLabel(app: App, graph: string): string {
  const at = app.report.graphs.findIndex((row) => row.graph === graph || row.hash === graph);
  return at < 0 ? graph : app.sentences.graph_labels[at]!;
}

const DRAWN = ["fp32", "tf32", "bf16", "fp8"];

/** What is known of each kernel's work, under what the device can do. */
function roofs(app: App): Child {
  const [roof] = app.report.page?.roofs ?? [],
    { dots, share_of_device_time: share } = app.sentences.roofline;
  if (!roof || !dots.length) return null;
  const drawn = dots.map(({ kernel, intensity, flops_per_s }) => {
    const row = app.report.kernels[kernel]!;
    return {
      x: intensity,
      y: flops_per_s,
      size: 3 + 14 * Math.sqrt(row.share_of_device_time),
      colour: app.palette.category(row.category),
      href: app.kernelHref(row.name)!,
      label: `${shorten(row.short_name, 70)}: ${numbers.rate(flops_per_s, "FLOP")}, ${intensity.toPrecision(3)} FLOP a byte, ${numbers.time(row.device_time_us)}`,
    };
  });
  const peaks = Object.entries(roof.peaks).filter(([dtype]) => DRAWN.includes(dtype));
  const lines = peaks.map(([dtype, peak]) => ({ label: dtype, peak, bandwidth: roof.bandwidth }));
  return titled(
    "Roofline",
    `${roof.device}; ${numbers.count(dots.length, "kernel")} whose FLOPs and bytes are known, ${numbers.percent(share)} of device time`,
    h("div.scroll", roofline(drawn, lines)),
  );
}
