// What every part of the page is given: the document, the timeline's columns, and the way to other places.
import type { CompiledKernel } from "./document.ts";
import type { KernelRow, Report, Sentences } from "./document.ts";
import { Palette } from "./palette.ts";
import { format } from "./route.ts";
import type { Store } from "./timeline/store.ts";

export class App {
  readonly palette: Palette;
  readonly isComparison: boolean;
  /** The place of the page that has the timeline. */
  readonly timeline: string;
  private readonly kernelIndex: Map<string, number>;
  private readonly compiledByName = new Map<string, CompiledKernel[]>();

  constructor(
    readonly report: Report,
    readonly sentences: Sentences,
    readonly store: Store | null,
  ) {
    this.palette = new Palette(sentences);
    this.isComparison = Object.keys(sentences.sides).length > 0;
    this.timeline = this.isComparison ? "comparison" : "timeline";
    this.kernelIndex = new Map(report.kernels.map((row, index) => [row.name, index]));
    for (const kernel of report.compilation?.kernels ?? [])
      for (const name of new Set([kernel.name, kernel.symbol]))
        this.compiledByName.set(name, [...(this.compiledByName.get(name) ?? []), kernel]);
  }

  /** What an event is called, calls of compiled graphs by their graph. */
  event(name: string): string {
    const hash = /^## Call CompiledFxGraph (\S+) ##$/.exec(name)?.[1];
    const at = hash === undefined ? -1 : this.report.graphs.findIndex((row) => row.hash === hash);
    return at < 0 ? name : `graph ${this.sentences.graph_labels[at]}`;
  }

  kernelOf = (name: string): KernelRow | undefined => this.report.kernels[this.kernelIndex.get(name) ?? -1];
  compiledOf = (name: string): CompiledKernel[] => this.compiledByName.get(name) ?? [];

  /** A kernel's own page; the list, filtered, for what has none; in a comparison its launches, lit. */
  kernelHref(name: string): string | null {
    const index = this.kernelIndex.get(name);
    if (index !== undefined) return format(["kernels", index]);
    if (this.report.kernels.length) return format(["kernels"], { q: name });
    return this.store?.names.some((one) => one.name === name) ? format([this.timeline], { n: name }) : null;
  }

  /** Which rank it is, where there are several; or which side of a comparison. */
  rankName(rank: number): string {
    const { sides } = this.sentences;
    if (this.isComparison) return Object.keys(sides)[rank]!;
    return this.store!.lanes.some((lane) => lane.rank !== rank) ? `rank ${rank}` : "";
  }

  /** The timeline at an interval of time, in nanoseconds from the origin, with some room around it. */
  timeHref(from: number, to: number, more: Record<string, string | number> = {}, room = 0.15): string {
    const extra = Math.max((to - from) * room, 50);
    return format([this.timeline], {
      t: `${stamp(Math.max(from - extra, 0))}-${stamp(to + extra)}`,
      ...more,
    });
  }

  /** The same on the clock of the traces, in microseconds. */
  traceTimeHref(fromUs: number, toUs: number, more: Record<string, string | number> = {}): string | null {
    if (!this.store) return null;
    const origin = this.store.timeline.origin_ns / 1000;
    return this.timeHref((fromUs - origin) * 1000, (toUs - origin) * 1000, more);
  }

  rowHref(row: number): string {
    const store = this.store!;
    return this.timeHref(store.start[row]!, store.endOf(row), { k: row }, 4);
  }

  /** `model.py:12`, the whole path kept for the code page. */
  lineHref = (file: string, line: number | null): string => format(["code"], { file, line });
}

/** Nanoseconds as microseconds in an address. */
export const stamp = (ns: number): string => (Math.round(ns) / 1000).toString();
