// The timeline on a canvas. What is narrower than a pixel is drawn once a pixel and then skipped over: a frame
// costs what there is to see, not what there is.
import { shorten } from "../names.ts";
import * as numbers from "../numbers.ts";
import type { App } from "../app.ts";
import { type Track, trackOf } from "./layout.ts";
import type { Inks } from "../canvas.ts";
import { gallop, lowerBound, NONE, Store } from "./store.ts";

export const RULER = 24;

export interface View {
  from: number;
  to: number;
  scroll: number;
  /** Pixels below the ruler that do not scroll: pinned tracks. */
  fixed: number;
  width: number;
  height: number;
}
export interface Marked {
  selected: number;
  found: Set<number> | null;
  rows: Set<number>;
  range: [number, number] | null;
  /** Idle time that is looked at: the index of its device, and its place there. */
  gap: [device: number, at: number] | null;
  hovered: number;
}

export const unmarked = (): Marked => ({
  selected: NONE,
  found: null,
  rows: new Set(),
  range: null,
  gap: null,
  hovered: NONE,
});

/** Where a track is drawn: what is pinned does not scroll. */
export const topOf = (track: Track, view: View): number =>
  RULER + track.top - (track.top < view.fixed ? 0 : view.scroll);

const FONT = "11px system-ui, -apple-system, 'Segoe UI', 'Noto Sans', 'Liberation Sans', sans-serif";
const CHARACTER = 6; // narrower than most: what is too wide is shortened again
const LEAST_LABEL = 26;
const LEAST_LINE = 10; // pixels: lower lines have no room for letters

/** Draws one frame. */
export function draw(
  context: CanvasRenderingContext2D,
  store: Store,
  app: App,
  tracks: Track[],
  view: View,
  marked: Marked,
  inks: Inks,
): void {
  const x = (at: number): number => ((at - view.from) / (view.to - view.from)) * view.width;
  const placed = new Map<number, { y: number; height: number }>();

  /** Draws what is below `top`, and nothing above it. */
  function within(top: number, draw: () => void): void {
    context.save();
    context.beginPath();
    context.rect(0, top, view.width, view.height - top);
    context.clip();
    draw();
    context.restore();
  }

  function shown(track: Track): void {
    const y = topOf(track, view);
    if (y > view.height || y + track.height < RULER) return;
    if (track.kind === "head") head(track, y);
    else if (track.kind === "steps") steps(track.rank, y, track.height);
    else if (track.kind === "idle") idle(track.index, y, track.height);
    else if (track.kind === "counter") counter(track, y);
    else line(track, y);
  }

  function head(track: Track & { kind: "head" }, y: number): void {
    context.fillStyle = inks.page;
    context.fillRect(0, y, view.width, track.height - 1);
    context.fillStyle = inks.soft;
    const label = shorten(track.label, Math.floor(view.width / CHARACTER) - 4);
    const text = `${track.isOpen ? "▾" : "▸"} ${label}${track.isPinned ? " · pinned" : ""}`;
    context.fillText(text, 6, y + track.height / 2);
  }

  function steps(rank: number, y: number, height: number): void {
    const origin = store.timeline.origin_ns / 1000;
    app.report.steps
      .filter((step) => step.rank === rank)
      .forEach((step, index) => {
        const start = (step.start_us - origin) * 1000;
        const left = x(start),
          right = x(start + step.duration_us * 1000);
        if (right < 0 || left > view.width) return;
        context.fillStyle = index % 2 ? inks.track : inks.line;
        context.fillRect(left, y, Math.max(right - left - 1, 1), height - 2);
        const text = `${step.name} · ${numbers.time(step.duration_us)}`;
        label(text, left, right - left, y + height / 2 - 1, inks.ink);
      });
  }

  function idle(index: number, y: number, height: number): void {
    const { start, end, cause } = store.idle[index]!;
    const perPixel = (view.to - view.from) / view.width;
    const itself = (value: number) => value;
    context.fillStyle = inks.track;
    context.fillRect(0, y, view.width, height - 2);
    let at = lowerBound(end, view.from, itself);
    while (at < start.length && start[at]! < view.to) {
      const left = x(start[at]!),
        wide = (end[at]! - start[at]!) / perPixel;
      context.fillStyle = app.palette.cause(store.causes[cause[at]!]!);
      context.fillRect(left, y, Math.max(wide, 0.6), height - 2);
      at = wide >= 1 ? at + 1 : gallop(end, view.from + (Math.floor(left) + 1) * perPixel, itself, at + 1);
    }
  }

  function line(track: Track & { kind: "line" }, y: number): void {
    const { rows } = track.line;
    const startOf = (row: number) => store.start[row]!;
    const perPixel = (view.to - view.from) / view.width;
    const height = track.height - 2;
    let at = lowerBound(rows, view.from, store.endOf);
    let colour = "";
    const labels: [number, number, number][] = [];
    while (at < rows.length && startOf(rows[at]!) < view.to) {
      const row = rows[at]!;
      const left = Math.max(x(startOf(row)), -2);
      const right = Math.min(x(store.endOf(row)), view.width + 2);
      const name = store.nameOf(row);
      const dimmed = marked.found !== null && !marked.found.has(store.name[row]!);
      const next = dimmed
        ? "rgba(128,138,152,.28)"
        : track.onDevice
          ? app.palette.category(name.category)
          : app.palette.host(name.kind);
      if (next !== colour) context.fillStyle = colour = next;
      const wide = right - left;
      if (wide >= 1.5) {
        context.fillRect(left, y, wide - 0.5, height);
        if (wide >= LEAST_LABEL && height >= LEAST_LINE && !dimmed) labels.push([row, left, wide]);
        at++;
      } else {
        context.fillRect(left, y, Math.max(wide, 0.8), height);
        at = gallop(rows, view.from + (Math.floor(left) + 1) * perPixel, store.endOf, at + 1);
      }
    }
    for (const [row, left, wide] of labels) {
      const { name } = store.nameOf(row);
      const [text, ink] = track.onDevice ? [app.short(name), "#fff"] : [app.event(name), "#18202c"];
      label(text, left, wide, y + height / 2, ink);
    }
  }

  function label(text: string, left: number, wide: number, y: number, ink: string): void {
    const from = Math.max(left, 0);
    const pixels = Math.min(left + wide, view.width) - from - 6;
    let shown = shorten(text, Math.floor(pixels / CHARACTER));
    const measured = context.measureText(shown).width;
    if (measured > pixels) shown = shorten(text, Math.floor((shown.length * pixels) / measured));
    if (shown.length < 3 && shown.length < text.length) return;
    context.fillStyle = ink;
    context.fillText(shown, from + 4, y + 0.5);
  }

  function counter(track: Track & { kind: "counter" }, y: number): void {
    const { starts, values, height } = track;
    const most = Math.max(...values, 1);
    context.beginPath();
    context.moveTo(x(starts[0]!), y + height - 2);
    starts.forEach((start, at) => {
      const level = y + height - 3 - (values[at]! / most) * (height - 8);
      context.lineTo(x(start), level);
      context.lineTo(x(starts[at + 1] ?? start), level);
    });
    context.lineTo(x(starts.at(-1)!), y + height - 2);
    context.globalAlpha = 0.25;
    context.fillStyle = inks.accent;
    context.fill();
    context.globalAlpha = 1;
    context.strokeStyle = inks.accent;
    context.stroke();
    const text = `${track.label}, at most ${track.unit === "bytes" ? numbers.size(most) : numbers.count(most)}`;
    context.fillStyle = inks.soft;
    context.fillText(text, 8, y + 8);
  }

  function place(row: number): { y: number; height: number } | null {
    const known = placed.get(row);
    if (known) return known;
    const track = trackOf(store, tracks, row);
    if (!track) return null;
    const found = { y: topOf(track, view), height: track.height - 2 };
    placed.set(row, found);
    return found;
  }

  function marks(): void {
    const outline = (row: number, ink: string, wide: number): void => {
      const at = place(row);
      if (!at) return;
      const left = x(store.start[row]!),
        right = x(store.endOf(row));
      if (right < -4 || left > view.width + 4) return;
      context.strokeStyle = ink;
      context.lineWidth = wide;
      context.strokeRect(left - 1, at.y - 1, Math.max(right - left + 1, 4), at.height + 2);
    };
    for (const row of marked.rows) outline(row, inks.bad, 2);
    if (marked.hovered !== NONE) outline(marked.hovered, inks.soft, 1);
    if (marked.selected !== NONE) outline(marked.selected, inks.ink, 2.5);
    context.lineWidth = 1;
  }

  /** From a launch to its work: of the selected event, whichever it is. */
  function arrows(): void {
    if (marked.selected === NONE) return;
    const work = store.workOf(marked.selected);
    const pairs = work >= 0 ? [work] : [...store.launchedInside(marked.selected).subarray(0, 200)];
    context.strokeStyle = inks.accent;
    context.globalAlpha = 0.8;
    for (const one of pairs) {
      const launch = store.launch[one]!,
        row = store.work[one]!;
      const from = launch === NONE ? null : place(launch),
        to = place(row);
      if (!from || !to) continue;
      const x0 = x(store.start[launch]!),
        x1 = x(store.start[row]!);
      const y0 = from.y > to.y ? from.y : from.y + from.height,
        y1 = from.y > to.y ? to.y + to.height : to.y;
      const bend = Math.min(Math.abs(y1 - y0) / 2, 60) * Math.sign(y1 - y0);
      context.beginPath();
      context.moveTo(x0, y0);
      context.bezierCurveTo(x0, y0 + bend, x1, y1 - bend, x1, y1);
      context.stroke();
      context.fillStyle = inks.accent;
      context.beginPath();
      context.arc(x1, y1, 2.5, 0, 7);
      context.fill();
    }
    context.globalAlpha = 1;
  }

  function band([from, to]: [number, number], colour: string): void {
    const left = x(from),
      right = x(to);
    context.fillStyle = colour;
    context.globalAlpha = 0.16;
    context.fillRect(left, RULER, right - left, view.height);
    context.globalAlpha = 1;
    context.fillRect(left, RULER, 1, view.height);
    context.fillRect(right, RULER, 1, view.height);
  }

  function ticks(): { step: number; first: number } {
    const wanted = ((view.to - view.from) / view.width) * 110;
    const power = 10 ** Math.floor(Math.log10(wanted));
    const step = [1, 2, 5, 10].map((factor) => factor * power).find((one) => one >= wanted) ?? 10 * power;
    return { step, first: Math.ceil(view.from / step) * step };
  }

  function grid(): void {
    const { step, first } = ticks();
    context.fillStyle = inks.line;
    for (let at = first; at < view.to; at += step) context.fillRect(Math.round(x(at)), RULER, 1, view.height);
  }

  function ruler(): void {
    const { step, first } = ticks();
    context.fillStyle = inks.card;
    context.fillRect(0, 0, view.width, RULER);
    context.fillStyle = inks.soft;
    for (let at = first; at < view.to; at += step) {
      const left = x(at);
      context.fillRect(Math.round(left), RULER - 6, 1, 6);
      context.fillText(tick(at, step), left + 3, RULER / 2 - 1);
    }
    context.fillStyle = inks.line;
    context.fillRect(0, RULER - 1, view.width, 1);
  }

  context.font = FONT;
  context.textBaseline = "middle";
  context.fillStyle = inks.card;
  context.fillRect(0, 0, view.width, view.height);
  within(RULER + view.fixed, () => {
    grid();
    for (const track of tracks) if (track.top >= view.fixed) shown(track);
  });
  within(RULER, () => {
    for (const track of tracks) if (track.top < view.fixed) shown(track);
    context.fillStyle = inks.accent;
    if (view.fixed) context.fillRect(0, RULER + view.fixed - 1, view.width, 1);
    marks();
    arrows();
    if (marked.range) band(marked.range, inks.accent);
    if (marked.gap) {
      const { start, end, cause } = store.idle[marked.gap[0]]!;
      const at = marked.gap[1];
      band([start[at]!, end[at]!], app.palette.cause(store.causes[cause[at]!]!));
    }
  });
  ruler();
}

/** A tick's time, with as many digits as tell it from the next. */
function tick(at: number, step: number): string {
  const [factor, unit] =
    step >= 1e8 ? [1e9, "s"] : step >= 1e5 ? [1e6, "ms"] : step >= 100 ? [1e3, "µs"] : [1, "ns"];
  const digits = Math.max(0, Math.ceil(-Math.log10(step / factor) - 1e-9));
  return `${(at / factor).toLocaleString("en-US", { minimumFractionDigits: digits, maximumFractionDigits: digits })} ${unit}`;
}
