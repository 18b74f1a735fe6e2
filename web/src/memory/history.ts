// All that the allocator did, as a list to search and to step through, with what it had after each event.
import type { App } from "../app.ts";
import { stackOf } from "../blocks.ts";
import type { AllocatorEvents, MemoryBlock, MemoryPeak } from "../document.ts";
import { button, type Child, fill, folded, h, list, titled } from "../dom.ts";
import * as numbers from "../numbers.ts";
import { figure, table } from "../table.ts";
import { blocks } from "./blocks.ts";
import { eventsOf, laidOut, segmentLives, stateAfter, type Events, type Piece } from "./events.ts";
import { lineOf } from "./owner.ts";

const SHOWN = 20, // events at first
  SEGMENTS = 200, // of a state that are drawn, and of the history
  LIVES = 5000;
const LIBRARY = /\/(torch|site-packages|dist-packages)\//;

export function allocatorHistory(
  app: App,
  peak: MemoryPeak,
  history: AllocatorEvents,
  chosen: number | null,
  choose: (event: number) => void,
): Child {
  const events = eventsOf(history, app.columns);
  const stacks = history.stacks.map((stack) => stack.map((frame) => history.frames[frame]!));
  const panel = h("div", { class: "owner", id: "allocator-state", "aria-live": "polite" });
  const show = (event: number): void => {
    choose(event);
    fill(panel, state(app, peak, history, events, stacks, event, show));
  };
  if (chosen !== null && chosen >= 0 && chosen < events.length) show(chosen);
  const lives = segmentLives(history, events);
  const drawn = { ...peak, stacks, over_time: [], blocks: lives.slice(0, LIVES).map(asBlock) };
  return [
    titled(
      "What the allocator did",
      [
        `all ${numbers.count(events.length, "event")} of the history, and what it had after each`,
        history.left_out > 0 && `; ${numbers.count(history.left_out, "earlier one")} left out`,
      ],
      panel,
      listed(app, events, stacks, show),
      settings(history),
    ),
    events.length > 1 &&
      lives.length > 0 &&
      titled(
        "Segments over time",
        `what it had of the driver: ${numbers.count(lives.length, "segment")}, each as high as it is large`,
        blocks(app, drawn, () => undefined, "segment").element,
      ),
  ];
}

/** The events, as they came. */
function listed(app: App, events: Events, stacks: string[][], show: (event: number) => void): HTMLElement {
  const texts = stacks.map((stack) => stack.join(" "));
  const lines = stacks.map(caller);
  const line = (stack: number): Child => lines[stack]! && lineOf(app, lines[stack]!, stacks[stack]!);
  return table(
    Array.from({ length: events.length }, (_, event) => event),
    [
      { label: "event", value: (event) => event, cell: (event) => numbers.count(event + 1), kind: "number" },
      {
        label: "at",
        unit: "µs",
        value: (event) => events.time[event]!,
        cell: (event) => button(numbers.time(events.time[event]!), () => show(event), { class: "door" }),
        kind: "number",
      },
      { label: "what", value: events.action },
      figure("bytes", (event) => events.bytes[event]!, numbers.size),
      {
        label: "address",
        value: (event) => hex(events, event),
        cell: (event) => h("span.mono", hex(events, event)),
        kind: "plain",
      },
      { label: "stream", value: events.stream, kind: "plain" },
      {
        label: "line",
        value: (event) => lines[events.stack[event]!]!,
        cell: (event) => line(events.stack[event]!),
      },
    ],
    {
      id: "allocator-events",
      label: "allocator events",
      most: SHOWN,
      filter: (event) =>
        [
          events.action(event),
          hex(events, event),
          ...events.context(event),
          texts[events.stack[event]!],
        ].join(" "),
    },
  );
}

/** What the allocator had after an event, and the way to the next one. */
function state(
  app: App,
  peak: MemoryPeak,
  history: AllocatorEvents,
  events: Events,
  stacks: string[][],
  event: number,
  show: (event: number) => void,
): Child {
  const then = stateAfter(history, events, event);
  const address = events.address[event]!;
  const laid = laidOut(then).map((pieces, place) => ({ pieces, segment: then.segments[place]! }));
  const isHere = ({ segment }: (typeof laid)[number]): boolean =>
    events.action(event) !== "oom" && address >= segment.address && address < segment.address + segment.bytes;
  const free = ({ pieces }: (typeof laid)[number]): number =>
    pieces.reduce((sum, one) => sum + (one.given ? 0 : one.bytes), 0);
  laid.sort((a, b) => Number(isHere(b)) - Number(isHere(a)) || free(b) - free(a));
  const roles = new Map(peak.blocks.map((block) => [`${block.address} ${block.start_us}`, block.role]));
  const role = (piece: Piece): string | null => {
    const made = piece.given!.event;
    return roles.get(`${piece.address} ${made === null ? null : events.time[made]}`) ?? null;
  };
  const said = (piece: Piece): string => {
    const { given, bytes } = piece;
    if (!given) return `${numbers.size(bytes)} free`;
    const whose = given.isReleased ? "given back, in use by a stream" : role(piece);
    return [numbers.size(bytes), whose, caller(stacks[given.stack]!)].filter(Boolean).join(" · ");
  };
  const drawn = (piece: Piece): HTMLElement => {
    const { given, bytes } = piece,
      title = said(piece),
      made = given?.event ?? null;
    const style = {
      "flex-grow": String(bytes),
      ...(given && { background: app.palette.memory(role(piece) ?? "") }),
    };
    const looks = { class: given && (piece.address === address ? "given lit" : "given"), title, style };
    if (made === null) return h("span", looks);
    return button("", () => show(made), { ...looks, "aria-label": title });
  };
  const held = (one: (typeof laid)[number]): Child => [
    h(
      "span",
      `${numbers.size(one.segment.bytes)}, ${numbers.size(free(one))} free`,
      one.segment.stream !== "0" && `, stream ${one.segment.stream}`,
    ),
    h("div.segment", one.pieces.map(drawn)),
  ];
  const step = (to: number, label: string): HTMLElement =>
    button(label, () => show(to), { class: "door", disabled: to < 0 || to >= events.length });
  const isOom = events.action(event) === "oom";
  const where = isOom
    ? ` requested, of the driver's ${numbers.size(address)} free`
    : ` at ${hex(events, event)}`;
  const stack = stacks[events.stack[event]!]!;
  const [metadata, compiling] = events.context(event);
  return [
    h(
      "div.tools.bare",
      step(event - 1, "event before"),
      step(event + 1, "next event"),
      h("span", `${numbers.count(event + 1)} of ${numbers.count(events.length)}`),
    ),
    h("h3", `${events.action(event)} of ${numbers.size(events.bytes[event]!)}${where}`),
    h(
      "p",
      `${numbers.time(events.time[event]!)}: then ${numbers.size(then.allocated)} were allocated of `,
      `${numbers.size(then.reserved)} in ${numbers.count(then.segments.length, "segment")}.`,
    ),
    metadata && h("p", `Noted by the program: ${metadata}`),
    compiling && h("p", `While ${compiling} was compiled.`),
    stack.length > 0 && folded("Its stack", stackOf(app, stack)),
    h("div.held", laid.slice(0, SEGMENTS).map(held)),
    laid.length > SEGMENTS && h("p", `${numbers.count(laid.length - SEGMENTS)} more are not drawn.`),
  ];
}

function settings(history: AllocatorEvents): Child {
  const said = Object.entries(history.settings);
  const notes = said.map(([name, value]) => `${name}: ${value || "not set"}`);
  return notes.length > 0 && folded("Settings of the allocator", list("notes", notes));
}

const hex = (events: Events, event: number): string =>
  events.action(event) === "oom" ? "" : `0x${events.address[event]!.toString(16)}`;

/** The innermost line that is the program's own. */
function caller(stack: readonly string[]): string | null {
  const frame = stack.find((one) => !LIBRARY.test(one)) ?? stack[0];
  return frame === undefined ? null : frame.replace(/^.*\//, "").split(" ")[0]!;
}

const NOT_KNOWN = {
  line: null,
  name: null,
  module: null,
  op: null,
  user_metadata: null,
  compile_context: null,
};

const asBlock = (life: ReturnType<typeof segmentLives>[number]): MemoryBlock => ({
  ...{ ...life, ...NOT_KNOWN, role: "segment", pool: null },
  owner: life.stream === "0" ? "the default stream" : `stream ${life.stream}`,
});
