// What happened in an interval, exactly: times clipped to it, launches that start in it; and the panel about it.
import type { App } from "../app.ts";
import { type Child, facts, h, link, soft, swatch } from "../dom.ts";
import { shorten } from "../names.ts";
import * as numbers from "../numbers.ts";
import { dot } from "./detail.ts";
import { type Idle, Store } from "./store.ts";

const ROWS = 12;

export function rangePanel(app: App, store: Store, [from, to]: [number, number]): Child {
  const found = statistics(store, from, to);
  const several = found.devices.length > 1 && !app.isComparison;
  const name = ({ rank, device }: { rank: number; device: number }) =>
    several ? `rank ${rank} GPU ${device} ` : `${app.rankName(rank)} `.trimStart();
  const length = Math.max(to - from, 1);
  return [
    h("h2", `A range of ${numbers.exact(to - from)}`),
    soft(`${numbers.exact(from)} to ${numbers.exact(to)}; what reaches over its ends is counted in part`),
    facts([
      ["launches that start in it", numbers.count(found.launches)],
      ["device time, summed", numbers.ns(found.time)],
      ...found.devices.map((device): [string, Child] => [
        `${name(device)}busy`,
        `${numbers.ns(device.busy)}, ${numbers.percent(device.busy / length)}`,
      ]),
    ]),
    found.devices
      .filter((device) => device.idle.size)
      .map((device) => [
        h("h3", `${name(device)}idle, and why`),
        facts(
          most([...device.idle]).map(([cause, time]) => [
            cause,
            [swatch(app.palette.cause(cause)), numbers.ns(time)],
          ]),
        ),
      ]),
    sums(app, "Categories", found.categories, found.time, (sum) => sum.name),
    sums(app, "Kernels", found.kernels, found.time, (sum) =>
      link(app.kernelHref(sum.name)!, shorten(app.short(sum.name), 60)),
    ),
    sums(app, "On the host", found.host, 0, (sum) => link(app.rowHref(sum.row), shorten(sum.name, 44))),
  ];
}

const most = (rows: [string, number][]): [string, number][] => rows.sort((a, b) => b[1] - a[1]);

function sums(app: App, title: string, rows: Sum[], whole: number, label: (sum: Sum) => Child): Child {
  const line = (sum: Sum): HTMLElement =>
    h(
      "tr",
      h("td.name", sum.category && dot(app, sum.category), label(sum)),
      h("td.number", numbers.ns(sum.time)),
      h("td.number.soft", whole ? numbers.percent(sum.time / whole) : `×${numbers.count(sum.count)}`),
    );
  const rest = rows.length - ROWS;
  return (
    rows.length > 0 && [
      h("h3", title),
      h("table", h("tbody", rows.slice(0, ROWS).map(line))),
      rest > 0 && soft(`and ${numbers.count(rest)} more`),
    ]
  );
}

interface Sum {
  name: string;
  category: string;
  time: number;
  count: number;
  row: number; // the first of them
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
    for (const row of store.between(line, from, to)) {
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
    const idle = idleIn(store, (one) => one.rank === rank && one.device === device, from, to);
    return { rank, device, busy: union(intervals.get(key) ?? []), idle };
  });
}

/** Idle time of some devices in an interval, by cause. */
export function idleIn(
  store: Store,
  isWanted: (one: Idle) => boolean,
  from: number,
  to: number,
): Map<string, number> {
  const found = new Map<string, number>();
  for (const { start, end, cause } of store.idle.filter(isWanted))
    start.forEach((began, at) => {
      const inside = Math.min(end[at]!, to) - Math.max(began, from),
        name = store.causes[cause[at]!]!;
      if (inside > 0) found.set(name, (found.get(name) ?? 0) + inside);
    });
  return found;
}

type Uses = Record<"compute" | "communication" | "copy", number>;

/** What the devices of a rank did in an interval: communication counts where nothing computes, copies where neither. */
export function uses(store: Store, rank: number, from: number, to: number): Uses {
  const intervals: Record<keyof Uses, [number, number][]> = { compute: [], communication: [], copy: [] };
  for (const line of store.lines) {
    if (store.lanes[line.lane]!.kind !== "stream" || store.lanes[line.lane]!.rank !== rank) continue;
    for (const row of store.between(line, from, to)) {
      const { kind, category } = store.nameOf(row);
      const use = kind !== "kernel" ? "copy" : category === "communication" ? "communication" : "compute";
      intervals[use].push([Math.max(store.start[row]!, from), Math.min(store.endOf(row), to)]);
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
  const sum = sums.get(name) ?? { name, category, time: 0, count: 0, row };
  sums.set(name, { ...sum, time: sum.time + time, count: sum.count + count });
}

const sorted = (sums: Map<string, Sum>): Sum[] => [...sums.values()].sort((a, b) => b.time - a.time);
