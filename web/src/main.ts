// The page: reads its data, and shows what the address asks for.
import "./page.css";
import { App } from "./app.ts";
import { button, copyButton, fill, h, type Child } from "./dom.ts";
import { keyHelp } from "./keys.ts";
import { load } from "./load.ts";
import * as numbers from "./numbers.ts";
import { parse, type Route } from "./links.ts";
import { searching } from "./search.ts";
import { Store } from "./timeline/store.ts";
import { TimelineView } from "./timeline/view.ts";
import { type Block, sections } from "./blocks.ts";
import { comparison } from "./views/comparison.ts";
import { codePage } from "./views/code.ts";
import { compile } from "./views/compile.ts";
import { flame } from "./views/flame.ts";
import { kernel } from "./views/kernel.ts";
import { kernels } from "./views/kernels.ts";
import { memory } from "./views/memory.ts";
import { overview } from "./views/overview.ts";
import { ranks } from "./views/ranks.ts";
import { steps } from "./views/steps.ts";

type Place = [label: string, isThere: boolean, draw: (route: Route) => Child];

async function start(): Promise<void> {
  const root = document.getElementById("app")!;
  const data = document.getElementById("data")!;
  const { report, sentences, columns } = await load(data.textContent);
  data.remove(); // the text is of no more use, and megabytes long
  const store = report.page?.timeline ? new Store(report.page.timeline, columns) : null;
  const app = new App(report, sentences, store, columns);
  const timeline = store && new TimelineView(app, store);
  const aligned = columns.has("aligned_start")
    ? new TimelineView(app, new Store(report.page.timeline!, columns, true))
    : null;
  const compilation = report.compilation?.frames.length || report.graphs.length;
  const isWhole = !app.isComparison && (report.sources.length > 0 || !report.ranks); // else it compares alone
  const isMemory = report.memory_peaks.length > 0 && !report.devices.length && !report.ops.length;
  const home = app.isComparison ? "comparison" : !isWhole ? "ranks" : isMemory ? "memory" : "overview";
  const drawnBy = ({ parameters }: Route) =>
    aligned && parameters.get("by") === "graph" ? aligned : timeline;
  const has = (...rows: unknown[][]): boolean => rows.some((one) => one.length > 0);
  const headed = (title: string, blocks: Block[]): Child => [h("h1", title), sections(app, blocks)];
  const places: Record<string, Place> = {
    comparison: ["Comparison", app.isComparison, (to) => comparison(app, drawnBy(to), aligned !== null)],
    overview: ["Overview", isWhole, () => overview(app)],
    timeline: ["Timeline", isWhole && timeline !== null, () => timeline?.element],
    kernels: [
      "Kernels",
      report.kernels.length > 0,
      (to) => (to.path[1] === undefined ? kernels(app, to) : kernel(app, Number(to.path[1]))),
    ],
    flame: [
      "Flame",
      isWhole && Boolean(store?.work.length || (store && has(report.ops))),
      (to) => flame(app, to),
    ],
    code: ["Code", isWhole, (to) => codePage(app, to)],
    compile: ["Compile", Boolean(compilation), (to) => compile(app, to)],
    ops: ["Ops", has(report.ops), () => headed("Ops", sentences.blocks.ops!)],
    steps: ["Steps", has(report.steps, report.launching), () => steps(app)],
    memory: ["Memory", has(report.memory, report.allocator, report.memory_peaks), (to) => memory(app, to)],
    ranks: ["Ranks", Boolean(report.ranks), (to) => ranks(app, to)],
    about: [
      "About",
      isWhole,
      () => headed("What was read, and where it was recorded", sentences.blocks.about!),
    ],
  };
  const search = searching(app),
    keys = keyHelp();
  const main = h("main", { id: "main", tabindex: "-1" });
  const tabs = Object.entries(places)
    .filter(([, [, isThere]]) => isThere)
    .map(([name, [label]]) => h("a", { href: `#${name}`, data: { place: name } }, label));
  fill(
    root,
    h(
      "header.top",
      h("a", { class: "brand", href: `#${home}` }, "kinetoscope"),
      h("nav", { "aria-label": "parts of the report" }, tabs),
      button(["Search ", h("kbd", "/")], search.open, { class: "find", "aria-label": "search" }),
      copyButton(() => location.href, "to this view", "Copy link"),
      button(h("kbd", "?"), keys.open, { class: "find", "aria-label": "keys" }),
    ),
    main,
    search.element,
    keys.element,
  );

  const show = (): void => {
    const route = parse(location.hash);
    const name = places[route.path[0]!]?.[1] ? route.path[0]! : home;
    for (const tab of tabs) tab.toggleAttribute("aria-current", tab.dataset.place === name);
    main.className = name;
    const [label, , draw] = places[name]!;
    fill(main, draw(route));
    if (name === app.timeline) drawnBy(route)?.open(route);
    const wanted = Number(route.parameters.get("finding") ?? NaN);
    const finding = main.querySelector<HTMLElement>(`.finding[data-index="${wanted}"]`);
    if (finding) {
      finding.closest("details")?.setAttribute("open", "");
      finding.classList.add("lit");
      finding.scrollIntoView({ block: "center" });
    } else scrollTo(0, 0);
    document.title = `${label} · ${sentences.title[0]} · kinetoscope`;
  };
  addEventListener("hashchange", show);
  addEventListener("keydown", (event) => {
    const typing = event.target instanceof HTMLInputElement || event.target instanceof HTMLTextAreaElement;
    const open = { "/": search.open, "?": keys.open }[event.key];
    if (!open || typing || event.ctrlKey || event.metaKey || document.querySelector("dialog[open]")) return;
    event.preventDefault();
    open();
  });
  show();
  performance.mark("kinetoscope-shown");
  Object.assign(globalThis, { kinetoscope: { app, timeline, numbers } }); // for the console, and for tests
}

start().catch((error: unknown) => {
  document.getElementById("app")!.textContent = `This page cannot be drawn: ${String(error)}`;
  throw error;
});
