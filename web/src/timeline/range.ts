// What happened in an interval, exactly: times clipped to it, launches that start in it; and the panel about it.
import type { App } from "../app.ts";
import { type Child, h, link, soft, swatch } from "../dom.ts";
import { shorten } from "../names.ts";
import * as numbers from "../numbers.ts";
import { facts, dot } from "./detail.ts";
import { lowerBound, Store } from "./store.ts";

const us = (ns: number): string => numbers.time(ns / 1000);
const ROWS = 12;

export function rangePanel(app: App, store: Store, [from, to]: [number, number]): Child {
  const found = statistics(store, from, to);
  const several = found.devices.length > 1 && !app.isComparison;
  const name = ({ rank, device }: { rank: number; device: number }) =>
    several ? `rank ${rank} GPU ${device} ` : `${app.rankName(rank)} `.trimStart();
  const length = Math.max(to - from, 1);
  return [
    h("h2", {}, `A range of ${numbers.exact(to - from)}`),
    soft(`${numbers.exact(from)} to ${numbers.exact(to)}; what reaches over its ends is counted in part`),
    facts([
      ["launches that start in it", numbers.count(found.launches)],
      ["device time, summed", us(found.time)],
      ...found.devices.map((device): [string, Child] => [
        `${name(device)}busy`,
        `${us(device.busy)}, ${numbers.percent(device.busy / length)}`,
      ]),
    ]),
    found.devices
      .filter((device) => device.idle.size)
      .map((device) => [
        h("h3", {}, `${name(device)}idle, and why`),
        facts(
          [...device.idle]
            .sort((a, b) => b[1] - a[1])
            .map(([cause, time]): [string, Child] => [cause, [swatch(app.palette.cause(cause)), us(time)]]),
        ),
      ]),
    sums(app, "Categories", found.categories, found.time, (sum) => sum.name),
    sums(app, "Kernels", found.kernels, found.time, (sum) =>
      link(app.kernelHref(sum.name)!, shorten(app.short(sum.name), 60)),
    ),
    sums(app, "On the host", found.host, 0, (sum) => link(app.rowHref(sum.rows[0]!), shorten(sum.name, 44))),
  ];
}

function sums(app: App, title: string, rows: Sum[], whole: number, label: (sum: Sum) => Child): Child {
  return (
    rows.length > 0 && [
      h("h3", {}, title),
      h(
        "table",
        {},
        h(
          "tbody",
          {},
          rows
            .slice(0, ROWS)
            .map((sum) =>
              h(
                "tr",
                {},
                h("td", { class: "name" }, sum.category && dot(app, sum.category), label(sum)),
                h("td", { class: "number" }, us(sum.time)),
                h(
                  "td",
                  { class: "number soft" },
                  whole ? numbers.percent(sum.time / whole) : `×${numbers.count(sum.count)}`,
                ),
              ),
            ),
        ),
      ),
      rows.length > ROWS && soft(`and ${numbers.count(rows.length - ROWS)} more`),
    ]
  );
}

interface Sum {
  name: string;
  category: string;
  time: number;
  count: number;
  rows: number[];
}
interface DeviceSum {
  rank: number;
  device: number;
  busy: number;
  idle: Map<string, number>;
}
export interface Statistics {
  from: number;
  to: number;
  devices: DeviceSum[];
  categories: Sum[];
  kernels: Sum[];
  host: Sum[];
  launches: number;
  time: number;
}

const EXAMPLES = 1; // rows kept of each name: the door to it

/** Of [from, to) in nanoseconds from the origin. */
export function statistics(store: Store, from: number, to: number): Statistics {
  const categories = new Map<string, Sum>(),
    kernels = new Map<string, Sum>(),
    host = new Map<string, Sum>();
  const intervals = new Map<string, [number, number][]>();
  let launches = 0,
    time = 0;
  for (const line of store.lines) {
    const lane = store.lanes[line.lane]!;
    if (lane.kind === "annotation") continue;
    const device = lane.kind === "stream";
    const first = lowerBound(line.rows, from, (row) => store.endOf(row));
    for (let at = first; at < line.rows.length && store.start[line.rows[at]!]! < to; at++) {
      const row = line.rows[at]!;
      const start = Math.max(store.start[row]!, from),
        end = Math.min(store.endOf(row), to);
      const { name, category } = store.nameOf(row);
      const begins = store.start[row]! >= from ? 1 : 0;
      if (device) {
        launches += begins;
        time += Math.max(end - start, 0);
        add(categories, category, category, Math.max(end - start, 0), begins, row);
        add(kernels, name, category, Math.max(end - start, 0), begins, row);
        const key = `${lane.rank}/${lane.device}`;
        if (!intervals.has(key)) intervals.set(key, []);
        if (end > start) intervals.get(key)!.push([start, end]);
      } else {
        add(host, name, "", Math.max(end - start, 0), begins, row);
      }
    }
  }
  return {
    from,
    to,
    launches,
    time,
    devices: store.idle.length || intervals.size ? devices(store, intervals, from, to) : [],
    categories: sorted(categories),
    kernels: sorted(kernels),
    host: sorted(host),
  };
}

function devices(
  store: Store,
  intervals: Map<string, [number, number][]>,
  from: number,
  to: number,
): DeviceSum[] {
  const keys = new Set([...store.idle.map((idle) => `${idle.rank}/${idle.device}`), ...intervals.keys()]);
  return [...keys].map((key) => {
    const [rank, device] = key.split("/").map(Number) as [number, number];
    const idle = new Map<string, number>();
    const of = store.idle.find((one) => one.rank === rank && one.device === device);
    for (let at = 0; of && at < of.start.length; at++) {
      const length = Math.min(of.end[at]!, to) - Math.max(of.start[at]!, from);
      if (length > 0) {
        const cause = store.causes[of.cause[at]!]!;
        idle.set(cause, (idle.get(cause) ?? 0) + length);
      }
    }
    return { rank, device, busy: union(intervals.get(key) ?? []), idle };
  });
}

type Uses = Record<"compute" | "communication" | "copy", number>;

/** What the devices of a rank did in an interval: communication counts where nothing computes, copies where neither. */
export function uses(store: Store, rank: number, from: number, to: number): Uses {
  const intervals: Record<keyof Uses, [number, number][]> = { compute: [], communication: [], copy: [] };
  for (const { lane, rows } of store.lines) {
    if (store.lanes[lane]!.kind !== "stream" || store.lanes[lane]!.rank !== rank) continue;
    for (
      let at = lowerBound(rows, from, store.endOf);
      at < rows.length && store.start[rows[at]!]! < to;
      at++
    ) {
      const { kind, category } = store.nameOf(rows[at]!);
      const use = kind !== "kernel" ? "copy" : category === "communication" ? "communication" : "compute";
      intervals[use].push([Math.max(store.start[rows[at]!]!, from), Math.min(store.endOf(rows[at]!), to)]);
    }
  }
  const compute = union([...intervals.compute]);
  const worked = union([...intervals.compute, ...intervals.communication]);
  const all = union([...intervals.compute, ...intervals.communication, ...intervals.copy]);
  return { compute, communication: worked - compute, copy: all - worked };
}

/** The length of the union of intervals. */
export function union(intervals: [number, number][]): number {
  intervals.sort((a, b) => a[0] - b[0]);
  let total = 0,
    reached = -Infinity;
  for (const [start, end] of intervals) {
    if (end <= reached) continue;
    total += end - Math.max(start, reached);
    reached = end;
  }
  return total;
}

function add(
  sums: Map<string, Sum>,
  name: string,
  category: string,
  time: number,
  count: number,
  row: number,
): void {
  let sum = sums.get(name);
  if (!sum) sums.set(name, (sum = { name, category, time: 0, count: 0, rows: [] }));
  sum.time += time;
  sum.count += count;
  if (sum.rows.length < EXAMPLES) sum.rows.push(row);
}

const sorted = (sums: Map<string, Sum>): Sum[] => [...sums.values()].sort((a, b) => b.time - a.time);
