// A gap in a device's work: why it idled, what ran before and after it, and what the CPU did meanwhile.
import type { App } from "../app.ts";
import { button, type Child, facts, h, soft, swatch } from "../dom.ts";
import { shorten } from "../names.ts";
import * as numbers from "../numbers.ts";
import { chain } from "./chain.ts";
import { lineDoor } from "./detail.ts";
import { lowerBound, NONE, type Store } from "./store.ts";

const MOST = 8; // rows of what the CPU did

export type Gap = [device: number, at: number];

/** The idle time that an interval is about: what it shares most with, at least half of it; the shortest such. */
export function gapIn(store: Store, from: number, to: number, ranks: readonly number[] = []): Gap | null {
  let best: Gap | null = null,
    most = (to - from) / 2;
  store.idle.forEach(({ rank, start, end }, device) => {
    if (ranks.length && !ranks.includes(rank)) return;
    for (let at = lowerBound(end, from, (one) => one); at < start.length && start[at]! < to; at++) {
      const shared = Math.min(end[at]!, to) - Math.max(start[at]!, from);
      if (shared > most) [best, most] = [[device, at], shared];
    }
  });
  return best;
}

/** The longest idle time of a cause. */
export function longestGap(store: Store, cause: string): Gap | null {
  let best: Gap | null = null,
    longest = 0;
  store.idle.forEach((idle, device) =>
    idle.start.forEach((start, at) => {
      const length = idle.end[at]! - start;
      if (store.causes[idle.cause[at]!] === cause && length > longest)
        [best, longest] = [[device, at], length];
    }),
  );
  return best;
}

/** Device work before and after a gap, as rows: what ended last, and what began first. */
export function around(store: Store, [index, at]: Gap): { before: number; after: number } {
  const { rank, device, start, end } = store.idle[index]!;
  let before = NONE,
    after = NONE;
  for (const { lane, rows } of store.lines) {
    const own = store.lanes[lane]!;
    if (own.kind !== "stream" || own.rank !== rank || own.device !== device) continue;
    const next = lowerBound(rows, end[at]!, (row) => store.start[row]!);
    const [ended, begins] = [rows[lowerBound(rows, start[at]! + 1, store.endOf) - 1], rows[next]];
    if (ended !== undefined && (before === NONE || store.endOf(ended) > store.endOf(before))) before = ended;
    if (begins !== undefined && (after === NONE || store.start[begins]! < store.start[after]!))
      after = begins;
  }
  return { before, after };
}

/** Of every name on a thread the time in an interval that nothing inside of it took, most first. */
function meanwhile(store: Store, lane: number, from: number, to: number): [row: number, time: number][] {
  const own = new Map<number, [row: number, time: number]>();
  const inside = (row: number): number =>
    Math.max(0, Math.min(store.endOf(row), to) - Math.max(store.start[row]!, from));
  const add = (row: number, time: number): void => {
    const entry = own.get(store.name[row]!) ?? [row, 0];
    entry[1] += time;
    own.set(store.name[row]!, entry);
  };
  for (const line of store.lines.filter((one) => one.lane === lane))
    for (const row of store.between(line, from + 1, to)) {
      if (store.nameOf(row).kind === "user_annotation") continue;
      add(row, inside(row));
      for (let parent = store.parent[row]!; parent !== NONE; parent = store.parent[parent]!) {
        if (store.nameOf(parent).kind === "user_annotation") continue;
        add(parent, -inside(row));
        break;
      }
    }
  return [...own.values()].filter(([, time]) => time > 0).sort((a, b) => b[1] - a[1]);
}

/** The line in which a thread called nothing for longest, of the calls that it made in an interval. */
function silentLine(store: Store, lane: number, from: number, to: number): string {
  let line = "",
    longest = 0;
  if (lane < 0 || !store.has("before")) return line;
  const { first, count } = store.lanes[lane]!;
  for (
    let row = lowerBound(store.start, from, (one) => one, first);
    row < first + count && store.start[row]! < to;
    row++
  ) {
    const silence = store.start[row]! - Math.max(from, row > first ? store.endOf(row - 1) : from);
    const before = store.text("before", row);
    if (before && silence > longest) [line, longest] = [before, silence];
  }
  return line;
}

export function idlePanel(app: App, store: Store, gap: Gap, select: (row: number) => void): Child {
  const { device, start, end, cause } = store.idle[gap[0]]!;
  const [from, to] = [start[gap[1]]!, end[gap[1]]!];
  const name = (at: number): string => store.causes[cause[at]!]!;
  const pieces: number[] = [gap[1]];
  while (start[pieces[0]!] === end[pieces[0]! - 1]) pieces.unshift(pieces[0]! - 1);
  while (end[pieces.at(-1)!] === start[pieces.at(-1)! + 1]) pieces.push(pieces.at(-1)! + 1);
  const causes = new Map<string, number>();
  for (const at of pieces) causes.set(name(at), (causes.get(name(at)) ?? 0) + end[at]! - start[at]!);
  const parts = [...causes].map(([one, time]) => `${one} ${numbers.ns(time)}`);
  const whole = end[pieces.at(-1)!]! - start[pieces[0]!]!;
  const { before, after } = around(store, gap);
  const door = (row: number): Child =>
    row !== NONE &&
    button(shorten(app.short(store.nameOf(row).name), 60), () => select(row), { class: "door mono" });
  const work = after === NONE ? NONE : store.workOf(after);
  const launch = work === NONE ? NONE : store.launch[work]!;
  const found = after === NONE ? null : chain(store, after);
  const thread =
    launch === NONE ? store.lanes.findIndex(({ kind }) => kind === "thread") : store.laneOf(launch);
  const did = thread < 0 ? [] : meanwhile(store, thread, from, to);
  const silent = silentLine(store, thread, from, to);
  const call = ([row, time]: [row: number, time: number]): [Child, Child] => {
    const name = shorten(app.event(store.nameOf(row).name), 60);
    return [numbers.ns(time), button(name, () => select(row), { class: "door" })];
  };
  const rest = ["in no recorded call: Python, or waiting", silent && [", most of it in ", lineDoor(silent)]];
  const between = to - from - did.reduce((sum, [, time]) => sum + time, 0);
  return [
    h("h2", `Idle ${numbers.ns(to - from)}`),
    soft(swatch(app.palette.cause(name(gap[1]))), `GPU ${device} · ${name(gap[1])}`),
    app.report.page?.meanings?.[name(gap[1])] && h("p", app.report.page.meanings[name(gap[1])]),
    facts([
      ["from", numbers.exact(from)],
      ["to", numbers.exact(to)],
      ["part of a gap", pieces.length > 1 && `${numbers.ns(whole)}: ${parts.join(", ")}`],
      ["before it", door(before)],
      ["after it", door(after)],
      ["was launched", launch !== NONE && lag(store.start[launch]!, from, to)],
      ["op", work !== NONE && store.belongs(work, "op").replace(/^no .*/, "")],
      ["line", found?.line && lineDoor(found.line)],
    ]),
    did.length > 0 && [
      h("h3", "What the launching thread did meanwhile"),
      facts([...did.slice(0, MOST).map(call), [numbers.ns(between), between > 0 && rest]]),
    ],
  ];
}

/** When a launch was made, against the gap that its work ended. */
function lag(launch: number, from: number, to: number): string {
  if (launch < from) return `${numbers.ns(from - launch)} before the gap began: it was queued in time`;
  return `${numbers.ns(launch - from)} after the gap began, ${numbers.ns(Math.max(to - launch, 0))} before it ended`;
}
