// How a piece of device work came about, and how it waited.
import { isOwnFrame } from "../names.ts";
import { type Key, NONE, type Store } from "./store.ts";

export interface Chain {
  /** From the outermost host event around the launch to the launch; empty where no launch is known. */
  rows: number[];
  /** Of backward work the same to its forward op. */
  forward: number[];
  line: string | null;
  /** From the launch's start to the work's, and the part of it in which earlier work of the stream ran. */
  latency: number | null;
  queued: number | null;
}

const MODULE = "nn.Module: ";

/** Of a piece of device work; of a host event, what is around it. */
export function chain(store: Store, row: number): Chain {
  const work = store.workOf(row);
  const launch = work < 0 ? row : store.launch[work]!,
    before = work < 0 ? NONE : store.forward[work]!;
  const rows = within(store, launch),
    forward = within(store, before);
  const latency = work >= 0 && launch !== NONE ? store.start[row]! - store.start[launch]! : null;
  return {
    rows,
    forward,
    latency,
    line: line(store, rows) ?? line(store, forward),
    queued:
      latency === null ? null : Math.max(0, Math.min(latency, reached(store, row) - store.start[launch]!)),
  };
}

const within = (store: Store, row: number): number[] => (row === NONE ? [] : [...store.around(row), row]);

/** The user's innermost line: one that was noted, a Python frame around it, or of a stack (innermost first). */
function line(store: Store, rows: number[]): string | null {
  for (const row of rows.toReversed()) {
    const noted = store.text("line", row);
    if (noted) return noted;
    const { name, kind } = store.nameOf(row);
    if (kind === "python_function" && isOwnFrame(name)) return name;
    const own = store
      .text("stack", row)
      .split(";")
      .map((frame) => frame.trim())
      .find(isOwnFrame);
    if (own) return own;
  }
  return null;
}

/** When the work before it on its stream had ended. */
function reached(store: Store, row: number): number {
  return row > store.lanes[store.laneOf(row)]!.first ? store.endOf(row - 1) : -Infinity;
}

/** Of every piece of device work what it belongs to, or the user's line. */
export function keys(store: Store, by: Key | "line"): string[] {
  if (by !== "line") return Array.from(store.work, (_, work) => store.belongs(work, by));
  const known = new Map<string, string>();
  return Array.from(store.work, (row, work) => {
    const launch = store.launch[work]!,
      forward = store.forward[work]!;
    const place = `${launch === NONE ? NONE : store.parent[launch]}/${forward}`;
    if (!known.has(place)) known.set(place, launch === NONE ? "" : (chain(store, row).line ?? ""));
    return known.get(place)!;
  });
}

/** The names that tell how a launch came about, without library frames; steps and layers are taken as one. */
export function path(store: Store, work: number): string[] {
  const names = (rows: number[]) =>
    rows
      .map((row) => store.nameOf(row))
      .filter(({ name, kind }) => kind !== "python_function" || isOwnFrame(name) || name.startsWith(MODULE))
      .map(({ name }) => name.replace(/#\d+$/, "#…").replace(/^(nn\.Module: .*)_\d+$/, "$1_…"));
  const forward = names(within(store, store.forward[work]!)),
    launch = names(within(store, store.launch[work]!));
  return forward.length ? [...forward, "⟲ backward", ...launch] : launch;
}
