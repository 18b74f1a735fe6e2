// How a piece of device work came about, and how it waited.
import { isOwnFrame } from "../names.ts";
import { NONE, Store } from "./store.ts";

export interface Chain {
  /** From the outermost host event around the launch to the launch; empty where no launch is known. */
  rows: number[];
  step: string | null; annotation: string | null; module: string | null; op: string | null; line: string | null;
  /** From the launch's start to the work's, and the part of it in which earlier work of the stream ran. */
  latency: number | null; queued: number | null;
}

const STEP = /^ProfilerStep#/;
const MODULE = "nn.Module: ";

export function chain(store: Store, row: number): Chain {
  const work = store.workOf(row);
  const launch = work < 0 ? row : store.launch[work]!;
  const rows = launch === NONE ? [] : [...store.around(launch), launch];
  const last = (fits: (name: string, kind: string) => boolean): string | null => {
    const found = rows.findLast((at) => fits(store.nameOf(at).name, store.nameOf(at).kind));
    return found === undefined ? null : store.nameOf(found).name;
  };
  const waited = work >= 0 && launch !== NONE;
  const latency = waited ? store.start[row]! - store.start[launch]! : null;
  return {
    rows,
    step: last((name, kind) => kind === "user_annotation" && STEP.test(name)),
    annotation: last((name, kind) => kind === "user_annotation" && !STEP.test(name)),
    module: last((name) => name.startsWith(MODULE))?.slice(MODULE.length) ?? null,
    op: last((_, kind) => kind === "cpu_op"),
    line: last((name, kind) => kind === "python_function" && isOwnFrame(name)) ?? ownLine(store, rows),
    latency,
    queued: latency === null ? null : Math.max(0, Math.min(latency, reached(store, row) - store.start[launch]!)),
  };
}

/** The user's line out of a recorded stack (innermost first), where an op around the launch has one. */
function ownLine(store: Store, rows: number[]): string | null {
  for (const row of rows.toReversed()) {
    const own = store.text("stack", row).split(";").map((frame) => frame.trim()).find(isOwnFrame);
    if (own) return own;
  }
  return null;
}

/** When the work before it on its stream had ended. */
function reached(store: Store, row: number): number {
  return row > store.lanes[store.laneOf(row)]!.first ? store.endOf(row - 1) : -Infinity;
}

/** What groups a launch in the lists of kernels; a key that is not known is null. */
export type Grouping = "op" | "module" | "annotation" | "line" | "step";

/** Of every piece of device work its key; chains of one launch are looked at once. */
export function keys(store: Store, by: Grouping): (string | null)[] {
  const known = new Map<number, string | null>();
  return Array.from(store.work, (row, work) => {
    const launch = store.launch[work]!;
    const around = launch === NONE ? NONE : store.parent[launch]!;
    const memo = around === NONE ? -1 - launch : around;
    if (launch === NONE) return null;
    if (!known.has(memo)) known.set(memo, chain(store, row)[by]);
    return known.get(memo)!;
  });
}

/** The longest names that tell how launches of one kernel came about, without library frames. */
export function path(store: Store, work: number): string[] {
  const launch = store.launch[work]!;
  if (launch === NONE) return [];
  return [...store.around(launch), launch]
    .map((row) => store.nameOf(row))
    .filter(({ name, kind }) => kind !== "python_function" || isOwnFrame(name) || name.startsWith(MODULE))
    .map(({ name }) => name.replace(/#\d+$/, "#…"));
}
