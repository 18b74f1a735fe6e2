// What the panel says of one event: what it is, how it came about, how it waited, where it leads.
import type { App } from "../app.ts";
import {
  button,
  chained,
  type Child,
  copyButton,
  facts,
  given,
  h,
  link,
  monoLink,
  soft,
  swatch,
} from "../dom.ts";
import { place, shorten } from "../names.ts";
import * as numbers from "../numbers.ts";
import { format } from "../links.ts";
import { chain } from "./chain.ts";
import { type Key, NONE, type Store } from "./store.ts";

export function eventPanel(app: App, store: Store, row: number, select: (row: number) => void): Child {
  const name = store.nameOf(row),
    work = store.workOf(row),
    lane = store.lanes[store.laneOf(row)]!;
  const isCompared = app.isComparison;
  const step =
    work < 0 &&
    app.report.devices.length > 0 &&
    app.report.steps.find((one) => one.name === name.name && one.rank === lane.rank);
  const onGpu = step && step.duration_us;
  const door = (to: number, text: string): HTMLElement =>
    button(text, () => select(to), { class: "door", title: store.nameOf(to).name });
  return [
    h("h2", { class: "mono", title: name.name }, work >= 0 ? app.short(name.name) : shorten(name.name, 120)),
    soft(
      name.category || name.kind,
      " · ",
      lane.label.trim() || app.rankName(lane.rank),
      " ",
      copyButton(name.name, "the whole name"),
    ),
    facts([
      [work >= 0 || isCompared ? "duration" : "duration on the CPU", numbers.exact(store.duration[row]!)],
      ["starts at", numbers.exact(store.began[row]!)],
      ["the step on the GPU", onGpu && `${numbers.time(onGpu)}, as other parts of the page count it`],
      ["call", work >= 0 && isCompared ? store.belongs(work, "graph") : null],
      ...(isCompared ? [] : work >= 0 ? workFacts(app, store, row, work) : hostFacts(store, row)),
    ]),
    isCompared
      ? h("p", link(app.kernelHref(name.name)!, "all of that name"))
      : [
          work >= 0 && h("p", link(app.kernelHref(name.name)!, "its page: source, lines, all launches")),
          chainList(app, store, row, door),
          work < 0 && launchedList(app, store, row, door),
        ],
  ];
}

function workFacts(app: App, store: Store, row: number, work: number): [string, Child][] {
  const how = store.launchedBy(work),
    { latency, queued } = chain(store, row);
  const known = app.kernelOf(store.nameOf(row).name);
  return [
    ["waited", latency === null ? "its launch is not known" : `${numbers.ns(latency)} from launch to start`],
    ["of it behind other work", given(queued, numbers.ns)],
    ["grid × block", how.grid && `${how.grid} × ${how.block ?? "?"}`],
    ["registers a thread", how.registers],
    ["shared memory", given(how.shared_memory_bytes, (bytes) => `${numbers.size(bytes)} a block`)],
    ["warps a multiprocessor", given(how.warps_per_sm, (warps) => +warps.toPrecision(3))],
    ["occupancy, estimated", how.occupancy_percent ? `${how.occupancy_percent} %` : null], // 0: not estimated
    ["moved", given(how.bytes, (bytes) => numbers.moved(bytes, store.duration[row]! / 1e9))],
    ["collective", given(how.collective, (text) => shorten(text, 300))],
    [
      "of speed of light",
      known?.speed_of_light && `${numbers.percent(known.speed_of_light)}, all its launches`,
    ],
    ["median of its launches", known && numbers.time(known.median_us)],
  ];
}

function hostFacts(store: Store, row: number): [string, Child][] {
  const launched = store.launchedInside(row);
  const time = launched.reduce((sum, work) => sum + store.duration[store.work[work]!]!, 0);
  const shapes = store.text("shapes", row);
  const many = launched.length
    ? `${numbers.count(launched.length)} from this thread, ${numbers.ns(time)}`
    : "none";
  return [
    ["device work launched", many],
    ["shapes", shapes && h("code", shorten(shapes, 300))],
  ];
}

type Door = (row: number, text: string) => HTMLElement;

function chainList(app: App, store: Store, row: number, door: Door): Child {
  const found = chain(store, row),
    work = store.workOf(row);
  const key = (to: Key) => (work < 0 ? null : store.belongs(work, to).replace(/^no .*/, ""));
  if (!found.rows.length) return work >= 0 && soft("Which call launched it was not recorded.");
  const source = sourceOf(app, store, row);
  return [
    h("h3", "How it came about"),
    facts([
      ["step", key("step")],
      ["annotation", key("annotation")],
      ["module", key("module")],
      ["line", found.line ? lineDoor(found.line) : source],
      ["op", key("op")],
    ]),
    links(app, store, found.rows, row, door),
    found.forward.length > 0 && [h("h3", "Its forward"), links(app, store, found.forward, row, door)],
  ];
}

function links(app: App, store: Store, rows: number[], row: number, door: Door): HTMLElement {
  return chained(
    rows.map((at) => {
      const name = shorten(app.event(store.nameOf(at).name), 90);
      const more = ` ${store.nameOf(at).kind} · ${numbers.ns(store.duration[at]!)}`;
      return [at === row ? h("b", name) : door(at, name), h("small", more)];
    }),
  );
}

/** `path/model.py(12): forward` as a door to that line. */
export function lineDoor(frame: string): Child {
  const [, file, line] = /^(.*?)\((\d+)\): /.exec(frame) ?? [];
  return file ? monoLink(format(["code"], { file, line }), shorten(frame, 80)) : frame;
}

function sourceOf(app: App, store: Store, row: number): Child {
  const lines = app.compiledOf(store.nameOf(row).name)[0]?.source ?? [];
  const doors = lines
    .slice(0, 4)
    .map(({ file, line }) => link(app.lineHref(file, line), `${place(file, line)} `));
  return doors.length ? doors : null;
}

function launchedList(app: App, store: Store, row: number, door: Door): Child {
  const launched = [...store.launchedInside(row)].map((work) => store.work[work]!);
  if (!launched.length || (store.parent[row] === NONE && launched.length > 5000)) return null;
  launched.sort((a, b) => store.duration[b]! - store.duration[a]!);
  const item = (at: number): Child => [
    dot(app, store.nameOf(at).category),
    door(at, app.short(store.nameOf(at).name)),
    h("small", ` ${numbers.ns(store.duration[at]!)}`),
  ];
  return [
    h("h3", "What it launched"),
    chained(launched.slice(0, 12).map(item)),
    launched.length > 12 && soft(`the longest 12 of ${numbers.count(launched.length)}`),
  ];
}

export const dot = (app: App, category: string): HTMLElement => swatch(app.palette.category(category));
