// What stands where: the timeline's tracks from top to bottom.
import type { App } from "../app.ts";
import { Line, Store } from "./store.ts";

export type Track =
  | { kind: "head"; top: number; height: number; label: string; key: string; isOpen: boolean }
  | { kind: "steps"; top: number; height: number; rank: number }
  | { kind: "idle"; top: number; height: number; index: number }
  | { kind: "line"; top: number; height: number; line: Line; onDevice: boolean }
  | {
      kind: "counter";
      top: number;
      height: number;
      label: string;
      starts: number[];
      values: number[];
      unit: "count" | "bytes";
    };

type Placeable = Track extends infer One ? (One extends Track ? Omit<One, "top"> : never) : never;

export const HEIGHT = { head: 18, steps: 16, idle: 12, device: 20, host: 15, counter: 34 };
const DEEPEST = 40; // lines of one thread: Python stacks are as deep as one likes

export function layout(
  app: App,
  store: Store,
  closed: ReadonlySet<string>,
): { tracks: Track[]; height: number } {
  const tracks: Track[] = [],
    { report } = app;
  const origin = store.timeline.origin_ns / 1000;
  let top = 0;
  const push = (track: Placeable): void => {
    tracks.push({ ...track, top });
    top += track.height;
  };
  const head = (key: string, label: string): boolean => {
    const isOpen = !closed.has(key);
    push({ kind: "head", height: HEIGHT.head, label, key, isOpen });
    return isOpen;
  };
  const lines = new Map<number, Line[]>();
  for (const line of store.lines) lines.set(line.lane, [...(lines.get(line.lane) ?? []), line]);

  for (const rank of new Set(store.lanes.map((lane) => lane.rank))) {
    const name = app.rankName(rank),
      ranked = name && (app.isComparison ? `${name}: ${app.sentences.sides[name]} · ` : `${name} · `);
    const lanes = store.lanes
      .map((lane, index) => ({ lane, index }))
      .filter(({ lane }) => lane.rank === rank);
    if (report.steps.some((step) => step.rank === rank) && head(`steps${rank}`, `${ranked}steps`))
      push({ kind: "steps", height: HEIGHT.steps, rank });
    for (const device of new Set(
      lanes.filter(({ lane }) => lane.kind === "stream").map(({ lane }) => lane.device),
    )) {
      const idle = store.idle.findIndex((one) => one.rank === rank && one.device === device);
      const what = idle < 0 ? "device work by category" : `GPU ${device} · work by category, idle by cause`;
      if (!head(`device${rank}/${device}`, `${ranked}${what}`)) continue;
      if (idle >= 0) push({ kind: "idle", height: HEIGHT.idle, index: idle });
      for (const { lane, index } of lanes.filter(({ lane }) => lane.device === device)) {
        const label = lane.label.trim();
        if (label && !head(`lane${index}`, `${label}${lane.kind === "annotation" ? " · annotations" : ""}`))
          continue;
        for (const line of (lines.get(index) ?? []).slice(0, DEEPEST))
          push({
            kind: "line",
            height: lane.kind === "stream" ? HEIGHT.device : HEIGHT.host,
            line,
            onDevice: lane.kind === "stream",
          });
      }
    }
    for (const row of report.launching.filter((one) => one.rank === rank && one.queue.length > 1))
      if (
        head(
          `queue${rank}/${row.device}`,
          `${ranked}launches queued on GPU ${row.device} · at most ${row.depth_max}`,
        )
      )
        push({
          kind: "counter",
          height: HEIGHT.counter,
          label: "launches queued",
          unit: "count",
          starts: row.queue.map((point) => (point.start_us - origin) * 1000),
          values: row.queue.map((point) => point.depth_max),
        });
    for (const row of report.memory.filter((one) => one.rank === rank && one.over_time.length > 1))
      if (head(`memory${rank}/${row.device}`, `${ranked}memory allocated on GPU ${row.device}`))
        push({
          kind: "counter",
          height: HEIGHT.counter,
          label: "memory allocated",
          unit: "bytes",
          starts: row.over_time.map((point) => (point.start_us - origin) * 1000),
          values: row.over_time.map((point) => point.allocated_bytes),
        });
    for (const { lane, index } of lanes.filter(({ lane }) => lane.kind === "thread"))
      if (head(`lane${index}`, lane.label.trim()))
        for (const line of (lines.get(index) ?? []).slice(0, DEEPEST))
          push({ kind: "line", height: HEIGHT.host, line, onDevice: false });
  }
  return { tracks, height: top };
}
