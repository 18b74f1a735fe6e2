// The timeline on a canvas. What is narrower than a pixel is drawn once a pixel and then skipped over: a frame
// costs what there is to see, not what there is.
import { shorten } from "../names.ts";
import * as numbers from "../numbers.ts";
import type { App } from "../app.ts";
import type { Track } from "./layout.ts";
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

/** Where a track is drawn: what is pinned does not scroll. */
export const topOf = (track: Track, view: View): number =>
  RULER + track.top - (track.top < view.fixed ? 0 : view.scroll);

const FONT = "11px system-ui, -apple-system, 'Segoe UI', 'Noto Sans', 'Liberation Sans', sans-serif";
const CHARACTER = 6; // narrower than most: what is too wide is shortened again
const LEAST_LABEL = 26;
const LEAST_LINE = 10; // pixels: lower lines have no room for letters

export class Drawing {
  private placed = new Map<number, { y: number; height: number }>();

  constructor(
    private readonly context: CanvasRenderingContext2D,
    private readonly store: Store,
    private readonly app: App,
  ) {}

  draw(tracks: Track[], view: View, marked: Marked, inks: Inks): void {
    const { context } = this;
    context.font = FONT;
    context.textBaseline = "middle";
    context.fillStyle = inks.card;
    context.fillRect(0, 0, view.width, view.height);
    this.placed.clear();
    this.within(RULER + view.fixed, view, () => {
      this.grid(view, inks);
      for (const track of tracks) if (track.top >= view.fixed) this.track(track, view, marked, inks);
    });
    this.within(RULER, view, () => {
      for (const track of tracks) if (track.top < view.fixed) this.track(track, view, marked, inks);
      context.fillStyle = inks.accent;
      if (view.fixed) context.fillRect(0, RULER + view.fixed - 1, view.width, 1);
      this.marks(tracks, view, marked, inks);
      this.arrows(tracks, view, marked, inks);
      if (marked.range) this.band(marked.range, view, inks.accent);
      if (marked.gap) {
        const { start, end, cause } = this.store.idle[marked.gap[0]]!;
        const at = marked.gap[1];
        this.band([start[at]!, end[at]!], view, this.app.palette.cause(this.store.causes[cause[at]!]!));
      }
    });
    this.ruler(view, inks);
  }

  /** Draws what is below `top`, and nothing above it. */
  private within(top: number, view: View, draw: () => void): void {
    this.context.save();
    this.context.beginPath();
    this.context.rect(0, top, view.width, view.height - top);
    this.context.clip();
    draw();
    this.context.restore();
  }

  private track(track: Track, view: View, marked: Marked, inks: Inks): void {
    const y = topOf(track, view);
    if (y > view.height || y + track.height < RULER) return;
    if (track.kind === "head") this.head(track, y, view, inks);
    else if (track.kind === "steps") this.steps(track.rank, y, track.height, view, inks);
    else if (track.kind === "idle") this.idle(track.index, y, track.height, view, inks);
    else if (track.kind === "counter") this.counter(track, y, view, inks);
    else this.line(track, y, view, marked);
  }

  private x = (at: number, view: View): number => ((at - view.from) / (view.to - view.from)) * view.width;

  private head(track: Track & { kind: "head" }, y: number, view: View, inks: Inks): void {
    const { context } = this;
    context.fillStyle = inks.page;
    context.fillRect(0, y, view.width, track.height - 1);
    context.fillStyle = inks.soft;
    const label = shorten(track.label, Math.floor(view.width / CHARACTER) - 4);
    const text = `${track.isOpen ? "▾" : "▸"} ${label}${track.isPinned ? " · pinned" : ""}`;
    context.fillText(text, 6, y + track.height / 2);
  }

  private steps(rank: number, y: number, height: number, view: View, inks: Inks): void {
    const { context } = this;
    const origin = this.store.timeline.origin_ns / 1000;
    this.app.report.steps
      .filter((step) => step.rank === rank)
      .forEach((step, index) => {
        const start = (step.start_us - origin) * 1000;
        const left = this.x(start, view),
          right = this.x(start + step.duration_us * 1000, view);
        if (right < 0 || left > view.width) return;
        context.fillStyle = index % 2 ? inks.track : inks.line;
        context.fillRect(left, y, Math.max(right - left - 1, 1), height - 2);
        this.label(
          `${step.name} · ${numbers.time(step.duration_us)}`,
          left,
          right - left,
          y + height / 2 - 1,
          inks.ink,
          view,
        );
      });
  }

  private idle(index: number, y: number, height: number, view: View, inks: Inks): void {
    const { start, end, cause } = this.store.idle[index]!;
    const { context } = this;
    const perPixel = (view.to - view.from) / view.width;
    const itself = (value: number) => value;
    context.fillStyle = inks.track;
    context.fillRect(0, y, view.width, height - 2);
    let at = lowerBound(end, view.from, itself);
    while (at < start.length && start[at]! < view.to) {
      const left = this.x(start[at]!, view),
        wide = (end[at]! - start[at]!) / perPixel;
      context.fillStyle = this.app.palette.cause(this.store.causes[cause[at]!]!);
      context.fillRect(left, y, Math.max(wide, 0.6), height - 2);
      at = wide >= 1 ? at + 1 : gallop(end, view.from + (Math.floor(left) + 1) * perPixel, itself, at + 1);
    }
  }

  private line(track: Track & { kind: "line" }, y: number, view: View, marked: Marked): void {
    const { context, store, app } = this;
    const { palette } = app;
    const { rows } = track.line;
    const startOf = (row: number) => store.start[row]!;
    const perPixel = (view.to - view.from) / view.width;
    const height = track.height - 2;
    let at = lowerBound(rows, view.from, store.endOf);
    let colour = "";
    const labels: [number, number, number][] = [];
    while (at < rows.length && startOf(rows[at]!) < view.to) {
      const row = rows[at]!;
      const left = Math.max(this.x(startOf(row), view), -2);
      const right = Math.min(this.x(store.endOf(row), view), view.width + 2);
      const name = store.nameOf(row);
      const dimmed = marked.found !== null && !marked.found.has(store.name[row]!);
      const next = dimmed
        ? "rgba(128,138,152,.28)"
        : track.onDevice
          ? palette.category(name.category)
          : palette.host(name.kind);
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
      const name = store.nameOf(row).name;
      this.label(
        track.onDevice ? app.short(name) : app.event(name),
        left,
        wide,
        y + height / 2,
        track.onDevice ? "#fff" : "#18202c",
        view,
      );
    }
  }

  private label(text: string, left: number, wide: number, y: number, ink: string, view: View): void {
    const from = Math.max(left, 0);
    const pixels = Math.min(left + wide, view.width) - from - 6;
    let shown = shorten(text, Math.floor(pixels / CHARACTER));
    const measured = this.context.measureText(shown).width;
    if (measured > pixels) shown = shorten(text, Math.floor((shown.length * pixels) / measured));
    if (shown.length < 3 && shown.length < text.length) return;
    this.context.fillStyle = ink;
    this.context.fillText(shown, from + 4, y + 0.5);
  }

  private counter(track: Track & { kind: "counter" }, y: number, view: View, inks: Inks): void {
    const { context } = this;
    const { starts, values, height } = track;
    const most = Math.max(...values, 1);
    context.beginPath();
    context.moveTo(this.x(starts[0]!, view), y + height - 2);
    starts.forEach((start, at) => {
      const level = y + height - 3 - (values[at]! / most) * (height - 8);
      context.lineTo(this.x(start, view), level);
      context.lineTo(this.x(starts[at + 1] ?? start, view), level);
    });
    context.lineTo(this.x(starts.at(-1)!, view), y + height - 2);
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

  private place(row: number, tracks: Track[], view: View): { y: number; height: number } | null {
    const known = this.placed.get(row);
    if (known) return known;
    const lane = this.store.laneOf(row),
      number = this.store.line[row]!;
    const track = tracks.find(
      (one) => one.kind === "line" && one.line.lane === lane && one.line.number === number,
    );
    if (!track) return null;
    const found = { y: topOf(track, view), height: track.height - 2 };
    this.placed.set(row, found);
    return found;
  }

  private marks(tracks: Track[], view: View, marked: Marked, inks: Inks): void {
    const outline = (row: number, ink: string, wide: number): void => {
      const at = this.place(row, tracks, view);
      if (!at) return;
      const left = this.x(this.store.start[row]!, view),
        right = this.x(this.store.endOf(row), view);
      if (right < -4 || left > view.width + 4) return;
      this.context.strokeStyle = ink;
      this.context.lineWidth = wide;
      this.context.strokeRect(left - 1, at.y - 1, Math.max(right - left + 1, 4), at.height + 2);
    };
    for (const row of marked.rows) outline(row, inks.bad, 2);
    if (marked.hovered !== NONE) outline(marked.hovered, inks.soft, 1);
    if (marked.selected !== NONE) outline(marked.selected, inks.ink, 2.5);
    this.context.lineWidth = 1;
  }

  /** From a launch to its work: of the selected event, whichever it is. */
  private arrows(tracks: Track[], view: View, marked: Marked, inks: Inks): void {
    const { store, context } = this;
    if (marked.selected === NONE) return;
    const work = store.workOf(marked.selected);
    const pairs = work >= 0 ? [work] : [...store.launchedInside(marked.selected).subarray(0, 200)];
    context.strokeStyle = inks.accent;
    context.globalAlpha = 0.8;
    for (const one of pairs) {
      const launch = store.launch[one]!,
        row = store.work[one]!;
      const from = launch === NONE ? null : this.place(launch, tracks, view),
        to = this.place(row, tracks, view);
      if (!from || !to) continue;
      const x0 = this.x(store.start[launch]!, view),
        x1 = this.x(store.start[row]!, view);
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

  private band([from, to]: [number, number], view: View, colour: string): void {
    const { context } = this;
    const left = this.x(from, view),
      right = this.x(to, view);
    context.fillStyle = colour;
    context.globalAlpha = 0.16;
    context.fillRect(left, RULER, right - left, view.height);
    context.globalAlpha = 1;
    context.fillRect(left, RULER, 1, view.height);
    context.fillRect(right, RULER, 1, view.height);
  }

  private ticks(view: View): { step: number; first: number } {
    const wanted = ((view.to - view.from) / view.width) * 110;
    const power = 10 ** Math.floor(Math.log10(wanted));
    const step = [1, 2, 5, 10].map((factor) => factor * power).find((one) => one >= wanted) ?? 10 * power;
    return { step, first: Math.ceil(view.from / step) * step };
  }

  private grid(view: View, inks: Inks): void {
    const { step, first } = this.ticks(view);
    this.context.fillStyle = inks.line;
    for (let at = first; at < view.to; at += step)
      this.context.fillRect(Math.round(this.x(at, view)), RULER, 1, view.height);
  }

  private ruler(view: View, inks: Inks): void {
    const { context } = this;
    const { step, first } = this.ticks(view);
    context.fillStyle = inks.card;
    context.fillRect(0, 0, view.width, RULER);
    context.fillStyle = inks.soft;
    for (let at = first; at < view.to; at += step) {
      const x = this.x(at, view);
      context.fillRect(Math.round(x), RULER - 6, 1, 6);
      context.fillText(tick(at, step), x + 3, RULER / 2 - 1);
    }
    context.fillStyle = inks.line;
    context.fillRect(0, RULER - 1, view.width, 1);
  }
}

/** A tick's time, with as many digits as tell it from the next. */
function tick(at: number, step: number): string {
  const [factor, unit] =
    step >= 1e8 ? [1e9, "s"] : step >= 1e5 ? [1e6, "ms"] : step >= 100 ? [1e3, "µs"] : [1, "ns"];
  const digits = Math.max(0, Math.ceil(-Math.log10(step / factor) - 1e-9));
  return `${(at / factor).toLocaleString("en-US", { minimumFractionDigits: digits, maximumFractionDigits: digits })} ${unit}`;
}
