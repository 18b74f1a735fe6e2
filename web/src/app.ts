// What every part of the page is given: the document, the timeline's columns, and the way to other places.
import type { CompiledKernel, KernelRow, Report, Sentences } from "./document.ts";
import { format } from "./links.ts";
import type { Numbers } from "./load.ts";
import type { Store } from "./timeline/store.ts";

const OTHER = "#8b93a1";
const HOST: Record<string, string> = {
  cpu_op: "#8fb3dd",
  cuda_runtime: "#b3bbc7",
  cuda_driver: "#b3bbc7",
  user_annotation: "#d8bd83",
  python_function: "#a9c3a4",
  overhead: "#d39a9a",
  gpu_user_annotation: "#d8bd83",
};

export class Palette {
  constructor(private readonly shown: Sentences) {}
  category = (name: string): string => this.shown.category_colours[name] ?? OTHER;
  use = (name: string): string =>
    name === "idle" ? "var(--track)" : (this.shown.use_colours[name] ?? OTHER);
  memory = (part: string): string => this.shown.memory_colours[part] ?? OTHER;
  cause = (name: string): string => this.shown.cause_colours[name] ?? OTHER;
  host = (kind: string): string => HOST[kind] ?? "#c3c9d2";
}

export class App {
  readonly palette: Palette;
  readonly isComparison: boolean;
  /** The place of the page that has the timeline. */
  readonly timeline: string;
  private readonly kernelIndex: Map<string, number>;
  private worksByName: Map<string, Uint32Array> | null = null;
  private readonly briefs: Map<string, string>;
  private readonly compiledByName = new Map<string, CompiledKernel[]>();

  constructor(
    readonly report: Report,
    readonly sentences: Sentences,
    readonly store: Store | null,
    readonly columns: ReadonlyMap<string, Numbers> = new Map(),
  ) {
    this.palette = new Palette(sentences);
    this.isComparison = Object.keys(sentences.sides).length > 0;
    this.timeline = this.isComparison ? "comparison" : "timeline";
    this.kernelIndex = new Map(report.kernels.map((row, index) => [row.name, index]));
    this.briefs = new Map(store?.names.flatMap(({ name, short }) => (short ? [[name, short]] : [])));
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

  /** What device work is called in every table, bar and panel. */
  short = (name: string): string => this.kernelOf(name)?.short_name ?? this.briefs.get(name) ?? name;

  /** A kernel's launches, as places among device work in the order of the lanes. */
  works(name: string): Uint32Array {
    this.worksByName ??= byName(this.store);
    return this.worksByName.get(name) ?? new Uint32Array();
  }

  /** How long each of them took, in microseconds. */
  times(name: string): Float64Array {
    const { store } = this;
    return Float64Array.from(this.works(name), (work) => store!.duration[store!.work[work]!]! / 1000);
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
  traceTimeHref(
    from: number,
    to: number,
    ...more: [more?: Record<string, string>, room?: number]
  ): string | null {
    const origin = this.store && this.store.timeline.origin_ns / 1000;
    return origin === null ? null : this.timeHref((from - origin) * 1000, (to - origin) * 1000, ...more);
  }

  rowHref(row: number): string {
    const store = this.store!;
    return this.timeHref(store.start[row]!, store.endOf(row), { k: row }, 4);
  }

  /** An event that something points at, by its place in a rank's file. */
  eventHref(rank: number, event: number): string | null {
    const mark = this.store?.timeline.marks.find((one) => one.rank === rank && one.event === event);
    return mark ? this.rowHref(mark.row) : null;
  }

  /** `model.py:12`, the whole path kept for the code page. */
  lineHref = (file: string, line: number | null): string => format(["code"], { file, line });
}

/** Nanoseconds as microseconds in an address. */
export const stamp = (ns: number): string => (Math.round(ns) / 1000).toString();

function byName(store: Store | null): Map<string, Uint32Array> {
  const found = new Map<string, number[]>();
  store?.work.forEach((row, work) => {
    const { name } = store.nameOf(row);
    if (!found.get(name)?.push(work)) found.set(name, [work]);
  });
  return new Map([...found].map(([name, works]) => [name, Uint32Array.from(works)]));
}
