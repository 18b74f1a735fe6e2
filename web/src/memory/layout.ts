// Where allocations are drawn: piled up in the order in which they came, or by where they lay.

export interface Block {
  start_us: number | null;
  end_us: number | null;
  address: number;
  bytes: number;
}

/** From `time` on, until the next one, the block begins at `y` bytes. */
export interface Level {
  time: number;
  y: number;
}

export interface Layout {
  levels: Level[][];
  /** The most bytes from the bottom to the top. */
  height: number;
}

/** From when to when; what was there before the history, or outlives it, to the edges. */
export const life = (block: Block, until: number): [number, number] => [
  block.start_us ?? 0,
  block.end_us ?? until,
];

/** Each on top of those that are there; when one goes, those above it come down. */
export function piled(blocks: readonly Block[], until: number): Layout {
  const lives = blocks.map((block) => life(block, until));
  const levels: Level[][] = blocks.map(() => []);
  // Of those that are there from the beginning, the longest lived lie at the bottom.
  const comes = blocks
    .map((_, at) => at)
    .sort((a, b) => lives[a]![0] - lives[b]![0] || lives[b]![1] - lives[a]![1] || a - b);
  const goes = blocks.map((_, at) => at).sort((a, b) => lives[a]![1] - lives[b]![1] || a - b);
  let there: number[] = [],
    top = 0,
    height = 0,
    gone = 0;
  const leave = (before: number): void => {
    while (gone < goes.length && lives[goes[gone]!]![1] <= before) {
      const time = lives[goes[gone]!]![1];
      const leaving = new Set<number>();
      while (gone < goes.length && lives[goes[gone]!]![1] === time) leaving.add(goes[gone++]!);
      const lowest = there.findIndex((one) => leaving.has(one));
      if (lowest < 0) continue;
      let y = levels[there[lowest]!]!.at(-1)!.y;
      for (const one of there.slice(lowest)) {
        if (leaving.has(one)) continue;
        levels[one]!.push({ time, y });
        y += blocks[one]!.bytes;
      }
      there = there.filter((one) => !leaving.has(one));
      top = y;
    }
  };
  for (const one of comes) {
    const [start, end] = lives[one]!;
    leave(start);
    levels[one]!.push({ time: start, y: top });
    if (end <= start) continue; // given back in the same microsecond
    top += blocks[one]!.bytes;
    height = Math.max(height, top);
    there.push(one);
  }
  leave(until);
  return { levels, height };
}

const GAP = 0.01; // of the largest block: what is drawn for addresses at which none of them lay

/** By address; ranges that none of them uses are one gap each, however long. */
export function addressed(blocks: readonly Block[]): Layout {
  const order = blocks.map((_, at) => at).sort((a, b) => blocks[a]!.address - blocks[b]!.address);
  const gap = Math.ceil(GAP * Math.max(...blocks.map((block) => block.bytes), 0));
  const levels: Level[][] = blocks.map(() => []);
  let end = -1, // the address up to which something lay, and what is drawn there
    y = 0;
  for (const one of order) {
    const { address, bytes, start_us } = blocks[one]!;
    if (end >= 0 && address > end) y += Math.min(address - end, gap);
    if (address > end) end = address;
    levels[one]!.push({ time: start_us ?? 0, y: y - (end - address) });
    if (address + bytes > end) {
      y += address + bytes - end;
      end = address + bytes;
    }
  }
  return { levels, height: y };
}

/** Where a block begins at a time of its life. */
export function levelAt(levels: readonly Level[], time: number): number {
  return (levels.findLast((level) => level.time <= time) ?? levels[0]!).y;
}

/** The block at a time and a height, none: -1. */
export function blockAt(
  blocks: readonly Block[],
  { levels }: Layout,
  until: number,
  time: number,
  y: number,
): number {
  return blocks.findIndex((block, at) => {
    const [start, end] = life(block, until);
    if (time < start || time >= end) return false;
    const bottom = levelAt(levels[at]!, time);
    return y >= bottom && y < bottom + block.bytes;
  });
}
