// Where blocks are drawn, against brute force over every microsecond of small random histories.
import assert from "node:assert/strict";
import { test } from "node:test";
import { tick } from "../src/memory/area.ts";
import { owners } from "../src/memory/instant.ts";
import { addressed, blockAt, levelAt, life, piled, type Block } from "../src/memory/layout.ts";
import { excess, fullest } from "../src/ranks/heat.ts";

const UNTIL = 40;

function draws(seed: number): (below: number) => number {
  let state = seed;
  return (below) => {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    return Math.floor((state / 2 ** 32) * below);
  };
}

/** Blocks at whole microseconds, which never lie on each other: each has its place, used again and again. */
function history(seed: number): Block[] {
  const draw = draws(seed);
  const blocks: Block[] = [];
  for (let place = 0; place < 8; place++) {
    let time: number | null = draw(2) ? null : draw(8);
    while (time === null || time < UNTIL) {
      const end: number | null = draw(6) ? (time ?? 0) + draw(12) : null;
      blocks.push({ start_us: time, end_us: end, address: 4096 * place * place, bytes: 1 + draw(4096) });
      if (end === null) break;
      time = end + draw(4) + 1;
    }
  }
  return blocks;
}

const there = (blocks: Block[], time: number): number[] =>
  blocks.flatMap((block, at) => {
    const [start, end] = life(block, UNTIL);
    return start <= time && time < end ? [at] : [];
  });

test("piled blocks lie on each other without room between, and at most as high as was held", () => {
  for (let seed = 1; seed <= 40; seed++) {
    const blocks = history(seed),
      { levels, height } = piled(blocks, UNTIL);
    let most = 0;
    for (let time = 0; time < UNTIL; time++) {
      const here = there(blocks, time).sort((a, b) => levelAt(levels[a]!, time) - levelAt(levels[b]!, time));
      let y = 0;
      for (const at of here) {
        assert.equal(levelAt(levels[at]!, time), y);
        y += blocks[at]!.bytes;
      }
      most = Math.max(most, y);
    }
    assert.equal(height, most);
  }
});

test("the owners at a moment have the bytes of the blocks that are there, each block once", () => {
  for (let seed = 1; seed <= 40; seed++) {
    const blocks = history(seed).map((block, at) => ({
      ...block,
      role: `role ${at % 2}`,
      owner: `owner ${at % 3}`,
      line: null,
      name: null,
      module: null,
      op: null,
      stack: 0,
      user_metadata: null,
      compile_context: null,
      pool: null,
    }));
    for (let time = 0; time < UNTIL; time++) {
      const here = there(blocks, time),
        found = owners(blocks, time, UNTIL);
      assert.equal(
        found.reduce((sum, one) => sum + one.bytes, 0),
        here.reduce((sum, at) => sum + blocks[at]!.bytes, 0),
      );
      assert.equal(
        found.reduce((sum, one) => sum + one.allocations, 0),
        here.length,
      );
      assert.equal(new Set(found.map(({ block }) => block.role + block.owner)).size, found.length);
    }
  }
});

test("by address no block lies on another, and a place stays a place", () => {
  for (let seed = 1; seed <= 40; seed++) {
    const blocks = history(seed),
      layout = addressed(blocks);
    const at = new Map(blocks.map((block, place) => [block.address, layout.levels[place]![0]!.y]));
    blocks.forEach((block, place) => assert.equal(layout.levels[place]![0]!.y, at.get(block.address)));
    for (let time = 0; time < UNTIL; time++) {
      const here = there(blocks, time).sort((a, b) => blocks[a]!.address - blocks[b]!.address);
      let y = 0;
      for (const one of here) {
        const bottom = layout.levels[one]![0]!.y;
        assert.ok(bottom >= y);
        y = bottom + blocks[one]!.bytes;
        assert.equal(blockAt(blocks, layout, UNTIL, time, (bottom + y) / 2), one);
      }
      assert.ok(y <= layout.height);
    }
  }
});

test("what is given back in the microsecond in which it came holds nobody up", () => {
  const block = { start_us: 3, end_us: 3, address: 0, bytes: 5 };
  const after = { start_us: 3, end_us: null, address: 9, bytes: 7 };
  const { levels, height } = piled([block, after], UNTIL);
  assert.equal(levelAt(levels[1]!, 5), 0);
  assert.equal(height, 7);
});

test("two to five marks fit", () => {
  for (const most of [1, 3, 999, 1000, 5e6, 3.46e9, 1.5e11]) {
    assert.ok(most / tick(most) >= 2);
    assert.ok(most / tick(most) <= 5);
  }
});

test("a rank is slow against the others in that step, and what is not known is nothing", () => {
  const row = {
    ranks: "0-3",
    count: 4,
    took_us: [12, null],
    own_us: [5, null],
    slowest: [2, null],
    slowest_us: [15, null],
    blamed_us: [8, 0],
    place: "",
  };
  const paces = { steps: ["a", "b"], took_us: [10, 10], own_us: [10, 10], rows: [row], places: {} };
  assert.equal(excess(paces, row, "took", 0), 0.2);
  assert.equal(excess(paces, row, "own", 0), -0.5);
  assert.equal(excess(paces, row, "own", 0, true), 0.5);
  assert.equal(excess(paces, row, "late", 0), 0.2);
  assert.equal(excess(paces, row, "took", 1), null);
  assert.equal(fullest(paces, "took"), 0.2);
});
