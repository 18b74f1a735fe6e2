// What an allocator did, event by event: what it had after any of them, and how long each segment was there.
import type { AllocatorEvents } from "../document.ts";
import type { Numbers } from "../load.ts";
import type { Block } from "./layout.ts";

export interface Events {
  length: number;
  action: (event: number) => string;
  time: Numbers;
  address: Numbers;
  bytes: Numbers;
  stream: (event: number) => string;
  stack: Numbers;
  /** What the program had torch note of it, and what was compiling. */
  context: (event: number) => readonly [string, string];
}

/** What was given out at an address: by which event, null for what was there before the first. */
export interface Given {
  bytes: number;
  stack: number;
  event: number | null;
  isReleased: boolean; // the program has no more use for it, a stream still may
}

export interface Segment {
  address: number;
  bytes: number;
  stream: string;
}

export interface State {
  segments: Segment[];
  blocks: Map<number, Given>;
  allocated: number;
  reserved: number;
}

const TAKES = ["segment_alloc", "segment_map"],
  GIVES = ["segment_free", "segment_unmap"];

export function eventsOf(history: AllocatorEvents, columns: ReadonlyMap<string, Numbers>): Events {
  const of = (name: string): Numbers => columns.get(`allocator ${history.peak} ${name}`)!;
  const [action, stream, context] = [of("action"), of("stream"), of("context")];
  return {
    length: action.length,
    action: (event) => history.actions[action[event]!]!,
    time: of("time"),
    address: of("address"),
    bytes: of("bytes"),
    stream: (event) => history.streams[stream[event]!]!,
    stack: of("stack"),
    context: (event) => history.contexts[context[event]!]!,
  };
}

/** What the allocator had after an event; -1: before the first. */
export function stateAfter(history: AllocatorEvents, events: Events, last: number): State {
  let segments = history.segments.map(([address, bytes, stream]) => ({ address, bytes, stream }));
  const blocks = new Map<number, Given>(
    history.blocks.map(([address, bytes, stack]) => [
      address,
      { bytes, stack, event: null, isReleased: false },
    ]),
  );
  for (let event = 0; event <= last; event++) {
    const action = events.action(event);
    const [address, bytes] = [events.address[event]!, events.bytes[event]!];
    const given = blocks.get(address);
    if (action === "alloc")
      blocks.set(address, { bytes, stack: events.stack[event]!, event, isReleased: false });
    else if (action === history.released) blocks.delete(address);
    else if (action === "free_requested" && given) given.isReleased = true;
    else if (TAKES.includes(action)) segments.push({ address, bytes, stream: events.stream(event) });
    else if (GIVES.includes(action)) segments = without(segments, address, bytes);
  }
  const sum = (all: Iterable<{ bytes: number }>): number =>
    [...all].reduce((whole, one) => whole + one.bytes, 0);
  segments.sort((a, b) => a.address - b.address);
  return { segments, blocks, allocated: sum(blocks.values()), reserved: sum(segments) };
}

/** What is left of segments once a range of them is gone. */
function without<Range extends { address: number; bytes: number }>(
  ranges: readonly Range[],
  address: number,
  bytes: number,
): Range[] {
  const until = address + bytes;
  return ranges.flatMap((one) => {
    const end = one.address + one.bytes;
    if (end <= address || until <= one.address) return [one];
    return [
      { ...one, bytes: address - one.address },
      { ...one, address: until, bytes: end - until },
    ].filter((left) => left.bytes > 0);
  });
}

export interface SegmentLife extends Block {
  stack: number; // of what it was taken for; 0: not known
  stream: string;
}

/** Each segment from when to when it was there. */
export function segmentLives(history: AllocatorEvents, events: Events): SegmentLife[] {
  const ended: SegmentLife[] = [];
  let there: SegmentLife[] = history.segments.map(([address, bytes, stream]) => ({
    start_us: null, end_us: null, address, bytes, stream, stack: 0,
  })); // prettier-ignore
  for (let event = 0; event < events.length; event++) {
    const action = events.action(event);
    const [address, bytes, time] = [events.address[event]!, events.bytes[event]!, events.time[event]!];
    if (TAKES.includes(action)) {
      const [stream, stack] = [events.stream(event), events.stack[event]!];
      there.push({ start_us: time, end_us: null, address, bytes, stream, stack });
    } else if (GIVES.includes(action)) {
      const [before, stay] = [new Set(there), new Set(without(there, address, bytes))];
      const gone = there.filter((one) => !stay.has(one));
      ended.push(...gone.map((one) => ({ ...one, end_us: time })));
      // What is left of a segment of which pages were unmapped begins anew.
      there = [...stay].map((one) => (before.has(one) ? one : { ...one, start_us: time }));
    }
  }
  return [...ended, ...there].sort(
    (a, b) => (a.start_us ?? -1) - (b.start_us ?? -1) || a.address - b.address,
  );
}

export interface Piece {
  bytes: number;
  given: Given | null; // null: free
  address: number;
}

/** What lies in each segment, by address; a block has what it asked for, the rest up to the next is free. */
export function laidOut({ segments, blocks }: State): Piece[][] {
  const order = [...blocks.keys()].sort((a, b) => a - b);
  let next = 0;
  return segments.map(({ address, bytes }) => {
    const pieces: Piece[] = [];
    const end = address + bytes;
    let at = address;
    while (next < order.length && order[next]! < address) next++;
    for (; next < order.length && order[next]! < end; next++) {
      const place = order[next]!;
      const given = blocks.get(place)!;
      if (place > at) pieces.push({ bytes: place - at, given: null, address: at });
      const taken = Math.min(given.bytes, end - place);
      pieces.push({ bytes: taken, given, address: place });
      at = Math.max(at, place + taken);
    }
    if (at < end) pieces.push({ bytes: end - at, given: null, address: at });
    return pieces;
  });
}
