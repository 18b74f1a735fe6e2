// Device time by what launched it, one call inside the other: by module, Python line or op.
import type { App } from "../app.ts";
import { type Child, h, soft } from "../dom.ts";
import { isOwnFrame, shorten } from "../names.ts";
import * as numbers from "../numbers.ts";
import { format, type Route } from "../links.ts";
import { NONE, type Store } from "../timeline/store.ts";

interface Node {
  name: string;
  time: number;
  children: Map<string, Node>;
  row: number;
}

const KINDS = {
  modules: (name: string) => name.startsWith("nn.Module: "),
  lines: (name: string, kind: string) => kind === "python_function" && isOwnFrame(name),
  ops: (_: string, kind: string) => kind === "cpu_op" || kind === "user_annotation",
  annotations: (_: string, kind: string) => kind === "user_annotation",
};
const LEAST = 0.002; // of the whole: narrower is not drawn
const DEEPEST = 30;

export function flame(app: App, { parameters }: Route): Child {
  const { store } = app;
  if (!store) return h("p", {}, "There are no events in this page.");
  const asked = parameters.get("by") as keyof typeof KINDS | undefined;
  const present = (Object.keys(KINDS) as (keyof typeof KINDS)[]).filter((by) =>
    store.names.some(({ name, kind }) => KINDS[by](name, kind)),
  );
  const by = asked && asked in KINDS ? asked : (present[0] ?? "ops");
  const root = tree(store, KINDS[by]);
  const outside = root.time - [...root.children.values()].reduce((sum, child) => sum + child.time, 0);
  return [
    h("h1", {}, "Device time by what launched it"),
    h(
      "nav",
      { class: "chips", "aria-label": "by" },
      present.map((one) =>
        h("a", { href: format(["flame"], { by: one }), "aria-current": one === by ? "true" : null }, one),
      ),
    ),
    h(
      "p",
      { class: "lead" },
      `${numbers.time(root.time / 1000)} of device time; a click leads to the longest call in the timeline. Backward work stands under its forward op.`,
    ),
    h("section", { class: "flame" }, level(app, root, root, 0)),
    outside / root.time > LEAST &&
      soft(
        `Blank at the right: ${numbers.time(outside / 1000)} (${numbers.percent(outside / root.time)}) in none of these ${by}.`,
      ),
  ];
}

function tree(store: Store, keep: (name: string, kind: string) => boolean): Node {
  const root: Node = { name: "all", time: 0, children: new Map(), row: NONE };
  store.work.forEach((row, work) => {
    const launch = store.launch[work]!,
      time = store.duration[row]!;
    root.time += time;
    if (launch === NONE) return;
    let at = root;
    const forward = store.forward[work]!;
    const around =
      forward === NONE ? store.around(launch) : [...store.around(forward), forward, ...store.around(launch)];
    for (const host of around) {
      const { name, kind } = store.nameOf(host);
      if (!keep(name, kind)) continue;
      const key = name.replace(/#\d+$/, "#…");
      let child = at.children.get(key);
      if (!child) at.children.set(key, (child = { name: key, time: 0, children: new Map(), row: host }));
      if (store.duration[host]! > store.duration[child.row]!) child.row = host;
      child.time += time;
      at = child;
    }
  });
  return root;
}

function level(app: App, node: Node, root: Node, depth: number): Child {
  const children = [...node.children.values()]
    .filter((child) => child.time / root.time > LEAST)
    .sort((a, b) => b.time - a.time);
  return (
    depth < DEEPEST &&
    children.length > 0 &&
    h(
      "div",
      { class: "level" },
      children.map((child) =>
        h(
          "div",
          { class: "call", style: { width: `${(100 * child.time) / (node.time || 1)}%` } },
          h(
            "a",
            {
              href: app.rowHref(child.row),
              title: `${child.name}: ${numbers.time(child.time / 1000)}, ${numbers.percent(child.time / root.time)}`,
            },
            shorten(app.event(child.name).replace("nn.Module: ", ""), 60),
          ),
          level(app, child, root, depth + 1),
        ),
      ),
    )
  );
}
