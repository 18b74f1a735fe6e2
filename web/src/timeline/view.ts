// The timeline: a canvas, what keys, mouse and fingers do with it, and the panel next to it.
import { App, stamp } from "../app.ts";
import { button, fill, h, legend, type Child } from "../dom.ts";
import * as numbers from "../numbers.ts";
import { isServed, openInPerfetto } from "./perfetto.ts";
import { shorten } from "../names.ts";
import { format, replace, type Route } from "../links.ts";
import { eventPanel } from "./detail.ts";
import { draw, RULER, topOf, unmarked, type Marked, type View } from "./draw.ts";
import { inks, type Painted, say } from "../canvas.ts";
import { gestures } from "./gestures.ts";
import { around, gapIn, idlePanel, longestGap, type Gap } from "./idle.ts";
import { type Arrangement, type Group, groupsOf, layout, type Track, trackOf, unarranged } from "./layout.ts";
import { minimap } from "./minimap.ts";
import { NONE, Store, evidenceRows, lowerBound, nearest, neighbour, nextNamed, snapped } from "./store.ts";
import { rangePanel, statistics } from "./range.ts";

const LEAST = 20; // nanoseconds across the screen
const TALL: [least: number, most: number] = [0.5, 8];
const PINNED = 0.6; // of the height: more than that scrolls
const SMALL = 0.1; // part of the whole that has room for what is around it
const ROOM = 0.1;
const HOST = {
  cpu_op: "ops",
  cuda_runtime: "runtime calls",
  user_annotation: "annotations",
  python_function: "Python",
};

/** What is seen first: all, or the devices' windows with some room, where they are but a small part of it. A server's
 * trace begins with what was open when its profiler began, minutes before its steps. */
function recorded({ report }: App, { end, timeline }: Store): [number, number] {
  const starts = report.devices.map((row) => row.window_start_us * 1000 - timeline.origin_ns);
  const from = Math.min(...starts);
  const to = Math.max(...report.devices.map((row, at) => starts[at]! + row.window_us * 1000));
  if (!(to > from) || to - from > SMALL * end) return [0, end];
  const room = ROOM * (to - from);
  return [Math.max(0, from - room), Math.min(end, to + room)];
}

export class TimelineView {
  readonly element: HTMLElement;
  private readonly canvas = h("canvas", {
    tabindex: "0",
    role: "application",
    "aria-label":
      "timeline; W and S zoom, with Shift the tracks' height, A and D move, arrows go from event to event, Enter selects, Escape lets go",
  });
  private readonly context = this.canvas.getContext("2d", { alpha: false })!;
  private readonly panel = h("aside", { class: "panel", "aria-live": "polite" });
  private readonly hint = h("div", { class: "hint", hidden: true });
  private readonly groups: Group[];
  private readonly map: Painted;
  private readonly shown: Arrangement = unarranged();
  readonly marked: Marked = unmarked();
  private tracks: Track[] = [];
  /** What the address says is lit: it stays there until one lets go. */
  private lit: Record<string, string | undefined> = {};
  private height = 0;
  private frame = 0;
  private writing = 0;
  readonly view: View;
  /** Milliseconds that the last frame took to draw: tests and measurements read it. */
  drawn = 0;

  constructor(
    private readonly app: App,
    readonly store: Store,
  ) {
    const [from, to] = recorded(app, store);
    this.view = { from, to, scroll: 0, fixed: 0, width: 100, height: 100 };
    this.groups = groupsOf(app, store);
    this.map = minimap(app, store, this.view, (from, to) => this.show(from, to));
    const zoom = (factor: number) => () => this.zoom(factor, this.view.width / 2);
    this.element = h(
      "div.timeline",
      h(
        "div",
        { class: "tools", role: "toolbar", "aria-label": "timeline" },
        button("+", zoom(0.5), { "aria-label": "zoom in" }),
        button("−", zoom(2), { "aria-label": "zoom out" }),
        button("all", () => this.show(0, store.end)),
        this.selectButton,
        isServed() && button("open in Perfetto", () => void this.handOver()),
        isServed() &&
          h("a", { href: "stacks.speedscope.json", download: "stacks.speedscope.json" }, "stacks"),
        this.filterBox,
        this.trackList(),
      ),
      this.colours(),
      store.timeline.left_out && h("p.note", store.timeline.left_out),
      this.map.element,
      h("div.stage", h("div.canvas", this.canvas, this.hint), this.panel),
    );
    gestures(this.canvas, {
      pan: (dx, dy) => this.pan(dx, dy),
      zoom: (factor, x) => this.zoom(factor, x),
      hover: (x, y) => this.hover(x, y),
      click: (x, y) => this.click(x, y),
      range: (x0, x1, done) => this.selectRange(x0, x1, done),
      scrolls: () => this.height + RULER > this.view.height + 1,
      isSelecting: () => this.isSelecting,
    });
    this.canvas.addEventListener("keydown", (event) => this.key(event));
    new ResizeObserver(() => this.resize()).observe(this.canvas.parentElement!);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.schedule());
    this.arrange();
  }

  private isSelecting = false;
  private readonly selectButton: HTMLButtonElement = button(
    "select a range",
    () => this.selectButton.setAttribute("aria-pressed", String((this.isSelecting = !this.isSelecting))),
    { "aria-pressed": "false", title: "drag selects a range (or hold shift)" },
  );

  private readonly filterBox = h("input", {
    type: "search",
    placeholder: "filter tracks",
    "aria-label": "filter tracks",
    onInput: () => {
      this.shown.filter = this.filterBox.value;
      this.arrange();
      this.moved();
    },
  });

  /** All tracks, each to be pinned to the top or hidden. */
  private trackList(): HTMLElement {
    const rows = h("ul");
    const toggle = (label: string, of: "pinned" | "hidden", key: string): HTMLElement => {
      const turn = (): void => {
        const set = this.shown[of];
        if (!set.delete(key)) set.add(key);
        shown.setAttribute("aria-pressed", String(set.has(key)));
        this.arrange();
        this.moved();
      };
      const shown = button(label, turn, { "aria-pressed": String(this.shown[of].has(key)) });
      return shown;
    };
    return h(
      "details",
      {
        class: "tracks",
        onToggle: () =>
          fill(
            rows,
            this.groups
              .filter(({ label }) => label)
              .map(({ key, label }) =>
                h("li", toggle("pin", "pinned", key), toggle("hide", "hidden", key), shorten(label, 90)),
              ),
          ),
      },
      h("summary", "tracks"),
      rows,
    );
  }

  /** What the colours stand for. */
  private colours(): Child {
    const { report, palette } = this.app;
    const used = new Set(this.store.names.flatMap(({ kind, category }) => [kind, category]));
    const codes = new Set(this.store.idle.flatMap(({ cause }) => [...new Set(cause)]));
    const causes = [...codes].map((code) => this.store.causes[code]!);
    const categories = report.categories.filter(({ category }) => used.has(category));
    const host = Object.entries(HOST).filter(([kind]) => used.has(kind));
    return (
      !this.app.isComparison &&
      legend([
        ...categories.map(({ category }): [string, string] => [palette.category(category), category]),
        ...[...causes].map((cause): [string, string] => [palette.cause(cause), `idle: ${cause}`]),
        ...host.map(([kind, label]): [string, string] => [palette.host(kind), `CPU: ${label}`]),
      ])
    );
  }

  /** What the address says: `t`, an interval; `k`, an event; `r`, a range; `f`, a finding's evidence; `n`, a name;
   * `i`, idle time, by its place or its cause; `pin`, `hide` and `only`, tracks; `tall`, their height. */
  open({ parameters }: Route): void {
    const interval = (key: string): [number, number] | null => {
      const [from, to] = (parameters.get(key) ?? "").split("-").map((text) => Number(text) * 1000);
      return from !== undefined && to !== undefined && to > from ? [from, to] : null;
    };
    const row = Number(parameters.get("k") ?? NaN);
    this.marked.selected = Number.isInteger(row) && row >= 0 && row < this.store.length ? row : NONE;
    this.marked.range = interval("r");
    this.lit = { f: parameters.get("f"), n: parameters.get("n") };
    this.marked.rows = evidenceRows(this.store, this.app.report, parameters.get("f"));
    this.marked.found = this.named(parameters.get("n"));
    const keys = (name: string) => new Set((parameters.get(name) ?? "").split(",").filter(Boolean));
    Object.assign(this.shown, { pinned: keys("pin"), hidden: keys("hide") });
    this.filterBox.value = this.shown.filter = parameters.get("only") ?? "";
    this.marked.gap = this.gapOf(parameters);
    this.setHeight(Number(parameters.get("tall") ?? 1));
    const seen = interval("t");
    if (seen) [this.view.from, this.view.to] = this.bounded(...seen);
    else if (this.marked.selected !== NONE) this.fit();
    if (parameters.get("f")?.includes(".")) this.showEvidence(seen);
    const shown = this.marked.selected !== NONE ? this.marked.selected : ([...this.marked.rows][0] ?? NONE);
    if (this.marked.gap) this.revealGap(this.marked.gap, seen !== null);
    else if (shown !== NONE) this.reveal(shown);
    this.refresh();
  }

  private gapOf(parameters: Map<string, string>): Gap | null {
    const wanted = parameters.get("i");
    const [device, at] = (wanted ?? "").split(".").map(Number);
    const start = this.store.idle[device ?? NaN]?.start[at ?? NaN];
    return start !== undefined ? [device!, at!] : wanted ? longestGap(this.store, wanted) : null;
  }

  /** One piece of evidence: the idle time that it is about, else its event, else what happened in its time. */
  private showEvidence(seen: [number, number] | null): void {
    const { marked, app } = this;
    if (marked.selected !== NONE || marked.range || marked.gap) return;
    const [finding, item] = this.lit.f!.split(".").map(Number);
    const row = app.report.findings[finding!],
      evidence = row?.evidence[item!];
    if (!row || !evidence || !seen) return;
    const [from, to] = [evidence.start_us, evidence.end_us].map(
      (us) => us * 1000 - this.store.timeline.origin_ns,
    );
    marked.gap = gapIn(this.store, from!, to!, row.ranks);
    if (marked.gap) return;
    const [first] = marked.rows;
    if (first !== undefined) marked.selected = first;
    else if (to! > from!) marked.range = [from!, to!];
  }

  /** Scrolls to idle time, its device and the thread that ended it; what does not fit is pinned. */
  private revealGap(gap: Gap, isSeen: boolean): void {
    const { rank, device, start, end } = this.store.idle[gap[0]]!;
    const [from, to] = [start[gap[1]]!, end[gap[1]]!];
    if (!isSeen)
      [this.view.from, this.view.to] = this.bounded(from - (to - from) * 0.6, to + (to - from) * 0.6);
    const { after } = around(this.store, gap);
    const work = after === NONE ? -1 : this.store.workOf(after);
    const launch = work < 0 ? NONE : this.store.launch[work]!;
    const key = `device${rank}/${device}`;
    const own = this.groups
      .filter((group) => group.key === key || group.under === key)
      .map((group) => group.key);
    own.forEach((one) => this.shown.hidden.delete(one) || this.shown.closed.delete(one));
    const wanted = (track: Track) => track.kind === "idle" && track.index === gap[0];
    if (launch === NONE) return this.scrollTo(this.tracks.find(wanted));
    this.reveal(launch);
    const top = this.tracks.find(wanted);
    if (!top || topOf(top, this.view) >= RULER || this.view.height < 200) return;
    own.forEach((one) => this.shown.pinned.add(one));
    this.arrange();
    this.reveal(launch);
  }

  private named(name: string | undefined): Set<number> | null {
    if (!name) return null;
    return new Set(this.store.names.flatMap((one, index) => (one.name === name ? [index] : [])));
  }

  show(from: number, to: number): void {
    [this.view.from, this.view.to] = this.bounded(from, to);
    this.moved();
  }

  private bounded(from: number, to: number): [number, number] {
    const most = this.store.end * 1.1 + 1000;
    const width = Math.min(Math.max(to - from, LEAST), most);
    const start = Math.min(Math.max(from, -width / 2), this.store.end - width / 2);
    return [start, start + width];
  }

  private pan(dx: number, dy: number): void {
    const shift = (dx / this.view.width) * (this.view.to - this.view.from);
    this.scroll(this.view.scroll + dy);
    this.show(this.view.from + shift, this.view.to + shift);
  }

  private zoom(factor: number, x: number): void {
    const at = this.time(x),
      { from, to } = this.view;
    this.show(at - (at - from) * factor, at + (to - at) * factor);
  }

  /** Tracks so many times as tall as usual; what is in the middle stays there. */
  private setHeight(tall: number): void {
    const { view, shown } = this;
    const middle = (view.height - RULER) / 2;
    const at = (view.scroll + middle) / Math.max(this.height, 1);
    shown.tall = Math.min(Math.max(tall || 1, TALL[0]), TALL[1]);
    this.arrange();
    this.scroll(at * this.height - middle);
  }

  private taller(factor: number): void {
    this.setHeight(this.shown.tall * factor);
    this.moved();
  }

  private time = (x: number): number =>
    this.view.from + (x / this.view.width) * (this.view.to - this.view.from);

  private key(event: KeyboardEvent): void {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    this.hint.hidden = true;
    const step = this.view.width * (event.shiftKey ? 0.6 : 0.15);
    const actions: Record<string, () => void> = {
      w: () => (event.shiftKey ? this.taller(Math.SQRT2) : this.zoom(0.7, this.view.width / 2)),
      s: () => (event.shiftKey ? this.taller(Math.SQRT1_2) : this.zoom(1.43, this.view.width / 2)),
      a: () => this.pan(-step, 0),
      d: () => this.pan(step, 0),
      arrowleft: () => this.goTo(neighbour(this.store, this.marked.selected, this.view.from, -1)),
      arrowright: () => this.goTo(neighbour(this.store, this.marked.selected, this.view.from, 1)),
      arrowup: () => this.pan(0, -60),
      arrowdown: () => this.pan(0, 60),
      f: () => this.fit(),
      escape: () => this.letGo(),
      enter: () => this.fit(),
      n: () => this.nextNamed(1),
      p: () => this.nextNamed(-1),
    };
    const action = actions[event.key.toLowerCase()];
    if (!action) return;
    event.preventDefault();
    action();
  }

  private letGo(): void {
    this.lit = {};
    Object.assign(this.marked, { ...unmarked(), hovered: this.marked.hovered });
    this.refresh();
    this.moved();
  }

  private fit(): void {
    const { selected, gap } = this.marked;
    const { idle, start } = this.store;
    const range = gap
      ? ([idle[gap[0]]!.start[gap[1]]!, idle[gap[0]]!.end[gap[1]]!] as const)
      : this.marked.range;
    const around = ([from, to]: readonly [number, number], room: number): void =>
      this.show(from - (to - from) * room, to + (to - from) * room);
    if (range) around(range, 0.05);
    else if (selected !== NONE) around([start[selected]!, this.store.endOf(selected)], 1);
  }

  private goTo(row: number): void {
    if (row !== NONE) this.select(row, true);
  }

  /** The next event of the name that was searched for, or of the selected one's. */
  private nextNamed(by: number): void {
    const { selected, found } = this.marked;
    const wanted = found ?? (selected === NONE ? null : new Set([this.store.name[selected]!]));
    if (wanted) this.goTo(nextNamed(this.store, wanted, selected, this.view.from, by));
  }

  /** Nanoseconds that so many pixels show. */
  private reach = (pixels: number): number => (pixels * (this.view.to - this.view.from)) / this.view.width;

  private rowAt(x: number, y: number): number {
    const track = y < RULER ? undefined : this.trackAt(y);
    return track?.kind === "line" ? nearest(this.store, track.line.rows, this.time(x), this.reach(2)) : NONE;
  }

  select(row: number, reveal = false): void {
    Object.assign(this.marked, { selected: row, range: null, gap: null });
    if (reveal) this.reveal(row);
    this.refresh();
    this.moved();
  }

  /** Scrolls and moves until the event is seen. */
  private reveal(row: number): void {
    const start = this.store.start[row]!,
      width = this.view.to - this.view.from;
    if (start < this.view.from || start > this.view.to)
      [this.view.from, this.view.to] = this.bounded(start - width / 3, start + width * (2 / 3));
    const lane = this.store.laneOf(row);
    const group = this.groups.find(({ key }) => key === `lane${lane}`);
    for (const key of [`lane${lane}`, group?.under ?? ""]) {
      this.shown.closed.delete(key);
      this.shown.hidden.delete(key);
    }
    this.arrange();
    this.scrollTo(trackOf(this.store, this.tracks, row));
  }

  /** Only as far as it must to have a track in view, with room around it. */
  private scrollTo(track: Track | undefined): void {
    if (!track || track.top < this.view.fixed) return;
    const room = this.view.height - RULER - track.height,
      y = topOf(track, this.view) - RULER;
    if (y < this.view.fixed || y > room) this.scroll(track.top - (room + this.view.fixed) / 2);
  }

  private scroll(to: number): void {
    this.view.scroll = Math.max(0, Math.min(to, this.height + RULER - this.view.height));
  }

  private trackAt(y: number): Track | undefined {
    const isFixed = y < RULER + this.view.fixed;
    return this.tracks.find((track) => {
      const top = topOf(track, this.view);
      return track.top < this.view.fixed === isFixed && y >= top && y < top + track.height;
    });
  }

  private hover(x: number, y: number): void {
    const row = this.rowAt(x, y);
    if (row !== this.marked.hovered) this.schedule();
    this.marked.hovered = row;
    this.canvas.style.cursor = row === NONE ? "default" : "pointer";
    this.hint.hidden = row === NONE && this.trackAt(y)?.kind !== "idle";
    if (this.hint.hidden) return;
    say(
      { hint: this.hint, width: () => this.view.width },
      row === NONE ? this.idleText(x, y) : this.text(row),
      x,
      y,
    );
  }

  private text(row: number): string {
    const name = shorten(this.app.short(this.store.nameOf(row).name), 120);
    return `${name} · ${numbers.ns(this.store.duration[row]!)} · from ${numbers.exact(this.store.start[row]!)}`;
  }

  private gapAt(x: number, y: number): Gap | null {
    const track = this.trackAt(y);
    if (track?.kind !== "idle") return null;
    const idle = this.store.idle[track.index]!;
    const at = lowerBound(idle.end, this.time(x), (value) => value);
    return idle.start[at]! <= this.time(x) + this.reach(1) ? [track.index, at] : null;
  }

  private idleText(x: number, y: number): string {
    const gap = this.gapAt(x, y);
    if (!gap) return this.trackAt(y)?.kind === "idle" ? "busy" : "";
    const { start, end, cause } = this.store.idle[gap[0]]!;
    return `idle ${numbers.time((end[gap[1]]! - start[gap[1]]!) / 1000)}: ${this.store.causes[cause[gap[1]]!]!}`;
  }

  private click(x: number, y: number): void {
    this.canvas.focus({ preventScroll: true });
    const track = this.trackAt(y);
    if (track?.kind === "head" && y >= RULER) {
      if (!this.shown.closed.delete(track.key)) this.shown.closed.add(track.key);
      return this.arrange();
    }
    const gap = this.gapAt(x, y);
    this.select(this.rowAt(x, y));
    this.marked.gap = gap;
    if (gap) this.refresh();
  }

  /** Ends stick to the edges of events near them, so that ranges measure. */
  private selectRange(x0: number, x1: number, done: boolean): void {
    const edge = (x: number): number =>
      done ? snapped(this.store, this.time(x), this.reach(6)) : this.time(x);
    const range = [edge(Math.min(x0, x1)), edge(Math.max(x0, x1))];
    Object.assign(this.marked, { selected: NONE, gap: null, range });
    if (done) {
      this.refresh();
      this.moved();
    }
    this.schedule();
  }

  private refresh(): void {
    const { selected, range, gap } = this.marked;
    const reach = (row: number): void => this.select(row, true);
    const shown = range
      ? rangePanel(this.app, this.store, range)
      : gap
        ? idlePanel(this.app, this.store, gap, reach)
        : selected !== NONE && eventPanel(this.app, this.store, selected, reach);
    this.panel.hidden = !shown;
    const close = button("×", () => this.letGo(), { class: "close", "aria-label": "close" });
    fill(this.panel, shown && [close, shown]);
    this.schedule();
  }

  private arrange(): void {
    const { tracks, height, fixed } = layout(this.groups, this.shown);
    this.tracks = tracks;
    this.height = height;
    this.view.fixed = fixed > this.view.height * PINNED ? 0 : fixed;
    this.scroll(this.view.scroll);
    this.element.style.setProperty("--tall", `${RULER + height}px`);
    this.schedule();
  }

  private resize(): void {
    const box = this.canvas.parentElement!.getBoundingClientRect();
    if (!box.width) return;
    Object.assign(this.view, { width: box.width, height: box.height });
    const scale = devicePixelRatio || 1;
    this.canvas.width = Math.round(box.width * scale);
    this.canvas.height = Math.round(box.height * scale);
    this.context.setTransform(scale, 0, 0, scale, 0, 0);
    this.arrange();
    if (this.marked.gap) this.revealGap(this.marked.gap, true);
    else if (this.marked.selected !== NONE) this.reveal(this.marked.selected);
    this.paint();
  }

  /** The address follows the view, without an entry in the history. */
  private moved(): void {
    this.hint.hidden = true;
    this.schedule();
    clearTimeout(this.writing);
    this.writing = window.setTimeout(() => {
      if (!this.element.isConnected) return;
      const { selected, range, gap } = this.marked;
      const { pinned, hidden, filter, tall } = this.shown;
      replace(
        format([this.app.timeline], {
          t: `${stamp(Math.max(this.view.from, 0))}-${stamp(this.view.to)}`,
          k: selected === NONE ? null : selected,
          ...this.lit,
          r: range ? `${stamp(range[0])}-${stamp(range[1])}` : null,
          i: gap && gap.join("."),
          pin: [...pinned].join(","),
          hide: [...hidden].join(","),
          only: filter,
          tall: Math.abs(tall - 1) < 0.01 ? null : Number(tall.toFixed(3)),
          by: this.store.start === this.store.began ? null : "graph",
        }),
      );
    }, 150);
  }

  private schedule(): void {
    this.frame ||= requestAnimationFrame(() => this.paint());
  }

  /** The interval that is seen, or the range, in Perfetto; streams stand on top there. */
  private async handOver(): Promise<void> {
    const [from, to] = this.marked.range ?? [this.view.from, this.view.to];
    const origin = this.store.timeline.origin_ns;
    try {
      await openInPerfetto(this.app.sentences.title[0]!, origin + from, origin + to, "^stream ");
    } catch (error) {
      fill(this.hint, String(error));
      this.hint.hidden = false;
    }
  }

  /** What happened in an interval, as plain rows. */
  statistics(from: number, to: number): object {
    const found = statistics(this.store, from, to);
    return { ...found, devices: found.devices.map((device) => ({ ...device, idle: [...device.idle] })) };
  }

  paint(): void {
    this.frame = 0;
    const started = performance.now();
    draw(this.context, this.store, this.app, this.tracks, this.view, this.marked, inks());
    this.map.draw();
    if (!this.drawn) performance.mark("kinetoscope-drawn");
    this.drawn = performance.now() - started;
  }
}
