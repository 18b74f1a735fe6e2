// All events of a run as typed columns, and what follows from how they nest. Times are nanoseconds from the origin.
import type { Lane, Launched, Name, Report, Timeline } from "../document.ts";
import type { Numbers } from "../load.ts";

export const NONE = 0xffffffff;

export type Key = "op" | "module" | "annotation" | "step" | "graph";

/** Texts of all events; the last three are of a step whose lines were noted. */
export type Text = "shapes" | "stack" | "line" | "modules" | "before";

/** Events of one lane that lie on one line, `number` from the top. `rows` are in the order of time. */
export interface Line {
  lane: number;
  number: number;
  rows: Uint32Array;
}

/** Idle time of one device, in the order of time. */
export interface Idle {
  rank: number;
  device: number;
  start: Float64Array;
  end: Float64Array;
  cause: Uint8Array;
}

export class Store {
  readonly lanes: Lane[];
  readonly names: Name[];
  readonly causes: string[];
  readonly length: number;
  readonly start: Float64Array;
  readonly duration: Float64Array;
  readonly name: Numbers;
  readonly depth: Uint16Array;
  /** The line of its lane that it is drawn on: steps have the first to themselves, the rest lies by nesting. */
  readonly line: Uint16Array;
  /** The row of the event around it on its lane; NONE at the top. */
  readonly parent: Uint32Array;
  readonly lines: Line[] = [];
  readonly idle: Idle[];
  readonly end: number;
  /** Rows of device work, and of each the row of its launch (NONE for none known). */
  readonly work: Uint32Array;
  readonly launch: Uint32Array;
  /** Of backward work, the row of its forward op. */
  readonly forward: Uint32Array;
  private readonly configuration: Numbers;
  private byLaunch: Uint32Array | null = null;
  private idleTime: Float64Array | null = null;

  /** Where events start that are drawn elsewhere: two steps compared may be aligned by calls of graphs. */
  readonly began: Float64Array;

  constructor(
    readonly timeline: Timeline,
    private readonly columns: Map<string, Numbers>,
    isAligned = false,
  ) {
    this.lanes = timeline.lanes;
    this.names = timeline.names;
    this.causes = timeline.causes;
    const prefix = isAligned ? "aligned_" : "";
    this.began = columns.get("start") as Float64Array;
    this.start = columns.get(`${prefix}start`) as Float64Array;
    this.duration = Float64Array.from(columns.get(`${prefix}duration`)!);
    this.name = columns.get("name")!;
    this.length = this.start.length;
    this.depth = new Uint16Array(this.length);
    this.line = new Uint16Array(this.length);
    this.parent = new Uint32Array(this.length);
    for (let lane = 0; lane < this.lanes.length; lane++) this.nest(lane);
    this.work = this.rowsOfWork();
    const rows = (name: string) => Uint32Array.from(columns.get(name)!, (row) => (row ? row - 1 : NONE));
    this.launch = rows("launch");
    this.forward = rows("forward");
    this.configuration = columns.get("launched")!;
    this.idle = this.idleByDevice();
    let end = 0;
    for (let row = 0; row < this.length; row++) end = Math.max(end, this.start[row]! + this.duration[row]!);
    this.end = end;
  }

  nameOf = (row: number): Name => this.names[this.name[row]!]!;
  endOf = (row: number): number => this.start[row]! + this.duration[row]!;

  /** The rows of a line that end at `from` or later and start before `to`. */
  between = ({ rows }: Line, from: number, to: number): Uint32Array => {
    const first = lowerBound(rows, from, this.endOf);
    const start = (row: number): number => this.start[row]!;
    return rows.subarray(first, lowerBound(rows, to, start, first));
  };

  laneOf = (row: number): number => lowerBound(this.lanes, row + 1, (lane) => lane.first) - 1;

  text(column: Text | Key, at: number): string {
    const codes = this.columns.get(column);
    return codes ? this.timeline.texts[codes[at]!]! : "";
  }

  /** Whether any event has such a text. */
  has = (column: Text): boolean => this.columns.has(column);

  /** What a piece of device work belongs to; empty where that was not recorded. */
  belongs = (work: number, to: Key): string => this.text(to, work);

  /** Its place among device work; -1 for an event of another kind. */
  workOf(row: number): number {
    const at = lowerBound(this.work, row, (value) => value);
    return this.work[at] === row ? at : -1;
  }

  launchedBy = (work: number): Launched => this.timeline.launched[this.configuration[work]!]!;

  /** Of every piece of device work the idle time of its device that ended with it. */
  idleBefore(): Float64Array {
    if (this.idleTime) return this.idleTime;
    const ends = new Map<string, number>();
    for (const { rank, device, start, end } of this.idle) {
      let began = NaN;
      end.forEach((at, index) => {
        if (start[index] !== end[index - 1]) began = start[index]!; // pieces of one gap follow each other
        ends.set(`${rank}/${device}/${at}`, at - began);
      });
    }
    this.idleTime = Float64Array.from(this.work, (row) => {
      const { rank, device } = this.lanes[this.laneOf(row)]!,
        key = `${rank}/${device}/${this.start[row]}`;
      const time = ends.get(key) ?? 0;
      ends.delete(key);
      return time;
    });
    return this.idleTime;
  }

  /** The events around it on its lane, the outermost first. */
  around(row: number): number[] {
    const found: number[] = [];
    for (let at = this.parent[row]!; at !== NONE; at = this.parent[at]!) found.push(at);
    return found.reverse();
  }

  /** Places in `work` of what was launched by this event or inside of it. */
  launchedInside(row: number): Uint32Array {
    this.byLaunch ??= Uint32Array.from(this.launch.keys()).sort(
      (a, b) => this.launch[a]! - this.launch[b]! || a - b,
    );
    const place = (launch: number) => lowerBound(this.byLaunch!, launch, (work) => this.launch[work]!);
    return this.byLaunch.subarray(place(row), place(this.lastInside(row) + 1));
  }

  /** Rows stand in the order of their starts, the longest first: what is inside of one follows it. */
  private lastInside(row: number): number {
    const lane = this.lanes[this.laneOf(row)]!;
    let last = row;
    while (last + 1 < lane.first + lane.count && this.depth[last + 1]! > this.depth[row]!) last++;
    return last;
  }

  private nest(lane: number): void {
    const { first, count } = this.lanes[lane]!;
    const open: number[] = []; // by depth
    const onLine: number[] = [];
    const drawn: number[] = []; // by line, without steps
    const isStepName = this.names.map(({ name }) => name.startsWith("ProfilerStep#"));
    const below = this.name.subarray(first, first + count).some((name) => isStepName[name]!) ? 1 : 0;
    let step = -1,
      now = 0;
    const isOver = (row: number) => this.endOf(row) <= now;
    for (let row = first; row < first + count; row++) {
      now = this.start[row]!;
      while (open.length && isOver(open.at(-1)!)) open.pop();
      // What outlasts its step does not push the next one down.
      const isStep = isStepName[this.name[row]!]!;
      const free = isStep ? open.findIndex(isOver) : -1;
      const depth = free < 0 ? open.length : free;
      const around = free < 0 && step >= 0 && !isOver(step) ? Math.max(step, open.at(-1)!) : open[depth - 1];
      if (isStep) step = row;
      this.parent[row] = around ?? NONE;
      this.depth[row] = depth;
      open[depth] = row;
      while (drawn.length && isOver(drawn.at(-1)!)) drawn.pop();
      const line = isStep ? 0 : below + drawn.length;
      if (!isStep) drawn.push(row);
      this.line[row] = line;
      onLine[line] = (onLine[line] ?? 0) + 1;
    }
    const lines = Array.from(onLine, (size, number) => ({ lane, number, rows: new Uint32Array(size ?? 0) }));
    const filled = lines.map(() => 0);
    for (let row = first; row < first + count; row++) {
      const line = this.line[row]!;
      lines[line]!.rows[filled[line]!++] = row;
    }
    this.lines.push(...lines);
  }

  private rowsOfWork(): Uint32Array {
    const streams = this.lanes.filter((lane) => lane.kind === "stream");
    return Uint32Array.from(
      streams.flatMap(({ first, count }) => Array.from({ length: count }, (_, at) => first + at)),
    );
  }

  private idleByDevice(): Idle[] {
    const device = this.columns.get("idle_device")!;
    const [start, duration, cause] = ["start", "duration", "cause"].map((name) =>
      this.columns.get(`idle_${name}`)!,
    );
    let from = 0;
    return this.timeline.idle_devices.map(([rank, number], index) => {
      let to = from;
      while (to < device.length && device[to] === index) to++;
      const idle = {
        rank,
        device: number,
        start: Float64Array.from(start!.subarray(from, to)),
        end: Float64Array.from(start!.subarray(from, to), (at, index) => at + duration![from + index]!),
        cause: Uint8Array.from(cause!.subarray(from, to)),
      };
      from = to;
      return idle;
    });
  }
}

/** The first place whose value is not below `wanted`; `values` are in the order of `of`. */
export function lowerBound<Value>(
  values: ArrayLike<Value>,
  wanted: number,
  of: (value: Value) => number,
  low = 0,
  high = values.length,
): number {
  while (low < high) {
    const middle = (low + high) >> 1;
    if (of(values[middle]!) < wanted) low = middle + 1;
    else high = middle;
  }
  return low;
}

/** The same, looked for near `from`: in steps that double. */
export function gallop(
  values: ArrayLike<number>,
  wanted: number,
  of: (value: number) => number,
  from: number,
): number {
  let low = from,
    step = 1;
  while (low + step < values.length && of(values[low + step]!) < wanted) {
    low += step;
    step *= 2;
  }
  return lowerBound(values, wanted, of, low, Math.min(low + step, values.length));
}

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
