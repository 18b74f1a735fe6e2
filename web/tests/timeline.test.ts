// The timeline's sums against brute force over every nanosecond of small random recordings.
import assert from "node:assert/strict";
import { test } from "node:test";
import type { Name, Timeline } from "../src/document.ts";
import { unpacked } from "../src/load.ts";
import { evidenceRows, nearest, neighbour, nextNamed, snapped } from "../src/timeline/store.ts";
import { statistics, union, uses } from "../src/timeline/range.ts";
import { gallop, lowerBound, NONE, Store } from "../src/timeline/store.ts";

/** Numbers that look random and are the same each time. */
function draws(seed: number): (below: number) => number {
  let state = seed;
  return (below) => {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    return Math.floor((state / 2 ** 32) * below);
  };
}

interface Event {
  start: number;
  duration: number;
  name: number;
}

const NAMES: Name[] = [
  { name: "mm", kind: "kernel", category: "matmul" },
  { name: "add", kind: "kernel", category: "pointwise" },
  { name: "aten::mm", kind: "cpu_op", category: "" },
  { name: "launch", kind: "cuda_runtime", category: "" },
];

/** Two streams, which may overlap, and a thread of ops with launches inside of them. */
function recording(seed: number): { store: Store; streams: Event[]; host: Event[] } {
  const draw = draws(seed);
  const order = (events: Event[]) => events.sort((a, b) => a.start - b.start || b.duration - a.duration);
  const stream = () => {
    let at = 0;
    return order(
      Array.from({ length: 12 }, () => {
        const start = at + draw(6),
          duration = draw(8);
        at = start + duration;
        return { start, duration, name: draw(2) };
      }),
    );
  };
  const streams = [stream(), stream()];
  const host = order(
    Array.from({ length: 12 }, (_, at) => [
      { start: at * 10, duration: 9, name: 2 },
      { start: at * 10 + 2, duration: 3, name: 3 },
    ]).flat(),
  );
  const events = [...streams.flat(), ...host];
  const first = streams[0]!.length + streams[1]!.length;
  const lane = (kind: string, at: number, count: number, device: number | null) => ({
    label: kind,
    kind,
    rank: 0,
    device,
    first: at,
    count,
  });
  const timeline: Timeline = {
    origin_ns: 0,
    lanes: [lane("stream", 0, 12, 0), lane("stream", 12, 12, 0), lane("thread", 24, 24, null)],
    names: NAMES,
    texts: [""],
    launched: [{}],
    columns: [],
    idle_devices: [[0, 0]],
    causes: ["launch-bound"],
    marks: [{ rank: 0, event: 77, row: 3 }],
    left_out: null,
  };
  const busy = new Set(
    streams.flat().flatMap(({ start, duration }) => Array.from({ length: duration }, (_, at) => start + at)),
  );
  const gaps = Array.from({ length: 120 }, (_, at) => at).filter((at) => !busy.has(at));
  const columns = new Map(
    Object.entries({
      start: Float64Array.from(events, (event) => event.start),
      duration: Uint8Array.from(events, (event) => event.duration),
      name: Uint8Array.from(events, (event) => event.name),
      launch: Float64Array.from(streams.flat(), (_, at) => first + (at % 12) * 2 + 2),
      forward: new Float64Array(24),
      launched: new Uint8Array(24),
      idle_device: new Uint8Array(gaps.length),
      idle_start: Float64Array.from(gaps),
      idle_duration: Uint8Array.from(gaps, () => 1),
      idle_cause: new Uint8Array(gaps.length),
    }),
  );
  return { store: new Store(timeline, columns), streams: streams.flat(), host };
}

/** One thread of events: start, duration and name of each, in the order of their starts. */
function annotated(events: readonly (readonly [number, number, string])[]): Store {
  const names = events.map(([, , name]) => ({ name, kind: "user_annotation", category: "" }));
  const lane = { label: "main", kind: "thread", rank: 0, device: null, first: 0, count: events.length };
  const columns: [string, Float64Array][] = [
    ["start", Float64Array.from(events, ([start]) => start)],
    ["duration", Float64Array.from(events, ([, duration]) => duration)],
    ["name", Float64Array.from(events.keys())],
  ];
  const none = ["launch", "forward", "launched", "idle_device", "idle_start", "idle_duration", "idle_cause"];
  return new Store(
    {
      origin_ns: 0,
      lanes: [lane],
      names,
      texts: [""],
      launched: [{}],
      columns: [],
      idle_devices: [],
      causes: [],
      marks: [],
      left_out: null,
    },
    new Map([...columns, ...none.map((name): [string, Float64Array] => [name, new Float64Array()])]),
  );
}

test("sums of a range are those of every nanosecond in it", () => {
  for (let seed = 1; seed <= 40; seed++) {
    const { store, streams, host } = recording(seed);
    const draw = draws(seed * 97),
      from = draw(60),
      to = from + draw(50);
    const found = statistics(store, from, to);
    const inside = (event: Event) =>
      Math.max(0, Math.min(event.start + event.duration, to) - Math.max(event.start, from));
    const covered = Array.from({ length: to - from }, (_, at) => from + at);
    const isBusy = (at: number) =>
      streams.some((event) => event.start <= at && at < event.start + event.duration);
    assert.equal(
      found.time,
      streams.reduce((sum, event) => sum + inside(event), 0),
    );
    assert.equal(found.launches, streams.filter((event) => event.start >= from && event.start < to).length);
    assert.equal(found.devices[0]!.busy, covered.filter(isBusy).length);
    assert.equal(found.devices[0]!.idle.get("launch-bound") ?? 0, covered.filter((at) => !isBusy(at)).length);
    for (const [at, name] of NAMES.entries()) {
      const rows = (at < 2 ? found.kernels : found.host).find((sum) => sum.name === name.name);
      assert.equal(
        rows?.time ?? 0,
        [...streams, ...host]
          .filter((event) => event.name === at)
          .reduce((sum, event) => sum + inside(event), 0),
      );
    }
  }
});

test("uses of a stretch add up to its busy time, each counted once", () => {
  const plain = NAMES.slice();
  NAMES[0] = { name: "nccl", kind: "kernel", category: "communication" };
  for (let seed = 1; seed <= 20; seed++) {
    const { store, streams } = recording(seed);
    const covered = (name: number, at: number) =>
      streams.some((event) => event.name === name && event.start <= at && at < event.start + event.duration);
    const stretch = Array.from({ length: 40 }, (_, at) => at + 5);
    const found = uses(store, 0, 5, 45);
    assert.equal(found.compute, stretch.filter((at) => covered(1, at)).length);
    assert.equal(found.communication, stretch.filter((at) => covered(0, at) && !covered(1, at)).length);
    assert.equal(found.copy, 0);
    assert.deepEqual(uses(store, 1, 5, 45), { compute: 0, communication: 0, copy: 0 });
  }
  NAMES[0] = plain[0]!;
});

test("events nest by time, and lines never overlap", () => {
  const { store } = recording(5);
  for (let row = 24; row < 48; row++) assert.equal(store.parent[row], store.name[row] === 3 ? row - 1 : NONE);
  for (const { rows } of store.lines)
    for (let at = 1; at < rows.length; at++) assert.ok(store.endOf(rows[at - 1]!) <= store.start[rows[at]!]!);
  assert.equal(
    store.lines.reduce((sum, line) => sum + line.rows.length, 0),
    store.length,
  );
  // What an op launched is what its launch did: each of the twelve launches put one on either stream.
  assert.deepEqual([...store.launchedInside(24)], [0, 12]);
  assert.deepEqual([...store.launchedInside(25)], [0, 12]);
  assert.deepEqual(
    [24, 25, 47].map((row) => store.laneOf(row)),
    [2, 2, 2],
  );
  assert.deepEqual([store.workOf(3), store.workOf(30)], [3, -1]);
});

test("a step is not pushed down by what outlasts the one before it", () => {
  // A thread's annotations: an epoch around two steps; the first one's optimizer ends inside of the second.
  const events = [
    [0, 200, "epoch"],
    [10, 50, "ProfilerStep#1"],
    [40, 30, "optimizer"],
    [60, 40, "ProfilerStep#2"],
    [62, 4, "first"],
    [75, 20, "second"],
    [150, 10, "after"],
  ] as const;
  const store = annotated(events);
  assert.deepEqual([...store.depth], [0, 1, 2, 1, 3, 2, 1]);
  assert.deepEqual([...store.parent], [NONE, 0, 1, 0, 3, 3, 0]);
  assert.deepEqual([...store.line], [1, 0, 2, 0, 3, 2, 2]); // steps have the first line to themselves
  for (const { rows } of store.lines)
    for (let at = 1; at < rows.length; at++) assert.ok(store.endOf(rows[at - 1]!) <= store.start[rows[at]!]!);
});

test("idle time belongs to the work that ended it, once", () => {
  const { store } = recording(9);
  const last = Math.max(...Array.from(store.work, (row) => store.start[row]!));
  const before = store.idle[0]!.end.filter((end) => end <= last).length; // each is a nanosecond long
  assert.equal(
    store.idleBefore().reduce((sum, time) => sum + time, 0),
    before,
  );
});

test("events are found near a time", () => {
  const { store } = recording(3);
  const { rows } = store.lines.find((line) => line.lane === 2 && line.number === 0)!;
  assert.equal(nearest(store, rows, 13, 0), 26);
  assert.equal(nearest(store, rows, 9.4, 0.5), 24);
  assert.equal(nearest(store, rows, 500, 2), NONE);
  assert.equal(neighbour(store, 26, 0, 1), 28);
  assert.equal(neighbour(store, 24, 0, -1), NONE);
  assert.equal(nextNamed(store, new Set([3]), 25, 0, 1), 27);
  assert.equal(nextNamed(store, new Set([3]), 27, 0, -1), 25);
  assert.equal(snapped(store, 22.4, 1), 22);
  assert.equal(snapped(store, 1000.6, 1), 1001);
  const report = { findings: [{ ranks: [0], evidence: [{ events: [77] }, { events: [5] }] }] } as never;
  assert.deepEqual([...evidenceRows(store, report, "0.0")], [3]);
  assert.deepEqual([...evidenceRows(store, report, "0.1")], []);
  assert.deepEqual([...evidenceRows(store, report, undefined)], []);
});

test("columns are unpacked from planes and differences", () => {
  const column = (planes: number, deltas: boolean) => ({ name: "x", length: 3, planes, deltas, data: "" });
  assert.deepEqual([...unpacked(column(2, false), Uint8Array.of(9, 1, 2, 3, 0, 1, 2), 1)], [1, 258, 515]);
  assert.deepEqual([...unpacked(column(1, true), Uint8Array.of(10, 3, 4), 0)], [5, 3, 5]);
  assert.deepEqual([...unpacked(column(0, true), new Uint8Array(), 0)], [0, 0, 0]);
  assert.equal(
    unpacked(
      column(6, false),
      Uint8Array.from({ length: 18 }, () => 255),
      0,
    )[2],
    2 ** 48 - 1,
  );
});

test("searches agree with a walk", () => {
  const values = Float64Array.from({ length: 200 }, (_, at) => Math.floor(at / 3) * 2);
  const itself = (value: number) => value;
  for (let wanted = -1; wanted < 140; wanted++) {
    const walked = values.findIndex((value) => value >= wanted);
    const expected = walked < 0 ? values.length : walked;
    assert.equal(lowerBound(values, wanted, itself), expected);
    assert.equal(gallop(values, wanted, itself, 0), expected);
    assert.equal(gallop(values, wanted, itself, 50), Math.max(expected, 50));
  }
  assert.equal(
    union([
      [5, 7],
      [0, 3],
      [2, 4],
      [6, 6],
    ]),
    6,
  );
});
