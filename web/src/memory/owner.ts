// Whose an allocation is: its line, its module, the stack that asked for it.
import type { App } from "../app.ts";
import type { MemoryBlock, MemoryPeak } from "../document.ts";
import { type Child, facts, h, link, monoLink } from "../dom.ts";
import * as numbers from "../numbers.ts";
import { FRAME, stackOf } from "../blocks.ts";
import { life } from "./layout.ts";

export function describe(app: App, peak: MemoryPeak, block: MemoryBlock): Child {
  const until = peak.history_us || 1;
  const [start, end] = life(block, until);
  const stack = peak.stacks[block.stack] ?? [];
  const shown =
    peak.traced_us === null
      ? null
      : app.traceTimeHref(peak.traced_us + start, peak.traced_us + Math.min(end, start + 1000));
  const lived = [
    block.start_us === null ? "from before the history" : `from ${numbers.time(start)}`,
    block.end_us === null ? "to its end" : `to ${numbers.time(end)}`,
    block.start_us !== null && block.end_us !== null ? `(${numbers.time(end - start)})` : "",
  ].join(" ");
  const known = facts(
    [
      ["size", `${numbers.size(block.bytes)} (${numbers.count(block.bytes)} bytes)`],
      ["lived", [lived, shown && [" · ", link(shown, "in the timeline")]]],
      ["role", block.role],
      ["whose", block.name ?? block.owner],
      ["module", block.module],
      ["op", block.op && h("span.mono", block.op)],
      ["line", block.line && lineOf(app, block.line, stack)],
      ["noted by the program", block.user_metadata],
      ["compiling", block.compile_context],
      ["private pool", block.pool?.join(", ")],
      ["address", h("span.mono", `0x${block.address.toString(16)}`)],
    ],
    "facts wide",
  );
  return [known, stack.length > 0 && stackOf(app, stack)];
}

/** `model.py:12`, as a door to the whole path that the stack has. */
export function lineOf(app: App, line: string, stack: readonly string[]): Child {
  const whole = stack
    .map((one) => FRAME.exec(one))
    .find((one) => one && `${one[1]}:${one[2]}`.endsWith(line));
  const [, file, number] = whole ?? FRAME.exec(line) ?? [];
  return file === undefined ? line : monoLink(app.lineHref(file, Number(number)), line);
}
