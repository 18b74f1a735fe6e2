// What an allocator had after each event, against a map of bytes: each is of a segment, of a block, or neither.
import assert from "node:assert/strict";
import { test } from "node:test";
import type { AllocatorEvents } from "../src/document.ts";
import { eventsOf, laidOut, segmentLives, stateAfter } from "../src/memory/events.ts";

const ACTIONS = ["alloc", "free_requested", "free_completed", "segment_map", "segment_unmap", "oom"];

type Row = [action: string, address: number, bytes: number, stack: number];

function given(rows: Row[], segments: [number, number, string][], blocks: [number, number, number][]) {
  const history: AllocatorEvents = {
    peak: 0, actions: ACTIONS, released: "free_completed", streams: ["0"], contexts: [["", ""]], segments, blocks,
    frames: [], stacks: [[], [], []], columns: [], settings: {}, left_out: 0,
  }; // prettier-ignore
  const column = (of: (row: Row, at: number) => number): Float64Array => Float64Array.from(rows, of);
  const columns = new Map([
    ["allocator 0 action", column(([action]) => ACTIONS.indexOf(action))],
    ["allocator 0 time", column((_, at) => 10 * at)],
    ["allocator 0 address", column((row) => row[1])],
    ["allocator 0 bytes", column((row) => row[2])],
    ["allocator 0 stream", column(() => 0)],
    ["allocator 0 stack", column((row) => row[3])],
  ]);
  return { history, events: eventsOf(history, columns) };
}

// Pages of 8 bytes: two from before with a block in each, more mapped, one in the middle unmapped again.
const ROWS: Row[] = [
  ["segment_map", 16, 16, 1],
  ["alloc", 16, 5, 2],
  ["free_requested", 0, 6, 1],
  ["alloc", 24, 8, 2],
  ["free_completed", 0, 6, 1],
  ["oom", 3, 100, 1],
  ["segment_unmap", 0, 8, 0],
  ["free_requested", 24, 8, 2],
  ["free_completed", 24, 8, 2],
  ["segment_unmap", 24, 8, 0],
  ["alloc", 8, 2, 1],
];
const { history, events } = given(ROWS, [[0, 16, "0"]], [[0, 6, 1]]);

/** The bytes that are the allocator's and those that are given out, one by one. */
function bytesAfter(last: number): [Set<number>, Map<number, string>] {
  const reserved = new Set<number>(),
    used = new Map<number, string>();
  const each = (address: number, bytes: number, of: (at: number) => void): void => {
    for (let at = address; at < address + bytes; at++) of(at);
  };
  each(0, 16, (at) => reserved.add(at));
  each(0, 6, (at) => used.set(at, "before"));
  ROWS.slice(0, last + 1).forEach(([action, address, bytes], event) => {
    if (action === "segment_map") each(address, bytes, (at) => reserved.add(at));
    if (action === "segment_unmap") each(address, bytes, (at) => reserved.delete(at));
    if (action === "alloc") each(address, bytes, (at) => used.set(at, String(event)));
    if (action === "free_completed") each(address, bytes, (at) => used.delete(at));
  });
  return [reserved, used];
}

test("after each event segments and blocks are the bytes that they should be", () => {
  for (let last = -1; last < ROWS.length; last++) {
    const then = stateAfter(history, events, last);
    const [reserved, used] = bytesAfter(last);
    assert.equal(then.reserved, reserved.size, `reserved after ${last}`);
    assert.equal(then.allocated, used.size, `allocated after ${last}`);
    const laid = laidOut(then).flat();
    assert.equal(
      laid.reduce((sum, piece) => sum + piece.bytes, 0),
      reserved.size,
    );
    for (const { address, bytes, given } of laid)
      for (let at = address; at < address + bytes; at++) {
        assert.ok(reserved.has(at));
        assert.equal(given && (given.event === null ? "before" : String(given.event)), used.get(at) ?? null);
      }
  }
});

test("what the program gave back is there until the stream has done with it", () => {
  assert.equal(stateAfter(history, events, 2).blocks.get(0)!.isReleased, true);
  assert.equal(stateAfter(history, events, 4).blocks.has(0), false);
});

test("lives of segments sum to what was reserved at each event", () => {
  const lives = segmentLives(history, events);
  ROWS.forEach((_, event) => {
    const time = 10 * event;
    const there = lives.filter((one) => (one.start_us ?? -1) <= time && (one.end_us ?? Infinity) > time);
    assert.equal(
      there.reduce((sum, one) => sum + one.bytes, 0),
      bytesAfter(event)[0].size,
    );
  });
  assert.deepEqual(
    lives.map((one) => one.start_us),
    [null, 0, 60, 90],
  );
});
