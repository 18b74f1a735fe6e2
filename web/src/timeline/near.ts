// Which event is meant: under the pointer, next to another, pointed at by a finding.
import type { Report } from "../document.ts";
import { lowerBound, NONE, type Store } from "./store.ts";

/** The event of a line that lies at a time, or at most `slack` from it. */
export function nearest(store: Store, rows: Uint32Array, at: number, slack: number): number {
  const place = lowerBound(rows, at - slack, store.endOf);
  const distance = (row: number) => Math.max(store.start[row]! - at, at - store.endOf(row), 0);
  const [best] = [...rows.subarray(place, place + 2)].sort((a, b) => distance(a) - distance(b));
  return best !== undefined && distance(best) <= slack ? best : NONE;
}

/** The event before or after one on its line; without one, the first of a stream that ends after `from`. */
export function neighbour(store: Store, row: number, from: number, by: number): number {
  if (row === NONE) {
    const line = store.lines.find((one) => store.lanes[one.lane]!.kind === "stream") ?? store.lines[0];
    return line?.rows[lowerBound(line.rows, from, store.endOf)] ?? NONE;
  }
  const lane = store.laneOf(row);
  const line = store.lines.find((one) => one.lane === lane && one.number === store.line[row])!;
  return line.rows[lowerBound(line.rows, row, (one) => one) + by] ?? NONE;
}

/** The next event, in time and then in rows, whose name is wanted. */
export function nextNamed(store: Store, wanted: Set<number>, row: number, from: number, by: number): number {
  const after = row === NONE ? from : store.start[row]!;
  let best = NONE,
    nearest = Infinity;
  for (let one = 0; one < store.length; one++) {
    if (!wanted.has(store.name[one]!)) continue;
    const ahead = (store.start[one]! - after) * by;
    const isAhead = ahead > 0 || (ahead === 0 && row !== NONE && (one - row) * by > 0);
    if (isAhead && ahead < nearest) [best, nearest] = [one, ahead];
  }
  return best;
}

/** The edge of an event near a time; the time itself, in whole nanoseconds, where none is. */
export function snapped(store: Store, at: number, reach: number): number {
  let best = Math.round(at),
    distance = reach;
  for (const line of store.lines) {
    const near = lowerBound(line.rows, at - reach, store.endOf);
    for (const row of line.rows.subarray(near, near + 3))
      for (const edge of [store.start[row]!, store.endOf(row)])
        if (Math.abs(edge - at) < distance) [best, distance] = [edge, Math.abs(edge - at)];
  }
  return best;
}

/** The rows that evidence points at: `2.0` is the first evidence of the third finding, `2` all of it. */
export function evidenceRows(store: Store, report: Report, text: string | undefined): Set<number> {
  const [finding, item] = text ? text.split(".").map(Number) : [];
  const row = report.findings[finding ?? -1];
  const evidence = row ? (item === undefined ? row.evidence : row.evidence.slice(item, item + 1)) : [];
  const events = new Set(evidence.flatMap((one) => one.events));
  const ranks = new Set(row?.ranks);
  const marks = store.timeline.marks.filter(
    ({ event, rank }) => events.has(event) && (!ranks.size || ranks.has(rank)),
  );
  return new Set(marks.map((mark) => mark.row));
}
