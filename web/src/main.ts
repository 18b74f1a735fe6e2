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
import { sections } from "./blocks.ts";
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

interface Place {
  label: string;
  draw: (route: Route) => Child;
  isThere: boolean;
}

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
  const places: Record<string, Place> = {
    comparison: {
      label: "Comparison",
      draw: (route) => comparison(app, drawnBy(route), aligned !== null),
      isThere: app.isComparison,
    },
    overview: { label: "Overview", draw: () => overview(app), isThere: isWhole },
    timeline: {
      label: "Timeline",
      draw: () => timeline?.element ?? h("p", "There are no events in this page."),
      isThere: timeline !== null && isWhole,
    },
    kernels: {
      label: "Kernels",
      draw: (route) =>
        route.path[1] === undefined ? kernels(app, route) : kernel(app, Number(route.path[1])),
      isThere: report.kernels.length > 0,
    },
    flame: {
      label: "Flame",
      draw: (route) => flame(app, route),
      isThere: isWhole && store !== null && (store.work.length > 0 || report.ops.length > 0),
    },
    code: { label: "Code", draw: (route) => codePage(app, route), isThere: isWhole },
    compile: { label: "Compile", draw: (route) => compile(app, route), isThere: Boolean(compilation) },
    ops: {
      label: "Ops",
      draw: () => [h("h1", "Ops"), sections(app, sentences.blocks.ops!)],
      isThere: report.ops.length > 0,
    },
    steps: {
      label: "Steps",
      draw: () => steps(app),
      isThere: report.steps.length > 0 || report.launching.length > 0,
    },
    memory: {
      label: "Memory",
      draw: (route) => memory(app, route),
      isThere: report.memory.length + report.allocator.length + report.memory_peaks.length > 0,
    },
    ranks: { label: "Ranks", draw: (route) => ranks(app, route), isThere: Boolean(report.ranks) },
    about: {
      label: "About",
      draw: () => [
        h("h1", "What was read, and where it was recorded"),
        sections(app, sentences.blocks.about!),
      ],
      isThere: isWhole,
    },
  };
  const search = searching(app),
    keys = keyHelp();
  const main = h("main", { id: "main", tabindex: "-1" });
  const tabs = Object.entries(places)
    .filter(([, place]) => place.isThere)
    .map(([name, place]) => h("a", { href: `#${name}`, data: { place: name } }, place.label));
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
    const name = places[route.path[0]!]?.isThere ? route.path[0]! : home;
    for (const tab of tabs) tab.toggleAttribute("aria-current", tab.dataset.place === name);
    main.className = name;
    fill(main, places[name]!.draw(route));
    if (name === app.timeline) drawnBy(route)?.open(route);
    const wanted = Number(route.parameters.get("finding") ?? NaN);
    const finding = main.querySelector<HTMLElement>(`.finding[data-index="${wanted}"]`);
    if (finding) {
      finding.closest("details")?.setAttribute("open", "");
      finding.classList.add("lit");
      finding.scrollIntoView({ block: "center" });
    } else scrollTo(0, 0);
    document.title = `${places[name]!.label} · ${sentences.title[0]} · kinetoscope`;
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
