// What stands where: the timeline's tracks from top to bottom.
import type { App } from "../app.ts";
import { Line, Store } from "./store.ts";

/** What is drawn at a height that is not known yet. */
type Placeable = { height: number } & (
  | { kind: "head"; label: string; key: string; isOpen: boolean; isPinned: boolean }
  | { kind: "steps"; rank: number }
  | { kind: "idle"; index: number }
  | { kind: "line"; line: Line; onDevice: boolean }
  | { kind: "counter"; label: string; starts: number[]; values: number[]; unit: "count" | "bytes" }
);
export type Track = Placeable & { top: number };

/** Tracks under one head, which collapses, pins and hides them; without a label they have no head. */
export interface Group {
  key: string;
  label: string;
  /** The device whose head collapses it too. */
  under: string;
  tracks: Placeable[];
}

/** What the reader has made of the tracks, by the keys of their groups. */
export interface Arrangement {
  closed: Set<string>;
  pinned: Set<string>;
  hidden: Set<string>;
  filter: string;
  /** How many times as tall as usual tracks are; heads stay as they are. */
  tall: number;
}

export const unarranged = (): Arrangement => ({
  closed: new Set(),
  pinned: new Set(),
  hidden: new Set(),
  filter: "",
  tall: 1,
});

export const HEIGHT = { head: 18, steps: 16, idle: 12, device: 20, host: 15, counter: 34 };
const DEEPEST = 40; // lines of one thread: Python stacks are as deep as one likes

export function groupsOf(app: App, store: Store): Group[] {
  const groups: Group[] = [],
    { report } = app;
  const origin = store.timeline.origin_ns / 1000;
  const add = (key: string, label: string, tracks: Placeable[], under = ""): number =>
    groups.push({ key, label, tracks, under });
  const lines = new Map<number, Line[]>();
  for (const line of store.lines) lines.set(line.lane, [...(lines.get(line.lane) ?? []), line]);
  const drawn = (index: number, height: number, onDevice: boolean): Placeable[] =>
    (lines.get(index) ?? []).slice(0, DEEPEST).map((line) => ({ kind: "line", height, line, onDevice }));
  const counter = (
    label: string,
    unit: "count" | "bytes",
    starts: number[],
    values: number[],
  ): Placeable[] => [
    {
      kind: "counter",
      height: HEIGHT.counter,
      label,
      unit,
      starts: starts.map((us) => (us - origin) * 1000),
      values,
    },
  ];

  for (const rank of new Set(store.lanes.map((lane) => lane.rank))) {
    const name = app.rankName(rank),
      ranked = name && (app.isComparison ? `${name}: ${app.sentences.sides[name]} · ` : `${name} · `);
    const lanes = store.lanes
      .map((lane, index) => ({ lane, index }))
      .filter(({ lane }) => lane.rank === rank);
    if (report.steps.some((step) => step.rank === rank))
      add(`steps${rank}`, `${ranked}steps`, [{ kind: "steps", height: HEIGHT.steps, rank }]);
    for (const device of new Set(
      lanes.filter(({ lane }) => lane.kind === "stream").map(({ lane }) => lane.device),
    )) {
      const index = store.idle.findIndex((one) => one.rank === rank && one.device === device);
      const what = index < 0 ? "device work by category" : `GPU ${device} · work by category, idle by cause`;
      const key = `device${rank}/${device}`;
      add(key, `${ranked}${what}`, index < 0 ? [] : [{ kind: "idle", height: HEIGHT.idle, index }]);
      for (const { lane, index } of lanes.filter(({ lane }) => lane.device === device)) {
        const label =
          lane.label.trim() && `${lane.label.trim()}${lane.kind === "annotation" ? " · annotations" : ""}`;
        const isStream = lane.kind === "stream";
        add(`lane${index}`, label, drawn(index, isStream ? HEIGHT.device : HEIGHT.host, isStream), key);
      }
    }
    for (const row of report.launching.filter((one) => one.rank === rank && one.queue.length > 1))
      add(
        `queue${rank}/${row.device}`,
        `${ranked}launches queued on GPU ${row.device} · at most ${row.depth_max}`,
        counter(
          "launches queued",
          "count",
          startsOf(row.queue),
          row.queue.map((point) => point.depth_max),
        ),
      );
    for (const row of report.memory.filter((one) => one.rank === rank && one.over_time.length > 1))
      add(
        `memory${rank}/${row.device}`,
        `${ranked}memory allocated on GPU ${row.device}`,
        counter(
          "memory allocated",
          "bytes",
          startsOf(row.over_time),
          row.over_time.map((one) => one.allocated_bytes),
        ),
      );
    for (const { lane, index } of lanes.filter(({ lane }) => lane.kind === "thread"))
      add(`lane${index}`, `${ranked}${lane.label.trim()}`, drawn(index, HEIGHT.host, false));
  }
  return groups;
}

const startsOf = (points: { start_us: number }[]): number[] => points.map((point) => point.start_us);

/** The track that has an event. */
export function trackOf({ laneOf, line }: Store, tracks: readonly Track[], row: number): Track | undefined {
  const [lane, number] = [laneOf(row), line[row]];
  return tracks.find((one) => one.kind === "line" && one.line.lane === lane && one.line.number === number);
}

/** The tracks from top to bottom; those of pinned groups come first, `fixed` pixels high in all. */
export function layout(
  groups: readonly Group[],
  { closed, pinned, hidden, filter, tall }: Arrangement,
): { tracks: Track[]; height: number; fixed: number } {
  const tracks: Track[] = [];
  let top = 0;
  const push = (track: Placeable): void => {
    const height = track.kind === "head" ? track.height : Math.round(track.height * tall);
    tracks.push({ ...track, top, height });
    top += height;
  };
  const wanted = filter.toLowerCase();
  const labels = new Map(groups.map(({ key, label }) => [key, label.toLowerCase()]));
  const seen = groups.filter(
    ({ key, under }) =>
      !hidden.has(key) &&
      !hidden.has(under) &&
      !closed.has(under) &&
      [key, under].some((one) => labels.get(one)?.includes(wanted)),
  );
  const place = ({ key, label, tracks }: Group): void => {
    const isOpen = !closed.has(key);
    if (label) push({ kind: "head", height: HEIGHT.head, label, key, isOpen, isPinned: pinned.has(key) });
    if (isOpen) tracks.forEach(push);
  };
  seen.filter(({ key }) => pinned.has(key)).forEach(place);
  const fixed = top;
  seen.filter(({ key }) => !pinned.has(key)).forEach(place);
  return { tracks, height: top, fixed };
}
