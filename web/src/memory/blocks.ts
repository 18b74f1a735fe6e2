// Allocations as blocks over time: hover says what one is, a click (or the arrow keys) shows whose it is.
import type { App } from "../app.ts";
import { type Inks, at, inks, painted, say } from "../canvas.ts";
import type { MemoryBlock, MemoryPeak } from "../document.ts";
import { button, choice, fill, h } from "../dom.ts";
import * as numbers from "../numbers.ts";
import { tick } from "./area.ts";
import { addressed, blockAt, life, piled, type Layout } from "./layout.ts";
import { describe } from "./owner.ts";

const TALL = 340,
  FOOT = 18, // pixels for the times
  CLOSEST = 20; // microseconds that are drawn at least
const KEYS = "drag: an interval; Ctrl + wheel: nearer; Shift + wheel: along";
const BY = ["in the order they came", "by address"] as const;

export interface Blocks {
  element: HTMLElement;
  select: (block: number) => void;
}

export function blocks(
  app: App,
  peak: MemoryPeak,
  selected: (block: number | null) => void,
  what = "largest allocation",
): Blocks {
  const all = peak.blocks,
    whole = peak.history_us || 1;
  const layouts: Layout[] = [piled(all, whole), addressed(all)];
  const held = peak.over_time.map((one) => one.bytes.reduce((sum, bytes) => sum + bytes, 0));
  let by = 0,
    from = 0,
    to = whole,
    chosen = -1,
    begun: number | null = null, // where a range is being drawn from, in pixels
    range: [number, number] | null = null;

  const height = (): number => (by ? layouts[by]!.height : Math.max(layouts[0]!.height, ...held)) || 1;
  const x = (us: number, width: number): number => ((us - from) / (to - from)) * width;
  const y = (bytes: number): number => (TALL - FOOT) * (1 - bytes / height());
  const time = (pixels: number): number => from + (pixels / view.width()) * (to - from);
  const find = (left: number, top: number): number =>
    top > TALL - FOOT
      ? -1
      : blockAt(all, layouts[by]!, whole, time(left), height() * (1 - top / (TALL - FOOT)));

  const paint = (context: CanvasRenderingContext2D, width: number): void => {
    const ink = inks();
    context.fillStyle = ink.page;
    context.fillRect(0, 0, width, TALL - FOOT);
    all.forEach((block, place) => {
      context.fillStyle = app.palette.memory(block.role);
      pieces(place, width, (left, top, wide, tall) => {
        context.fillRect(left, top, wide, tall);
        if (tall > 3 && wide > 3) {
          context.fillStyle = ink.card;
          context.fillRect(left, top + tall - 0.5, wide, 0.5);
          context.fillStyle = app.palette.memory(block.role);
        }
      });
    });
    if (chosen >= 0) {
      context.strokeStyle = ink.ink;
      context.lineWidth = 2;
      pieces(chosen, width, (left, top, wide, tall) =>
        context.strokeRect(left, top, Math.max(wide, 2), Math.max(tall, 2)),
      );
    }
    if (!by) line(context, width, ink.ink);
    scales(context, width, ink);
    context.fillStyle = ink.ink;
    context.fillRect(x(peak.peak_us, width) - 0.5, 0, 1, TALL - FOOT);
    if (range) {
      context.globalAlpha = 0.2;
      context.fillStyle = ink.accent;
      context.fillRect(Math.min(...range), 0, Math.abs(range[1] - range[0]), TALL - FOOT);
      context.globalAlpha = 1;
    }
  };

  /** The rectangles of a block, each as long as it lay at one height. */
  const pieces = (
    place: number,
    width: number,
    each: (left: number, top: number, wide: number, tall: number) => void,
  ): void => {
    const block = all[place]!,
      levels = layouts[by]!.levels[place]!;
    const [, end] = life(block, whole);
    const tall = Math.max((block.bytes / height()) * (TALL - FOOT), 0.4);
    let drawn = 0;
    levels.forEach((level, index) => {
      const until = levels[index + 1]?.time ?? end;
      const left = Math.max(x(level.time, width), drawn),
        right = Math.min(x(until, width), width);
      if (until < from || level.time > to || (right - left < 0.3 && index + 1 < levels.length)) return;
      drawn = right;
      const seam = index + 1 < levels.length ? 0.5 : 0; // where it comes down it is one block still
      each(left, y(level.y) - tall, Math.max(right - left + seam, 0.6), tall);
    });
  };

  /** All that was held, of which the blocks are the largest. */
  const line = (context: CanvasRenderingContext2D, width: number, colour: string): void => {
    context.beginPath();
    peak.over_time.forEach((one, index) => {
      const until = peak.over_time[index + 1]?.time_us ?? whole;
      context.lineTo(x(one.time_us, width), y(held[index]!));
      context.lineTo(x(until, width), y(held[index]!));
    });
    context.strokeStyle = colour;
    context.lineWidth = 1;
    context.stroke();
  };

  const scales = (context: CanvasRenderingContext2D, width: number, ink: Inks): void => {
    const step = tick(height());
    for (let bytes = step; !by && bytes < height(); bytes += step) {
      const text = numbers.size(bytes);
      context.globalAlpha = 0.75;
      context.fillStyle = ink.card;
      context.fillRect(0, y(bytes) - 7, context.measureText(text).width + 8, 14);
      context.globalAlpha = 1;
      context.fillStyle = ink.ink;
      context.fillText(text, 4, y(bytes) + 4);
    }
    context.fillStyle = ink.soft;
    const count = width < 500 ? 2 : 5;
    for (let mark = 0; mark <= count; mark++) {
      context.textAlign = mark === 0 ? "left" : mark === count ? "right" : "center";
      context.fillText(numbers.time(from + ((to - from) * mark) / count), (width * mark) / count, TALL - 4);
    }
    context.textAlign = "left";
  };

  const view = painted(
    `the ${numbers.count(all.length, what)} over time; arrow keys go from one to the next`,
    TALL,
    paint,
  );
  const panel = h("div", { class: "owner", "aria-live": "polite" });
  const choose = (place: number): void => {
    chosen = place;
    fill(panel, place >= 0 && describe(app, peak, all[place]!));
    selected(place >= 0 ? place : null);
    view.draw();
  };
  const zoom = (low: number, high: number): void => {
    const length = Math.min(Math.max(high - low, CLOSEST), whole);
    from = Math.min(Math.max(low, 0), whole - length);
    to = from + length;
    back.disabled = length >= whole;
    view.draw();
  };
  const nearer = (factor: number): void => {
    const [start, end] = chosen >= 0 ? life(all[chosen]!, whole) : [from, to];
    const middle = Math.min(Math.max((start + end) / 2, from), to);
    zoom(middle - ((to - from) * factor) / 2, middle + ((to - from) * factor) / 2);
  };
  const back = button("all of it", () => zoom(0, whole), { disabled: true });
  const steps: Record<string, number> = { ArrowRight: 1, ArrowLeft: -1 };
  view.canvas.addEventListener("keydown", (event) => {
    const step = steps[event.key];
    if (step) choose(Math.min(Math.max(chosen + step, 0), all.length - 1));
    else if (event.key === "+" || event.key === "=") nearer(0.5);
    else if (event.key === "-") nearer(2);
    else if (event.key === "Escape") choose(-1);
    else return;
    event.preventDefault();
  });
  view.canvas.addEventListener(
    "wheel",
    (event) => {
      if (!event.ctrlKey && !event.metaKey && !event.shiftKey) return; // the page scrolls
      event.preventDefault();
      const turned = (event.deltaY || event.deltaX) * (event.deltaMode === 1 ? 16 : 1);
      const there = time(at(event)[0]),
        factor = Math.exp(turned * 0.004),
        along = (turned / view.width()) * (to - from);
      if (event.shiftKey) zoom(from + along, to + along);
      else zoom(there - (there - from) * factor, there + (to - there) * factor);
    },
    { passive: false },
  );
  view.canvas.addEventListener("pointerdown", (event) => {
    if (event.button > 0) return;
    view.canvas.setPointerCapture(event.pointerId);
    begun = at(event)[0];
  });
  view.canvas.addEventListener("pointermove", (event) => {
    const [left, top] = at(event);
    if (begun !== null && Math.abs(left - begun) > 4) {
      range = [begun, left];
      view.draw();
    }
    const place = range ? -1 : find(left, top);
    say(view, place < 0 ? null : short(all[place]!), left, top);
  });
  view.canvas.addEventListener("pointerup", (event) => {
    if (begun === null) return;
    const [left, top] = at(event);
    if (range) zoom(time(Math.min(...range)), time(Math.max(...range)));
    else choose(find(left, top));
    begun = range = null;
    view.draw();
  });
  view.canvas.addEventListener("pointercancel", () => {
    begun = range = null;
    view.draw();
  });
  view.canvas.addEventListener("pointerleave", () => say(view, null, 0, 0));
  const switches = choice(BY, (place) => {
    by = place;
    view.draw();
  });
  const element = h(
    "div.blocks",
    h("div.tools.bare", switches, back, h("span.keys", KEYS)),
    view.element,
    panel,
  );
  return { element, select: choose };
}

const short = (block: MemoryBlock): string =>
  `${numbers.size(block.bytes)} · ${block.role} · ${block.name ?? block.owner}${block.line ? ` · ${block.line}` : ""}`;
