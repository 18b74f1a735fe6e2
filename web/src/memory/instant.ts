// Who had the memory at an instant that is chosen, and all allocations that are drawn as a list to search.
import type { App } from "../app.ts";
import type { MemoryBlock, MemoryPeak } from "../document.ts";
import { button, type Child, h, soft, swatch } from "../dom.ts";
import * as numbers from "../numbers.ts";
import { type ColumnOf, figure, shares, table } from "../table.ts";
import { life } from "./layout.ts";
import { lineOf } from "./owner.ts";

const OWNERS = 12,
  ALLOCATIONS = 20; // rows that are shown at first

interface Owner {
  block: MemoryBlock; // the largest of them
  bytes: number;
  allocations: number;
}

/** The drawn allocations that were there at a moment, by role, owner and line, most bytes first. */
export function owners(blocks: readonly MemoryBlock[], time: number, until: number): Owner[] {
  const found = new Map<string, Owner>();
  for (const block of blocks) {
    const [start, end] = life(block, until);
    if (time < start || (time >= end && block.end_us !== null)) continue;
    const key = [block.role, block.owner, block.line].join("\n");
    const one = found.get(key) ?? { block, bytes: 0, allocations: 0 };
    found.set(key, {
      block: block.bytes > one.block.bytes ? block : one.block,
      bytes: one.bytes + block.bytes,
      allocations: one.allocations + 1,
    });
  }
  return [...found.values()].sort((a, b) => b.bytes - a.bytes);
}

/** Who had what at a point of the curve. */
export function instant(app: App, peak: MemoryPeak, at: number): Child {
  const { time_us: time, bytes } = peak.over_time[at]!;
  const whole = bytes.reduce((sum, one) => sum + one, 0);
  const rows = owners(peak.blocks, time, peak.history_us || 1);
  const rest = whole - rows.reduce((sum, row) => sum + row.bytes, 0);
  return [
    h("h3", `At ${numbers.time(time)}: ${numbers.size(whole)} allocated`),
    table(
      rows,
      [
        figure("bytes", (row) => row.bytes, numbers.size),
        shares("of what was allocated", ({ block, bytes }) => [
          bytes / (whole || 1),
          app.palette.memory(block.role),
        ]),
        { label: "allocations", value: (row) => row.allocations },
        ...owned<Owner>(app, peak, (row) => row.block),
      ],
      { label: "owners at the chosen moment", most: OWNERS, filter: (row) => searched(peak, row.block) },
    ),
    rest > 0 && soft(`${numbers.size(rest)} more are of smaller allocations, which are not drawn.`),
  ];
}

/** The allocations that are drawn: when each was made and given back, by whom. */
export function allocations(app: App, peak: MemoryPeak, select: (block: number) => void): HTMLElement {
  const places = new Map(peak.blocks.map((block, place) => [block, place]));
  const shown = (block: MemoryBlock): Child =>
    button(block.start_us === null ? "before the history" : numbers.time(block.start_us), () =>
      select(places.get(block)!),
    );
  return table(
    peak.blocks,
    [
      { label: "allocated", value: (block) => block.start_us, cell: shown, kind: "number" },
      figure("given back", (block) => block.end_us, numbers.time),
      figure("bytes", (block) => block.bytes, numbers.size),
      ...owned<MemoryBlock>(app, peak, (block) => block),
      { label: "op", value: (block) => block.op },
    ],
    { label: "allocations", most: ALLOCATIONS, filter: (block) => searched(peak, block) },
  );
}

/** What can be searched for: whoever is on the stack as well. */
const searched = (peak: MemoryPeak, block: MemoryBlock): string =>
  [
    ...Object.values(block).filter((one) => typeof one === "string"),
    ...(peak.stacks[block.stack] ?? []),
  ].join(" ");

function owned<Row>(app: App, peak: MemoryPeak, of: (row: Row) => MemoryBlock): ColumnOf<Row>[] {
  const role = (row: Row): Child => [swatch(app.palette.memory(of(row).role)), of(row).role];
  const line = ({ line, stack }: MemoryBlock): Child => line && lineOf(app, line, peak.stacks[stack] ?? []);
  return [
    { label: "role", value: (row) => of(row).role, cell: role, kind: "plain" },
    { label: "whose", value: (row) => of(row).owner },
    { label: "line", value: (row) => of(row).line, cell: (row) => line(of(row)) },
  ];
}
