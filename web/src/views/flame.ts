// Device time by what launched it, one call inside the other, kernels innermost: by module, Python line or op.
// Without a device the time of the ops themselves, by what called them.
import type { App } from "../app.ts";
import { chip, chips, type Child, h, link, para, soft, titled } from "../dom.ts";
import { isOwnFrame, shorten } from "../names.ts";
import * as numbers from "../numbers.ts";
import { format, replace, type Route } from "../links.ts";
import { figure, shares, table } from "../table.ts";
import { NONE, type Store } from "../timeline/store.ts";

interface Node {
  name: string;
  /** Of a kernel; hosts' calls have none. */
  category: string;
  time: number;
  launches: number;
  children: Map<string, Node>;
  parent: Node | null;
  /** Its longest call. */
  row: number;
}

const KINDS = {
  modules: (name: string) => name.startsWith("nn.Module: "),
  lines: (name: string, kind: string) => kind === "python_function" && isOwnFrame(name),
  ops: (_: string, kind: string) => kind === "cpu_op" || kind === "user_annotation",
  annotations: (_: string, kind: string) => kind === "user_annotation",
};
type By = keyof typeof KINDS;
const LEAST = 0.002, // of what is seen: narrower is not drawn
  WORDY = 0.07, // of it: as wide as a name and its share
  DEEPEST = 40;
const ALL = "*"; // frames to choose from
const ALL_WORK = "all device work",
  ALL_OPS = "all ops"; // where no device worked
const isOps = (root: Node): boolean => root.name === ALL_OPS;
const timeOf = (root: Node): string => (isOps(root) ? "the ops' time" : "device time");
const times = (node: Node, root: Node): string =>
  numbers.count(node.launches, isOps(root) ? "call" : "launch");

export function flame(app: App, { parameters }: Route): Child {
  const { store } = app;
  if (!store) return h("p", "There are no events in this page.");
  const asked = parameters.get("by") as By | undefined;
  const present = (Object.keys(KINDS) as By[]).filter(
    (by) => noted(store, by) || store.names.some(({ name, kind }) => KINDS[by](name, kind)),
  );
  const by = asked && present.includes(asked) ? asked : (present[0] ?? "ops");
  const isEach = parameters.get("layers") === "each",
    of = parameters.get("of");
  const address = (more: Record<string, string | null>): string =>
    format(["flame"], { by, layers: isEach ? "each" : null, ...more });
  const { root, hasLayers } = tree(app, store, by, isEach);
  return [
    h("h1", store.work.length ? "Device time by what launched it" : "Time of ops by what called them"),
    chips(
      "by",
      present.map((one) => chip(address({ by: one }), one, one === by)),
      " as ",
      chip(address({}), "flame graph", of === undefined),
      chip(address({ of: ALL }), "callers and callees", of !== undefined),
      hasLayers && [" like layers ", chip(address({ layers: null }), "merged", !isEach)],
      hasLayers && chip(address({ layers: "each" }), "each", isEach),
    ),
    !present.includes("lines") &&
      soft(
        "No lines of the program were recorded: ",
        h("code", "kinetoscope run"),
        " notes them in a step of their own, and with ",
        h("code", "--stacks"),
        " library functions too.",
      ),
    of === undefined
      ? graph(app, root, address, parameters)
      : of === ALL
        ? list(app, root, address)
        : sandwich(app, root, of, address),
  ];
}

/** The column that says it of each event where it was noted in a step of its own; null where none was. */
function noted(store: Store, by: By): "line" | "modules" | null {
  const column = by === "lines" ? "line" : by === "modules" ? "modules" : null;
  return column && store.has(column) ? column : null;
}

/** `train.py(12): step` is called from its file's function: files, functions, lines. */
function frames(store: Store, by: By, row: number): string[] {
  const line = store.text("line", row),
    [, file, , called] = /^(.*)\((\d+)\): (.*)$/.exec(line) ?? [];
  if (by === "lines") return file ? [`${file}: ${called}`, line] : ["no line of the program"];
  const modules = store.text("modules", row);
  return [...(modules ? modules.split(" › ") : ["no module"]), ...(line ? [line] : [])];
}

const node = (name: string, category: string, parent: Node | null, row: number): Node => ({
  ...{ name, category, parent, row, time: 0, launches: 0 },
  children: new Map(),
});

/** The calls around each launch, from the outermost on; backward work stands under its forward op. */
function tree(app: App, store: Store, by: By, isEach: boolean): { root: Node; hasLayers: boolean } {
  const keep = KINDS[by],
    column = noted(store, by);
  const root = node(store.work.length ? ALL_WORK : ALL_OPS, "", null, NONE);
  const layers = new Map<string, number>();
  const layer = (name: string): string | undefined => /^nn\.Module: (.*)_\d+$/.exec(name)?.[1];
  for (const { name } of store.names) layers.set(layer(name) ?? "", (layers.get(layer(name) ?? "") ?? 0) + 1);
  layers.delete("");
  const labels = store.names.map(({ name, kind, category }) => {
    if (category) return app.short(name);
    if (!keep(name, kind)) return "";
    const like = layer(name);
    if (!isEach && like !== undefined && layers.get(like)! > 1) return `${like}_*`;
    return app.event(name).replace(/#\d+$/, "#…").replace("nn.Module: ", "");
  });
  const add = (
    at: Node,
    row: number,
    time: number,
    category = "",
    name = labels[store.name[row]!] || store.nameOf(row).name,
  ): Node => {
    let child = at.children.get(name);
    if (!child) at.children.set(name, (child = node(name, category, at, row)));
    if (store.duration[row]! > store.duration[child.row]!) child.row = row;
    child.time += time;
    child.launches++;
    return child;
  };
  /** An event below what is around it: the lines that were noted of it, and `op`, or its `callers`. */
  const put = (row: number, time: number, op: string, callers: () => number[]): void => {
    root.time += time;
    root.launches++;
    let at = root;
    if (column) {
      for (const name of frames(store, by, row)) at = add(at, row, time, "", name);
      if (by === "lines" && op) at = add(at, row, time, "", op);
    } else
      for (const host of callers())
        // A step around the forward is around the backward too.
        if (labels[store.name[host]!] && !isOpen(at, labels[store.name[host]!]!)) at = add(at, host, time);
    add(at, row, time, store.nameOf(row).category);
  };
  if (!store.work.length) {
    ops(store).forEach(([row, time]) => put(row, time, "", () => store.around(row)));
    return { root, hasLayers: false };
  }
  store.work.forEach((row, work) => {
    const launch = store.launch[work]!,
      forward = store.forward[work]!;
    put(row, store.duration[row]!, store.belongs(work, "op"), () => [
      ...(forward === NONE ? [] : [...store.around(forward), forward]),
      ...(launch === NONE ? [] : store.around(launch)),
    ]);
  });
  return { root, hasLayers: root.children.size > 0 && [...layers.values()].some((count) => count > 1) };
}

/** Ops, and the time of each in which no other op inside of it ran. */
function ops(store: Store): [row: number, time: number][] {
  const own = new Map<number, number>();
  store.lanes.forEach(({ kind, first, count }) => {
    for (let row = first; kind === "thread" && row < first + count; row++) {
      if (store.nameOf(row).kind !== "cpu_op") continue;
      own.set(row, store.duration[row]!);
      for (let at = store.parent[row]!; at !== NONE; at = store.parent[at]!)
        if (own.has(at)) {
          own.set(at, own.get(at)! - store.duration[row]!);
          break;
        }
    }
  });
  return [...own];
}

const isOpen = (node: Node, name: string): boolean =>
  name.endsWith("#…") && (node.name === name || (node.parent !== null && isOpen(node.parent, name)));

/** Left-heavy: the longest call stands first. */
const sorted = (node: Node): Node[] => [...node.children.values()].sort((a, b) => b.time - a.time);

type Address = (more: Record<string, string | null>) => string;

/** All of it, or what one click chose: `at` has the places of the calls that lead there. */
function graph(app: App, root: Node, address: Address, parameters: Map<string, string>): Child {
  const places = (parameters.get("at") ?? "").split(".").filter(Boolean).map(Number);
  const above: Node[] = [root];
  for (const place of places) {
    const next = sorted(above.at(-1)!)[place];
    if (next) above.push(next);
  }
  const node = above.at(-1)!;
  const to = (path: number[]): string => address({ at: path.join(".") || null, q: box.value || null });
  const found = h("span.soft");
  const box: HTMLInputElement = h("input", {
    type: "search",
    placeholder: "search frames",
    "aria-label": "search frames",
    value: parameters.get("q") ?? "",
    onInput: () => {
      replace(to(places));
      light();
    },
  });
  const drawn = h(
    "section",
    {
      class: "flame",
      onKeydown: (event: KeyboardEvent) => event.key === "Escape" && (location.hash = to([])),
    },
    above.slice(0, -1).map((one, depth) => bar(app, one, root, to(places.slice(0, depth)), true)),
    bar(app, node, root, to(places), true),
    level(app, node, root, node.time, places, to, 0),
  );
  const light = (): void => {
    const wanted = box.value.toLowerCase();
    for (const one of drawn.querySelectorAll<HTMLElement>("a"))
      one.classList.toggle("faint", !one.dataset.name!.includes(wanted));
    const time = wanted ? matching(root, wanted) : 0;
    found.textContent = wanted
      ? ` ${numbers.percent(time / (root.time || 1))} of ${timeOf(root)}, ${numbers.time(time / 1000)}, is in frames called so`
      : "";
  };
  light();
  return [
    h("div.tools.bare", box, found),
    para("lead", about(app, node, root, address)),
    drawn,
    soft("A click zooms, Shift and a click shows the longest call in the timeline, Esc shows all of it."),
  ];
}

/** What is known of a frame, and where it leads. */
function about(app: App, node: Node, root: Node, address: Address): Child {
  const share = `${numbers.time(node.time / 1000)} of ${timeOf(root)}, ${numbers.percent(node.time / (root.time || 1))}`;
  return [
    `${shorten(node.name, 120)}: ${share}, ${times(node, root)}`,
    node.row !== NONE && [
      " · ",
      link(app.rowHref(node.row), "its longest call in the timeline"),
      " · ",
      link(address({ of: node.name }), "its callers and callees"),
    ],
  ];
}

function matching(node: Node, wanted: string): number {
  if (node.name.toLowerCase().includes(wanted)) return node.time;
  return [...node.children.values()].reduce((sum, child) => sum + matching(child, wanted), 0);
}

function bar(app: App, node: Node, root: Node, href: string, isWide: boolean): HTMLElement {
  const share = numbers.percent(node.time / (root.time || 1));
  const timeline = node.row === NONE ? null : app.rowHref(node.row);
  return h(
    "a",
    {
      href,
      data: { name: node.name.toLowerCase() },
      class: node.category ? "leaf" : null,
      style: node.category
        ? { background: `color-mix(in srgb, ${app.palette.category(node.category)} 55%, #fff)` }
        : {},
      title: `${node.name}: ${numbers.time(node.time / 1000)}, ${share}, ${times(node, root)}`,
      onClick: (event: MouseEvent) => {
        if (!event.shiftKey || !timeline) return;
        event.preventDefault();
        location.hash = timeline;
      },
    },
    shorten(node.name, 80),
    isWide && h("span", ` ${share}`),
  );
}

/** The calls inside one, each as wide as its share of `whole`, with those inside of it; callers stand above. */
function level(
  app: App,
  node: Node,
  root: Node,
  whole: number,
  path: number[],
  to: (path: number[], node: Node) => string,
  depth: number,
  isUp = false,
): Child {
  const seen = sorted(node)
    .map((child, place) => ({ child, place }))
    .filter(({ child }) => child.time / whole > LEAST);
  return (
    depth < DEEPEST &&
    seen.length > 0 &&
    h(
      "div",
      { class: isUp ? "level up" : "level" },
      seen.map(({ child, place }) => {
        const own = bar(app, child, root, to([...path, place], child), child.time / whole > WORDY);
        const inside = level(app, child, root, whole, [...path, place], to, depth + 1, isUp);
        const style = { width: `${(100 * child.time) / (node.time || 1)}%` };
        return h("div", { class: "call", style }, isUp ? [inside, own] : [own, inside]);
      }),
    )
  );
}

interface Frame {
  node: Node;
  time: number;
  own: number;
  launches: number;
}

/** Every frame by name: inside of itself it counts once. */
function list(app: App, root: Node, address: Address): Child {
  const frames = new Map<string, Frame>();
  const walk = (node: Node, open: Set<string>): void => {
    for (const child of node.children.values()) {
      let frame = frames.get(child.name);
      if (!frame) frames.set(child.name, (frame = { node: child, time: 0, own: 0, launches: 0 }));
      const isOutermost = !open.has(child.name);
      if (isOutermost) {
        frame.time += child.time;
        frame.launches += child.launches;
      }
      frame.own += child.time;
      for (const one of child.children.values()) if (!one.category) frame.own -= one.time;
      walk(child, isOutermost ? new Set([...open, child.name]) : open);
    }
  };
  walk(root, new Set());
  const rows = [...frames.values()].sort((a, b) => b.time - a.time);
  const door = (name: string): Child => link(address({ of: name }), shorten(name, 100), name);
  return titled(
    "Frames",
    `own: of the ${isOps(root) ? "ops" : "kernels"} that it ${isOps(root) ? "calls" : "launches"} itself; choose one to see its callers and callees`,
    table(
      rows,
      [
        { label: "frame", value: ({ node }) => node.name, cell: ({ node }) => door(node.name) },
        shares("share", ({ node, time }) => [
          time / (root.time || 1),
          node.category ? app.palette.category(node.category) : "var(--accent)",
        ]),
        figure(isOps(root) ? "time" : "device time", ({ time }) => time / 1000, numbers.time),
        figure("own", ({ own }) => own / 1000, numbers.time),
        figure(isOps(root) ? "calls" : "launches", ({ launches }) => launches, numbers.count),
      ],
      { id: "frames", label: "frames", filter: ({ node }) => node.name },
    ),
  );
}

/** One frame: what calls it above, what it calls below. */
function sandwich(app: App, root: Node, name: string, address: Address): Child {
  const copy = ({ name, category, row }: Node): Node => node(name, category, null, row);
  const lasts = ({ row }: Node): number => app.store!.duration[row] ?? -1;
  let middle: Node | null = null,
    callers: Node | null = null;
  const add = (to: Node, from: Node): void => {
    to.time += from.time;
    to.launches += from.launches;
    if (lasts(from) > lasts(to)) to.row = from.row;
  };
  const within = (at: Node, from: Node): Node => {
    if (!at.children.has(from.name)) at.children.set(from.name, copy(from));
    return at.children.get(from.name)!;
  };
  const inside = (to: Node, from: Node): void => {
    add(to, from);
    for (const child of from.children.values()) inside(within(to, child), child);
  };
  const walk = (one: Node): void => {
    if (one.name !== name) return [...one.children.values()].forEach(walk);
    inside((middle ??= copy(one)), one);
    let at = (callers ??= copy(one));
    add(at, one);
    for (let up = one.parent; up?.parent; up = up.parent) {
      at = within(at, up);
      add(at, { ...one, row: up.row });
    }
  };
  walk(root);
  if (!middle || !callers) return h("p", `No frame is called ${name} here.`);
  const to = (_: number[], node: Node): string => address({ of: node.name });
  const { time } = middle as Node;
  return [
    para("lead", about(app, middle, root, address)),
    h(
      "section.flame.sandwich",
      level(app, callers, root, time, [], to, 0, true),
      h("div.chosen", bar(app, middle, root, address({ of: name }), true)),
      level(app, middle, root, time, [], to, 0),
    ),
    soft("Above: what calls it; below: what it calls. A click chooses another frame."),
  ];
}
